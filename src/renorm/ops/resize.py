"""Resize: nearest, linear or cubic interpolation along any axes; Upsample of older files is a part of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm import te
from renorm.core.dims import Dim, is_static
from renorm.core.dtypes import ALL, NUMBERS
from renorm.core.errors import OperandError
from renorm.core.shapes import normalize_axis
from renorm.expr.extents import same_extent
from renorm.graph.attributes import Bool, Float, Ints, String
from renorm.graph.channels import Carry, every
from renorm.graph.ir import Node
from renorm.graph.layout import Accepts
from renorm.graph.op import INJECTIVE, OUT_ELEMENTWISE_FUSABLE, REDUCTION, Fusion, OnnxNode, OpDef, Reject, Sample
from renorm.graph.types import Operand, TensorType, bf16, boolean, f16, f32, f64, i8, i32, i64, u8
from renorm.ops.shared import resampling
from renorm.ops.shared.positions import POSITIONS, Line, position_line, stays
from renorm.ops.shared.scales import resized
from renorm.te import tag


def _by(rule: str, **others: Any) -> dict[str, Any]:
    return {"coordinate_transformation_mode": rule, **others}


_CUT = _by("tf_crop_and_resize", extrapolation_value=300.0)


class Resize(OpDef):
    """y[o] = x interpolated at the position of o, axis by axis; extents are floor(extent * scale), or `sizes`.

    coordinate_transformation_mode says where o lies in x. scales and sizes are for `axes` (all axes by default), roi
    holds all starts, then all ends, in parts of an extent. linear and cubic: exclude_outside leaves out what is not
    in x, antialias widens the filter where y has fewer elements; tf_crop_and_resize puts extrapolation_value outside.
    Means of integers are rounded, halves to even, and cut to the range: ONNX's text is silent, its evaluator does so.
    """

    signature = "x: T[...], roi!?: R[...], scales!?: f32[...], sizes!?: i64[...] -> y: T[...]"
    types = {"T": ALL, "R": ("float32", "float64", "float16")}
    onnx, onnx_changed = {"Resize": 10, "Upsample": 1}, {"Resize": "its operands and its positions changed at 11"}
    fusion = INJECTIVE
    scheduled_as = "reduction"
    mode = String("nearest", among=("nearest", "linear", "cubic"))
    coordinate_transformation_mode = String("half_pixel", among=POSITIONS)
    nearest_mode = String("round_prefer_floor", among=resampling.NEAREST)
    cubic_coeff_a = Float(-0.75)
    exclude_outside = Bool(False)
    antialias = Bool(False)
    extrapolation_value = Float(0.0)
    keep_aspect_ratio_policy = String("stretch", among=("stretch", "not_larger", "not_smaller"))
    axes = Ints(None)

    def infer(self, x: Operand, roi: Any, scales: Operand | None, sizes: Operand | None) -> tuple[Dim | None, ...]:
        given = [p for p in (scales, sizes) if p is not None and p.shape != (0,)]
        axes = self._axes(x.rank)
        if len(given) != 1:
            raise OperandError(f"resize({x}): needs either scales or sizes, not {'both' if given else 'none'}")
        if given[0].shape != (len(axes),) and is_static(given[0].shape):
            raise OperandError(f"resize({x}, {given[0]}): needs one element for each of {len(axes)} axes")
        if self.mode != "nearest" and x.dtype not in NUMBERS:
            raise OperandError(f"resize({x}): {self.mode} interpolation is defined over numbers only")
        if (known := given[0].known) is None:
            return tuple(None if a in axes else d for a, d in enumerate(x.shape))
        pair = (known, None) if given[0] is scales else (None, known)
        return tuple(resized(x.shape, axes, *pair, self.keep_aspect_ratio_policy)[0])

    def _axes(self, rank: int) -> list[int]:
        return [normalize_axis(a, rank) for a in (range(rank) if self.axes is None else self.axes)]

    def _lines(self, shape: Sequence[int], roi: Any, scales: Any, sizes: Any) -> dict[int, Line]:
        """Positions along the axes that change."""
        scales, sizes, roi = (None if v is None or not v.size else v for v in (scales, sizes, roi))
        axes, found = self._axes(len(shape)), dict[int, Line]()
        extents: list[Any]  # of a tensor expression: open ones count as ints
        extents, factors = resized(shape, axes, scales, sizes, self.keep_aspect_ratio_policy)
        for k, (a, factor, length) in enumerate((a, factors[a], extents[a]) for a in axes):
            if length is None or (factor is None and self.antialias):
                raise OperandError(f"resize: axis {a} of {shape[a]} elements must be known", do="give shapes=")
            part = None if roi is None else (float(roi[k]), float(roi[len(axes) + k]))
            if not same_extent(shape[a], 0):
                found[a] = position_line(self.coordinate_transformation_mode, shape[a], length, factor, part)
        return {a: line for a, line in found.items() if not line.is_identity()}

    def fusion_of(self, operands: Sequence[TensorType | None]) -> Fusion:
        summed = REDUCTION if self.antialias else OUT_ELEMENTWISE_FUSABLE  # nobody computes a sum several times over
        return INJECTIVE if self.mode == "nearest" else summed

    def propagate_channels(self, node: Node, index: int, axis: int) -> Carry | None:
        """Along an axis that stays what it is; weights of an interpolation along others add up to 1."""
        x, _, *given = node.inputs
        by, to = (None if v is None or v.shape == (0,) else v.data for v in given)
        rule, policy = self.coordinate_transformation_mode, self.keep_aspect_ratio_policy
        kept = not index and x is not None and stays(x.shape, axis, self._axes(x.rank), by, to, rule, policy)
        return every(node.output.shape[axis], axis) if kept else None

    def in_blocks(self, node: Node, index: int | None, lanes: int) -> Accepts:
        return Accepts.ALIKE

    def compute(self, x: te.Tensor, roi: Any, scales: Any, sizes: Any) -> te.Tensor:
        lines, rule = self._lines(x.shape, roi, scales, sizes), self.nearest_mode
        if self.mode == "nearest" or not lines:
            shape = tuple(lines[a].length if a in lines else d for a, d in enumerate(x.shape))

            def element(*index: Any) -> Any:
                return x[tuple(resampling.nearest(lines[a], rule, i) if a in lines else i for a, i in enumerate(index))]

            y = te.compute(shape, element, name="resize", tag=tag.INJECTIVE)
        else:
            y, radius = x, 1 if self.mode == "linear" else 2
            weight = resampling.linear_weight if radius == 1 else resampling.cubic_weight(self.cubic_coeff_a)
            for a, p in lines.items():
                y = resampling.interpolated(y, a, p, radius, weight, self.antialias, self.exclude_outside)
        if self.coordinate_transformation_mode == "tf_crop_and_resize":
            y = resampling.cropped(y, lines, self.extrapolation_value)
        return resampling.stored(y, x.dtype)

    def reference(self, x: Any, roi: Any, scales: Any, sizes: Any) -> Any:
        y, outside = x, np.zeros((), bool)
        for a, p in self._lines(x.shape, roi, scales, sizes).items():
            positions = np.array([float(p.at(o)) for o in range(p.length)])
            if self.mode == "nearest":
                matrix = resampling.nearest_matrix(positions, p, self.nearest_mode)
            else:
                a_cubic = None if self.mode == "linear" else self.cubic_coeff_a
                matrix = resampling.mean_matrix(positions, p, a_cubic, self.antialias, self.exclude_outside)
            y = resampling.weighted(matrix, y, a)
            beyond = (positions < 0) | (positions > p.extent - 1)
            outside = outside | beyond.reshape(-1, *[1] * (x.ndim - 1 - a))
        if self.coordinate_transformation_mode == "tf_crop_and_resize":
            y = np.where(outside, self.extrapolation_value, y)
        return resampling.stored_array(y, x.dtype)

    @classmethod
    def from_onnx(cls, node: OnnxNode) -> Any:
        """Before 11 positions are asymmetric, fractions go (up where y shrinks); before 9 scales are in attributes."""
        if node.opset >= 11:
            return super().from_onnx(node)
        x, *rest = node.operands
        scales: Any = rest[0] if rest else node.attribute("scales")
        if scales is None:  # opset 1
            scales = [1.0, 1.0, node.attribute("height_scale", 1.0), node.attribute("width_scale", 1.0)]
        scales = np.asarray(scales, np.float32) if isinstance(scales, list) else scales
        mode = {"bilinear": "linear"}.get(node.attribute("mode", "nearest"), node.attribute("mode", "nearest"))
        return cls(mode=mode, nearest_mode="ceil_if_shrunk", **_by("asymmetric"))(x, None, scales, None, name=node.name)

    def to_onnx(self, node: Node, opset: int) -> tuple[str, dict[str, Any], list[Any]] | None:
        x, roi, scales, sizes = node.inputs
        is_old = self.coordinate_transformation_mode == "asymmetric" and self.nearest_mode == "ceil_if_shrunk"
        if opset < 11:
            fits = is_old and sizes is None
            if fits and opset < 9:
                known = None if scales is None else scales.data
                return None if known is None else ("Upsample", {"mode": self.mode, "scales": known.tolist()}, [x])
            return ("Resize" if opset == 10 else "Upsample", {"mode": self.mode}, [x, scales]) if fits else None
        if self.nearest_mode == "ceil_if_shrunk" and self.mode == "nearest":
            return None
        _, attributes, _ = super().to_onnx(node, opset) or ("", {}, [])
        return "Resize", attributes, [x, *(np.zeros(0, np.float32) if v is None else v for v in (roi, scales)), sizes]

    samples = [
        Sample(f32[1, 2, 3, 4], None, f32[4].of([1, 1, 2, 2])),
        Sample(f32[1, 2, 5, 4], None, f32[4].of([1, 1, 0.6, 2.3]), nearest_mode="floor"),
        Sample(f32[2, 5, 4], None, None, i64[3].of([2, 3, 7]), nearest_mode="round_prefer_ceil"),
        Sample(f32[3, 4], None, f32[2].of([2, 1.5]), nearest_mode="ceil", **_by("asymmetric")),
        Sample(f32[6, 4], None, f32[2].of([0.5, 3]), nearest_mode="ceil_if_shrunk", **_by("asymmetric")),
        Sample(f16[3, 4], None, None, i64[2].of([5, 7]), **_by("tf_half_pixel_for_nn")),
        Sample(f32[2, 3, 4], None, None, i64[2].of([5, 9]), mode="linear", axes=(0, -1)),
        Sample(f32[3, 4], None, None, i64[2].of([1, 7]), mode="linear", **_by("align_corners")),
        Sample(i32[3, 4].between(0, 2e9), None, None, i64[2].of([1, 7]), mode="linear", **_by("pytorch_half_pixel")),
        Sample(f32[5, 7], None, f32[2].of([1.3, 0.7]), mode="linear", **_by("half_pixel_symmetric")),
        Sample(f32[3, 4, 3], None, f32[3].of([2, 2, 2]), mode="linear"),
        Sample(f32[5, 4], None, f32[2].of([0.8, 2]), mode="cubic", cubic_coeff_a=-0.5, exclude_outside=True),
        Sample(f32[9, 4], None, f32[2].of([0.4, 0.9]), mode="cubic", antialias=True, exclude_outside=True),
        Sample(u8[4, 5].between(0, 255), f32[2].of([0.2, 1.1]), None, i64[1].of([6]), mode="linear", axes=(1,), **_CUT),
        Sample(f32[4, 6], None, None, i64[2].of([7, 8]), keep_aspect_ratio_policy="not_larger"),
        Sample(f32[4, 6], None, None, i64[2].of([7, 8]), keep_aspect_ratio_policy="not_smaller", mode="linear"),
        Sample(f32[0, 3], None, f32[2].of([1, 2]), mode="linear"),
        Sample(f32[2, 3], None, f32[2].of([2, 0.3]), mode="linear"),
        Sample(f64[5, 4], None, f32[2].of([1.7, 2]), mode="cubic"),
        Sample(bf16[3, 4], None, f32[2].of([2, 2]), mode="linear"),
        Sample(u8[3, 4], None, f32[2].of([2, 0.5])),
        Sample(u8[2, 3, 5, 4].between(0, 255), None, f32[2].of([0.6, 1.5]), mode="linear", axes=(2, 3)),
        Sample(i8[5, 4].of([-128, 127] * 10), None, f32[2].of([2, 1.7]), mode="cubic", exclude_outside=True),
        Sample(i8[9, 7].between(-128, 127), None, f32[2].of([0.3, 0.6]), mode="linear", antialias=True),
        Sample(i8[4], f32[2].of([0.4, 1.1]), None, i64[1].of([5]), **_CUT),
    ]
    rejects = [
        Reject(f32[3, 4], because="needs either scales or sizes, not none"),
        Reject(f32[3, 4], None, f32[2].of([2, 2]), i64[2].of([2, 2]), because="not both"),
        Reject(f32[3, 4], None, f32[1].of([2]), because="needs one element for each of 2 axes"),
        Reject(f32[3, 4], None, f32[2].of([2, -1]), because="must be positive"),
        Reject(boolean[3, 4], None, f32[2].of([2, 2]), mode="linear", because="defined over numbers only"),
        Reject(f32[3, 4], None, f32[2].of([2, 2]), axes=(0, 2), because="axis 2 is outside"),
    ]
