"""CPU: attention on a matrix unit, by blocks of queries as many as two registers have rows:

    parallel for each head, each panel: keys, values = in pairs           a copy: vectors turned round
    parallel for each head, each block of queries
      for each panel of keys: dots = queries * keys                       in tiles, then in the cache
      most = greatest score; powers = exp(scores - most); total           vectors of neighbouring keys
      for each panel of values: y = sum of powers * values / total        in tiles, then in the cache

Queries are read as they lie, where rows of them do so evenly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from renorm import te
from renorm.core.machine import Machine
from renorm.core.target import Target
from renorm.ops.schedules import attention_axes, cpu_matrix, cpu_reduction, nesting, structure
from renorm.ops.schedules.dot_weights import terms_at_once
from renorm.ops.shared.attending_in_pairs import PANEL
from renorm.ops.shared.tags import DOTS, KEYS, MIXED, POWERS, QUERIES, VALUES

TURNED = 16  # pairs of elements of a key that are turned round at once: a register of them


def schedule(
    s: te.Schedule,
    out: te.Tensor,
    axes: Sequence[te.IterVar],
    stages: Mapping[str, te.Tensor],
    per_query: Sequence[te.Tensor],
    target: Target,
) -> None:
    """stages: by their tags. axes: of the result, as those of sums of values. per_query: the greatest score, the sum of
    powers and its inverse."""
    *lead, row, column = axes
    dots, mixed, powers = (stages[tag] for tag in (DOTS, MIXED, POWERS))
    lanes = structure.lanes_of(mixed, target)
    _, rows = cpu_matrix.choose([mixed.shape[-2]], PANEL, target)
    for tag in (KEYS, VALUES):
        _in_pairs(s, stages[tag], is_turned=tag == KEYS)

    block, row = s[out].split(row, factor=rows)
    panel, column = s[out].split(column, factor=mixed.op.attrs["columns"])
    vector, lane = s[out].split(column, factor=lanes)
    s[out].reorder(*lead, block, panel, row, vector, lane)
    s[out].vectorize(lane)
    whole = nesting.share(s, out, [*lead, block], structure.work(mixed))[-1]
    s[mixed].set_scope("local")
    _multiply(s, mixed, target, (out, panel))

    for t in (t for t in per_query if structure.is_statistic(t)):
        s[t].compute_at(s[out], whole)
    s[powers].compute_at(s[out], whole)
    vector, lane = s[powers].split(s[powers].op.axis[-1], factor=lanes)
    s[powers].vectorize(lane)
    for t in (t for t in per_query if structure.is_reduction(t)):
        cpu_reduction.nest(s, t, target, at=(out, whole))
    s[dots].compute_at(s[out], whole)
    _multiply(s, dots, target)
    if attention_axes.lie_in_rows(stages[QUERIES], *stages[QUERIES].op.axis[-2:]):
        s[stages[QUERIES]].compute_inline()
    else:
        s[stages[QUERIES]].compute_at(s[out], whole)
        _, lane = s[stages[QUERIES]].split(s[stages[QUERIES]].op.axis[-1], factor=lanes)
        s[stages[QUERIES]].vectorize(lane)


def _multiply(s: te.Schedule, t: te.Tensor, target: Target, at: tuple[te.Tensor, te.IterVar] | None = None) -> None:
    """A sum of products in tiles, which are copied out. at: the loop around one tile, else it is around panels."""
    sums = s.cache_write(t, "tile")
    *_, row, column = s[t].op.axis
    if at is None:
        panel, column = s[t].split(column, factor=PANEL)
        s[t].reorder(panel, row, column)
        at = t, panel
    else:
        s[t].compute_at(s[at[0]], at[1])
    s[t].tensorize(row)
    s[sums].compute_at(s[at[0]], at[1])
    *_, row, column = s[sums].op.axis
    unit = Machine.of(target).matrix
    assert unit is not None
    (summed,) = s[sums].op.reduce_axis
    rounds, summed = s[sums].split(summed, factor=terms_at_once(summed.extent, unit))
    pair, part = s[sums].split(summed, factor=2)
    s[sums].reorder(rounds, row, column, pair, part)
    s[sums].tensorize(row)


def _in_pairs(s: te.Schedule, t: te.Tensor, is_turned: bool) -> None:
    """A copy in pairs. Threads share what conditions do not speak of, so that these are settled by loops that are
    cut."""
    *lead, panel, pair, lane, part = s[t].op.axis
    if is_turned:
        outer, pair = s[t].split(pair, factor=TURNED)
        order, inner = [*lead, outer], [panel, lane, pair, part]
    else:
        order, inner = [*lead, panel], [pair, lane, part]
    s[t].reorder(*order, *inner)
    s[t].tensorize(lane)
    if not is_turned and t.op.attrs["is_ragged"]:
        order.remove(panel)
    if prod(t.shape) >= nesting.PARALLEL_FROM and order:
        s[t].parallel(s[t].fuse(*order))
