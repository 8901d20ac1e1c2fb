"""torchvision's operators in Python. Its wheels are built for one build of PyTorch, and refuse to be imported beside
another; what its networks need of their operators is a few lines, and how they become ONNX it defines without them."""

# the package is installed for this alone
# pyright: reportMissingImports=false

from __future__ import annotations

import sys
import types
from importlib.util import find_spec
from typing import Any

import torch


def with_operators() -> None:
    """Define torchvision's operators in Python, for all that imports it from here on."""
    if "torchvision" in sys.modules or find_spec("torchvision") is None:
        return
    name = "torchvision._meta_registrations"  # gives shapes to operators that are not there
    sys.modules[name] = types.ModuleType(name)
    library = torch.library.Library("torchvision", "FRAGMENT")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define(
        "roi_align(Tensor input, Tensor rois, float spatial_scale, int pooled_height, int pooled_width, "
        "int sampling_ratio, bool aligned) -> Tensor"
    )
    from torchvision import extension, ops

    align: Any = sys.modules[ops.roi_align.__module__]
    library.impl("nms", _nms, "CPU")
    library.impl("roi_align", align._roi_align, "CPU")
    extension._has_ops = _has_operators
    align._has_ops = _has_operators
    _LIBRARIES.append(library)


_LIBRARIES: list[Any] = []  # a library that is collected takes its operators with it


def _has_operators() -> bool:
    """Say that operators are there, in words that TorchScript reads."""
    return True


def _nms(boxes: torch.Tensor, scores: torch.Tensor, most: float) -> torch.Tensor:
    """Return the indices of boxes that overlap no better one by more than `most`, best first."""
    left, kept = scores.argsort(descending=True, stable=True), list[int]()
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    while left.numel():
        best, left = int(left[0]), left[1:]
        kept.append(best)
        low = torch.maximum(boxes[best, :2], boxes[left, :2])
        high = torch.minimum(boxes[best, 2:], boxes[left, 2:])
        shared = (high - low).clamp(min=0).prod(1)
        left = left[shared / (areas[best] + areas[left] - shared) <= most]
    return torch.tensor(kept, dtype=torch.int64)
