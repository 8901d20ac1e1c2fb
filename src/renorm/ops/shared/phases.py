"""Two te forms of the transposed convolution: phase by phase, and, where taps are dilated, as a gather.

y[o] = sum over c, k with i * stride + k * dilation = o + before of x[c, i] * w[c, k]        (along every axis)

Phase r holds the elements o with (o + before) % stride = r; of each stride consecutive elements of y, one. It sees
the taps k = r + stride * j, and its element number q reads x[q + lead(r) - j], where lead(r) = (before + stride - 1 -
r) // stride.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import product
from typing import Any

from renorm import te
from renorm.expr.extents import same_extent
from renorm.expr.nodes import Expr
from renorm.ops.shared.precision import wide
from renorm.ops.shared.window import Span, pad
from renorm.te import tag
from renorm.te.open_dims import larger


@dataclass(frozen=True)
class Phases:
    """Phases first .. first + count - 1 along one axis; each has `taps` taps, or fewer where the window is open."""

    first: int
    count: int
    taps: int


def phases_of(span: Span) -> list[Phases]:
    """The phases along one axis, those with equally many taps together: all of them where that depends on an open
    window, of which taps beyond it are 0."""
    if isinstance(span.kernel, Expr):
        return [Phases(0, span.stride, (span.kernel + (span.stride - 1)) // span.stride)]
    fewest, longer = divmod(span.kernel, span.stride)
    parts = [Phases(0, longer, fewest + 1), Phases(longer, span.stride - longer, fewest)]
    return [p for p in parts if p.count]


def lead(span: Span, r: Any) -> Any:
    """Return how far ahead of q phase r starts to read."""
    return (span.before + span.stride - 1 - r) // span.stride


def sub_pixel(x: te.Tensor, w: te.Tensor, group: int, spans: Sequence[Span], extents: Sequence[int]) -> te.Tensor:
    """The transposed convolution at dilation 1, without bias, in the dtype that arithmetic runs in.

    Stages: x padded; per set of phases the weight as [M, C/group, *phase, *tap] ("weight") and the product [N, M,
    *phase, *q] ("conv_transpose"); then all phases in place. An axis of stride 1 has no phase axis.
    """
    parts = [phases_of(s) for s in spans]
    lengths = [(extent + s.stride - 1) // s.stride for s, extent in zip(spans, extents)]
    before, after = [0] * len(spans), [0] * len(spans)
    for i, (s, n) in enumerate(zip(spans, lengths)):
        # first and last element that any phase with taps reads: later ones begin to read further behind
        read = [p for p in parts[i] if not same_extent(p.taps, 0)]
        before[i] = reduce(larger, [p.taps - 1 - lead(s, p.first + p.count - 1) for p in read], 0)
        after[i] = reduce(larger, [n + lead(s, p.first) - s.extent for p in read], 0)
    data = pad(x, before, after)
    made: dict[tuple[Phases, ...], te.Tensor] = {}
    for chosen in product(*parts):
        if not any(same_extent(p.taps, 0) for p in chosen):
            made[chosen] = _product(data, w, group, spans, chosen, before, lengths)
    return _interleaved(made, parts, spans, (x.shape[0], w.shape[1] * group, *extents))


def _product(
    data: te.Tensor,
    w: te.Tensor,
    group: int,
    spans: Sequence[Span],
    chosen: Sequence[Phases],
    before: Sequence[int],
    lengths: Sequence[int],
) -> te.Tensor:
    phased = [i for i, s in enumerate(spans) if s.stride > 1]
    depth, outputs = w.shape[0] // group, w.shape[1]

    def phase(index: Sequence[Any], i: int) -> Any:
        """Return which phase an index stands for along axis i, given the phase part of an index."""
        return index[phased.index(i)] + chosen[i].first if i in phased else 0

    def weight(oc: Any, ic: Any, *rest: Any) -> Any:
        ks = [
            phase(rest, i) + s.stride * (p.taps - 1 - t)
            for i, (s, p, t) in enumerate(zip(spans, chosen, rest[len(phased) :], strict=True))
        ]
        tap = w[(ic, oc, *ks)] if group == 1 else w[((oc // outputs) * depth + ic, oc % outputs, *ks)]
        inside = [k < s.kernel for k, s in zip(ks, spans) if isinstance(s.kernel, Expr) and s.stride > 1]
        return te.if_then_else(te.all(*inside), tap, te.const(0, w.dtype)) if inside else tap

    phases, taps = [chosen[i].count for i in phased], [p.taps for p in chosen]
    weights = te.compute((outputs * group, depth, *phases, *taps), weight, name=f"{w.name}_phases", tag="weight")
    ic = te.reduce_axis((0, depth), name="ic")
    ts = [te.reduce_axis((0, n), name=f"t{i}") for i, n in enumerate(taps)]

    def element(n: Any, oc: Any, *rest: Any) -> Any:
        at = [
            q + t + (lead(s, phase(rest, i)) - (p.taps - 1) + before[i])
            for i, (s, p, q, t) in enumerate(zip(spans, chosen, rest[len(phased) :], ts, strict=True))
        ]
        channel = ic if group == 1 else (oc // outputs) * depth + ic
        return te.sum(
            wide(data[(n, channel, *at)]) * wide(weights[(oc, ic, *rest[: len(phased)], *ts)]), axis=[ic, *ts]
        )

    shape = (data.shape[0], outputs * group, *phases, *lengths)
    attrs = {"groups": group, "strides": tuple(s.stride for s in spans)}
    return te.compute(shape, element, name="conv_transpose", tag="conv_transpose", attrs=attrs)


def _interleaved(
    made: dict[tuple[Phases, ...], te.Tensor],
    parts: Sequence[list[Phases]],
    spans: Sequence[Span],
    shape: tuple[int, ...],
) -> te.Tensor:
    phased = [i for i, s in enumerate(spans) if s.stride > 1]
    if not phased:
        return next(iter(made.values()))
    zero = te.const(0, next(iter(made.values())).dtype)

    def element(n: Any, oc: Any, *out: Any) -> Any:
        phase = {i: (out[i] + spans[i].before) % spans[i].stride for i in phased}

        def choose(i: int, chosen: tuple[Phases, ...]) -> Any:
            if i == len(spans):
                if chosen not in made:
                    return zero  # no tap reaches these elements
                at = [phase[j] - chosen[j].first if chosen[j].first else phase[j] for j in phased]
                return made[chosen][(n, oc, *at, *(o // s.stride if s.stride > 1 else o for o, s in zip(out, spans)))]
            branches = [choose(i + 1, (*chosen, p)) for p in parts[i]]
            return branches[0] if len(branches) == 1 else te.if_then_else(phase[i] < parts[i][1].first, *branches)

        return choose(0, ())

    return te.compute(shape, element, name="interleaved", tag=tag.INJECTIVE)


def gathered(x: te.Tensor, w: te.Tensor, group: int, spans: Sequence[Span], extents: Sequence[int]) -> te.Tensor:
    """The transposed convolution at any dilation: every element asks each tap whether some x[i] meets it."""
    depth, outputs = w.shape[0] // group, w.shape[1]
    ic = te.reduce_axis((0, depth), name="ic")
    ks = [te.reduce_axis((0, s.kernel), name=f"k{i}") for i, s in enumerate(spans)]

    def element(n: Any, oc: Any, *out: Any) -> Any:
        channel = ic if group == 1 else (oc // outputs) * depth + ic
        steps = [o + s.before - k * s.dilation for o, k, s in zip(out, ks, spans)]
        meets = [c for t, s in zip(steps, spans) for c in (t >= 0, t < s.extent * s.stride)]
        meets += [(t % s.stride).equal(0) for t, s in zip(steps, spans) if s.stride > 1]
        value = wide(x[(n, channel, *(t // s.stride for t, s in zip(steps, spans)))])
        weight = w[(channel, oc % outputs if group > 1 else oc, *ks)]
        return te.sum(te.if_then_else(te.all(*meets), value, te.const(0, value.dtype)) * wide(weight), axis=[ic, *ks])

    shape = (x.shape[0], outputs * group, *extents)
    return te.compute(shape, element, name="conv_transpose", tag="conv_transpose", attrs={"groups": group})
