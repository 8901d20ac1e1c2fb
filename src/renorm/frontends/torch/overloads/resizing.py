"""Overloads that resize images, or read them at positions of a grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.dims import Dim, is_static, static
from renorm.core.dtypes import numpy_dtype
from renorm.core.errors import UnsupportedOp
from renorm.frontends.torch.call import Call
from renorm.frontends.torch.overloads.table import reads
from renorm.graph.ir import Value


def _resized(c: Call, x: Value, scales: Sequence[float | None] | None, **how: Any) -> Value:
    """Return x with the extents of the result. scales: what positions are computed with, where they are given; else
    the quotients of extents are."""
    spatial = tuple(range(2, x.rank))
    sizes: Sequence[Dim] = c.shape[2:]
    if tuple(sizes) == x.shape[2:] and not scales:
        return x
    given = [s for s in scales or () if s is not None]
    if given and how.get("antialias") and how["coordinate_transformation_mode"] == "align_corners":
        raise UnsupportedOp("a scale is given beside align_corners and antialias, where PyTorch's filter has its own")
    for n, e, s in zip(sizes, x.shape[2:], given):
        if isinstance(n, int) and isinstance(e, int) and n != math.floor(e * s):
            raise UnsupportedOp(f"{e} elements become {n}, at positions that are {s} apart")
    is_exact = all(
        isinstance(n, int) and isinstance(e, int) and n == e * s for n, e, s in zip(sizes, x.shape[2:], given)
    )
    if len(given) == len(spatial) and (not is_exact or not all(isinstance(n, int) for n in sizes)):
        factors = np.array(given, np.float32)
        return ops.resize(x, None, factors, axes=spatial, **how)
    return ops.resize(x, None, None, c.integers(sizes), axes=spatial, **how)


def _positions(align_corners: bool) -> str:
    return "align_corners" if align_corners else "half_pixel"


def _vector(mode: str, is_aligned: bool = True, **how: Any) -> Any:
    """Of the overloads with lists: (x, sizes, align_corners, scales), or without align_corners."""

    def read(c: Call, x: Value, sizes: Any, *given: Any) -> Any:
        align = bool(given[0]) if is_aligned else False
        scales = given[1 if is_aligned else 0] if len(given) > (1 if is_aligned else 0) else None
        rule = how.get("coordinate_transformation_mode", _positions(align))
        return _resized(c, x, scales, mode=mode, **{**how, "coordinate_transformation_mode": rule})

    return read


def _plain(mode: str, is_aligned: bool = True, **how: Any) -> Any:
    """Of the overloads with a number for each axis: (x, sizes, align_corners, scale, scale, ...)."""

    def read(c: Call, x: Value, sizes: Any, *given: Any) -> Any:
        align = bool(given[0]) if is_aligned else False
        scales = list(given[1:] if is_aligned else given)
        rule = how.get("coordinate_transformation_mode", _positions(align))
        known = scales if scales and None not in scales else None
        return _resized(c, x, known, mode=mode, **{**how, "coordinate_transformation_mode": rule})

    return read


_NEAREST: dict[str, Any] = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
_EXACT: dict[str, Any] = {"coordinate_transformation_mode": "half_pixel", "nearest_mode": "round_prefer_ceil"}
_CUBIC: dict[str, Any] = {"cubic_coeff_a": -0.75}
_SMOOTH: dict[str, Any] = {"antialias": True, "exclude_outside": True}

for _name, _mode, _is_aligned, _how in (
    *((f"upsample_nearest{n}d", "nearest", False, _NEAREST) for n in (1, 2, 3)),
    *((f"_upsample_nearest_exact{n}d", "nearest", False, _EXACT) for n in (1, 2, 3)),
    ("upsample_linear1d", "linear", True, {}),
    ("upsample_bilinear2d", "linear", True, {}),
    ("upsample_trilinear3d", "linear", True, {}),
    ("upsample_bicubic2d", "cubic", True, _CUBIC),
    ("_upsample_bilinear2d_aa", "linear", True, _SMOOTH),
    ("_upsample_bicubic2d_aa", "cubic", True, {**_SMOOTH, "cubic_coeff_a": -0.5}),
):
    reads(f"{_name}.vec")(_vector(_mode, _is_aligned, **_how))
    reads(f"{_name}.default")(_plain(_mode, _is_aligned, **_how))


_MODES, _OUTSIDE = ("linear", "nearest", "cubic"), ("zeros", "border", "reflection")  # by PyTorch's numbers


@reads("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")
def _grid_sampler(
    c: Call, x: Value, grid: Value, interpolation_mode: int, padding_mode: int, align_corners: bool
) -> Any:
    how = {"mode": _MODES[interpolation_mode], "padding_mode": _OUTSIDE[padding_mode]}
    return ops.grid_sample(x, grid, align_corners=align_corners, **how)


@reads("affine_grid_generator")
def _affine_grid(c: Call, theta: Value, size: Sequence[Dim], align_corners: bool) -> Any:
    """Each position of an image, as grid_sampler counts, times a matrix for each image."""
    if not is_static(size[2:]):
        raise UnsupportedOp("a grid of positions has open extents")
    spatial = static(size[2:])
    steps = [np.linspace(-1, 1, n) if n > 1 else np.zeros(1) for n in spatial]
    steps = steps if align_corners else [s * (n - 1) / n for s, n in zip(steps, spatial)]
    places = np.meshgrid(*steps, indexing="ij")[::-1]  # the last axis first
    held = np.stack([*places, np.ones_like(places[0])], axis=-1).reshape(-1, len(spatial) + 1)
    given = c.graph.constant(held.astype(numpy_dtype(theta.dtype)), "positions")
    made = ops.matmul(given, ops.transpose(theta, perm=(0, 2, 1)))
    return c.reshaped(made, (size[0], *spatial, len(spatial)))
