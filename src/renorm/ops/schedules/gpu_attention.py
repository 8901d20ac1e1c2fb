"""GPU: attention in three launches, of which the first leaves scores in memory:

scores = scale * queries * keys + mask             a matrix product for each head (gpu_products)
most = greatest score; total = sum of powers       for each query, by the threads of a block (gpu_blocks)
y = sum of powers * values / total                 a matrix product, whose powers are made as they go to shared memory
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from renorm import te
from renorm.core.dims import is_static
from renorm.core.gpu import facts
from renorm.core.target import Target
from renorm.expr.nodes import Call, Expr, Load
from renorm.expr.rewrite import substitute, transform
from renorm.ops.schedules import attention_axes, cuda, gpu_products, gpu_stages, nesting, structure
from renorm.ops.schedules.gpu_blocks import Blocks, Shape
from renorm.ops.schedules.gpu_contraction import Contraction, contraction
from renorm.ops.schedules.slices import Slices
from renorm.ops.shared.tags import ATTENTION, DOTS, MIXED, SCORES, VALUES
from renorm.te.tensor import source_of

QUERIES_OF_BLOCK = 32  # queries side by side in memory, each of which has a few threads of a block
THREADS = 8  # of each of them, where scores of a query lie apart; where they lie side by side, twice a warp
TOGETHER = 64


def schedule(s: te.Schedule, outs: Sequence[te.Tensor], target: Target) -> None:
    """One attention, and what stands behind it; a thread per element where that is not what the stages are."""
    found = _Stages.of(outs)
    if found is None:
        cuda.schedule(s, outs, target)
        return
    nesting.inline(s, outs, [found.mixed, found.scores, *found.statistics])
    out = outs[0]
    # axes may be in another order, as where heads lie side by side in rows of the result
    is_one = out is found.mixed or attention_axes.of(te.create_schedule(out.op), out, found.mixed) is not None
    gpu_products.place(s, found.mixed, found.mixture, out if is_one else found.mixed, facts(target.arch))
    if not is_one:
        cuda.bind(s, out)
    _statistics(s, found)
    gpu_products.place(s, found.dots, found.product, found.scores, facts(target.arch))


@dataclass(frozen=True)
class _Stages:
    """product, mixture: what `dots` and `mixed` are. statistics: of queries, the last three of them what scores are
    lessened by, the sum of powers, and its inverse."""

    dots: te.Tensor
    scores: te.Tensor
    mixed: te.Tensor
    statistics: list[te.Tensor]
    product: Contraction
    mixture: Contraction

    @staticmethod
    def of(outs: Sequence[te.Tensor]) -> _Stages | None:
        """Return the stages of one attention; None where they are others, or have nothing to do."""
        chain = structure.stages(outs)
        found, statistics = attention_axes.stages(chain)
        if len(outs) != 1 or len(found) < len(ATTENTION) or found[MIXED].op.attrs.get("in_pairs", False):
            return None
        dots, mixed = found[DOTS], found[MIXED]
        if not is_static(e for t in chain for e in t.shape) or any(0 in t.shape for t in chain):
            return None
        forms = [contraction(t) for t in (dots, mixed)]
        product, mixture = (None if f is None else _resolved(f, found[SCORES]) for f in forms)
        is_known = [structure.is_statistic(t) for t in statistics] in ([False, False, True], [False, True, False, True])
        if product is None or mixture is None or not is_known or structure.work(dots) < gpu_stages.LEAST_WORK:
            return None
        return _Stages(dots, found[SCORES], mixed, statistics, product, mixture)


def _resolved(product: Contraction, scores: te.Tensor) -> Contraction:
    """The product of what its factors are made of, rather than of stages that are inlined."""

    def read(e: Expr) -> Expr | None:
        stage = source_of(e) if isinstance(e, Load) else scores
        op = stage.op
        if not isinstance(e, Load) or not isinstance(op, te.ComputeOp) or op is scores.op:
            return None
        if structure.is_reduction(stage) or structure.is_statistic(stage):
            return None
        body = op.body
        if op.tag == VALUES and isinstance(body, Call) and body.name == "if_then_else":
            body = body.args[1]  # what fills up rows of values is never read
        return transform(substitute(body, {a.var: i for a, i in zip(op.axis, e.indices, strict=True)}), read)

    return replace(product, rows=transform(product.rows, read), columns=transform(product.columns, read))


def _statistics(s: te.Schedule, found: _Stages) -> None:
    """The launch for what is told of all scores of each query."""
    *inside, inverse = found.statistics
    along = bool(found.mixed.op.attrs["is_few"])  # then scores of a query lie side by side
    rows = 1 if along else min(QUERIES_OF_BLOCK, inverse.shape[-1])
    keys = structure.work(inside[0]) // structure.work(inverse)
    threads = next(n for n in (TOGETHER if along else THREADS, 4, 1) if keys >= n)
    shape = Shape(threads, rows, None if along else len(inverse.shape) - 1, along)
    Blocks(s, inverse, inside, Slices(inverse.shape, (1,) * len(inverse.shape)), shape, inside[-2:-1]).schedule()
