"""Tandem as a target: which groups it runs, and what makes code of them."""

from __future__ import annotations

from typing import Any

from renorm import ops
from renorm.core.target import Target
from renorm.targets.tandem.generate import codegen


def conv(x: Any, w: Any, b: Any) -> Any:
    return ops.conv(x, w, b)


def conv_relu(x: Any, w: Any, b: Any) -> Any:
    return ops.relu(conv(x, w, b))


def conv_norm(x: Any, w: Any, b: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    return ops.batch_norm(conv(x, w, b), scale, bias, mean, var)


def conv_norm_relu(x: Any, w: Any, b: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
    return ops.relu(conv_norm(x, w, b, scale, bias, mean, var))


TARGET = Target("tandem", base="llvm", supports=(conv, conv_relu, conv_norm, conv_norm_relu), codegen=codegen)
