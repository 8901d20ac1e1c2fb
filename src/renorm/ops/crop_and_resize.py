"""CropAndResize of ONNX Runtime: boxes of images, each resized to the same plane."""

from __future__ import annotations

from typing import Any

import numpy as np

from renorm.core.dtypes import numpy_dtype
from renorm.core.errors import OperandError
from renorm.graph.attributes import Float, String
from renorm.graph.op import OnnxNode
from renorm.ops.shared.composite import Composite, apply


class CropAndResize(Composite):
    """y[r, :, i, j] = image[batch[r]] at (y1 + i * (y2 - y1) / (rows - 1)) * (height - 1), likewise for columns, or in
    the middle of a box where there is one row; extrapolation_value outside of the image. Boxes are [y1, x1, y2, x2]."""

    takes = "x, boxes, batch, crop_size"
    onnx = {"com.microsoft::CropAndResize": 1}
    mode = String("bilinear", among=("bilinear", "nearest"))
    extrapolation_value = Float(0.0)

    def made(self, node: OnnxNode, *operands: Any) -> Any:
        x, boxes, batch, crop_size = operands
        known = crop_size.data if crop_size.data is not None else crop_size.known
        if known is None or len(known) != 2 or not all(isinstance(n, (int, np.integer)) for n in known):
            raise OperandError(f"CropAndResize: crop_size {crop_size.type} is to be two known numbers")
        if x.rank != 4:
            raise OperandError(f"CropAndResize: {x.type} is not [N, C, H, W]")
        images = apply("gather", x, batch)
        sides = apply("split", boxes, axis=1, num_outputs=4)  # [R, 1] each
        places = [self._places(sides[i], sides[i + 2], int(n)) for i, n in enumerate(known)]  # of 0 to 1: [R, rows]
        dtype = numpy_dtype(boxes.dtype)
        zero, one, two = (np.asarray(n, dtype) for n in range(3))
        inside = [
            apply("logical_and", apply("greater_or_equal", p, zero), apply("less_or_equal", p, one)) for p in places
        ]
        inside = [apply("unsqueeze", p, axes=(axis,)) for p, axis in zip(inside, (2, 1))]
        if self.mode == "nearest":
            places = [self._nearest(p, images, axis) for p, axis in zip(places, (2, 3))]
        rows, columns = (apply("sub", apply("mul", p, two), one) for p in places)
        shape = np.asarray([1, *(int(n) for n in known)])
        spread = [apply("expand", apply("unsqueeze", p, axes=(a,)), shape) for p, a in ((columns, 1), (rows, 2))]
        grid = apply("concat", [apply("unsqueeze", p, axes=(3,)) for p in spread], axis=3)
        mode = "nearest" if self.mode == "nearest" else "linear"
        y = apply("grid_sample", images, grid, mode=mode, padding_mode="border", align_corners=True)
        taken = apply("unsqueeze", apply("logical_and", *inside), axes=(1,))
        return apply("where", taken, y, np.asarray(self.extrapolation_value, numpy_dtype(x.dtype)))

    def _places(self, first: Any, last: Any, count: int) -> Any:
        """Return [R, count] places between two sides of boxes."""
        dtype = numpy_dtype(first.dtype)
        if count == 1:
            return apply("mul", apply("add", first, last), np.asarray(0.5, dtype))
        step = apply("div", apply("sub", last, first), np.asarray(count - 1, dtype))
        return apply("add", first, apply("mul", step, np.arange(count).astype(dtype)))

    def _nearest(self, places: Any, images: Any, axis: int) -> Any:
        """Return the places of the nearest pixels, of two the farther one."""
        extent, dtype = images.shape[axis], numpy_dtype(places.dtype)
        if not isinstance(extent, int):
            raise OperandError(f"CropAndResize: the nearest of {extent} pixels is not read")
        most = np.asarray(max(extent - 1, 1), dtype)
        pixels = apply("floor", apply("add", apply("mul", places, most), np.asarray(0.5, dtype)))
        return apply("div", pixels, most)
