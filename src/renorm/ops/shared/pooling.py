"""The base of pools, beside their windows: which padding they take, where ceil_mode ends, and sums over windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from renorm import te
from renorm.core.errors import OperandError
from renorm.ops.shared.precision import wide
from renorm.ops.shared.window import Span, Windowed, pad


def check_padding(op: Windowed, kernel: Sequence[int]) -> None:
    """Raises OperandError where padding is as wide as a window: its result would come from no element at all."""
    for axis, ((before, after), k, d) in enumerate(
        zip(op.explicit_pads(len(kernel)), kernel, op.along("dilations", len(kernel)), strict=True)
    ):
        if max(before, after) > d * (k - 1):
            raise OperandError(
                f"{op.name}: axis {axis + 2} is padded by {before} and {after} for a window of {d * (k - 1) + 1}",
                ["a window could lie in padding alone"],
                "pad by less than the window",
            )


def covering(spans: Sequence[Span], counts: Sequence[int]) -> tuple[list[int], list[int]]:
    """Padding (before, after) per axis that reaches to the end of the last of `counts` windows; ceil_mode lets them
    stand out."""
    ends = [(n - 1) * s.stride + s.reach - s.before - s.extent for n, s in zip(counts, spans, strict=True)]
    return [s.before for s in spans], [max(s.after, end) for s, end in zip(spans, ends)]


def window_sum(x: te.Tensor, spans: Sequence[Span], counts: Sequence[int], term: Callable[[Any], Any]) -> te.Tensor:
    """The stage of sums of `term` over windows of `x`, in the dtype that arithmetic runs in; outside of x, term sees
    0."""
    data = pad(x, *covering(spans, counts))
    ks = [te.reduce_axis((0, s.kernel), name=f"k{i}") for i, s in enumerate(spans)]

    def element(n: Any, c: Any, *out: Any) -> Any:
        at = [o * s.stride + k * s.dilation for o, k, s in zip(out, ks, spans)]
        return te.sum(term(wide(data[(n, c, *at)])), axis=ks)

    return te.compute((*x.shape[:2], *counts), element, name="window_sum", tag="pool")
