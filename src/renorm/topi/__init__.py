"""The tensor-operator inventory: NumPy-like operators written in te. Names, stage names too, are TVM's where it has
them."""

from typing import Any

from renorm.core.absent_names import missing
from renorm.te import tag
from renorm.topi import nn
from renorm.topi.broadcast import (
    add,
    divide,
    equal,
    floor_divide,
    floor_mod,
    greater,
    greater_equal,
    less,
    less_equal,
    logical_and,
    logical_or,
    maximum,
    minimum,
    mod,
    multiply,
    not_equal,
    power,
    subtract,
)  # fmt: skip
from renorm.topi.elementwise import (
    abs,
    acos,
    acosh,
    arange,
    asin,
    asinh,
    atan,
    atanh,
    cast,
    ceil,
    clip,
    cos,
    cosh,
    elementwise,
    elemwise_sum,
    erf,
    exp,
    floor,
    full,
    full_like,
    gelu,
    identity,
    isfinite,
    isinf,
    isnan,
    log,
    logical_not,
    negative,
    reciprocal,
    relu,
    round,
    rsqrt,
    sigmoid,
    sign,
    sin,
    sinh,
    softplus,
    sqrt,
    tan,
    tanh,
    trunc,
)  # fmt: skip
from renorm.topi.linear import matmul
from renorm.topi.reduction import all, any, argmax, argmin, max, mean, min, prod, sum
from renorm.topi.transform import (
    broadcast_to,
    concatenate,
    expand_dims,
    flip,
    gather_ranges,
    pad,
    reshape,
    split,
    squeeze,
    stack,
    strided_slice,
    take,
    tile,
    transpose,
    unsqueeze,
    where,
    where_any,
    within,
)  # fmt: skip

__all__ = [
    "abs", "acos", "acosh", "add", "all", "any", "arange", "argmax", "argmin", "asin", "asinh", "atan", "atanh",
    "broadcast_to", "cast", "ceil", "clip", "concatenate", "cos", "cosh", "divide", "elementwise", "elemwise_sum",
    "equal", "erf", "exp", "expand_dims", "flip", "floor", "floor_divide", "floor_mod", "full", "full_like",
    "gather_ranges", "gelu", "greater", "greater_equal", "identity", "isfinite", "isinf", "isnan", "less",
    "less_equal", "log", "logical_and", "logical_not", "logical_or", "matmul", "max", "maximum", "mean", "min",
    "minimum", "mod", "multiply", "negative", "nn", "not_equal", "pad", "power", "prod", "reciprocal", "relu",
    "reshape", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "softplus", "split", "sqrt", "squeeze", "stack",
    "strided_slice", "subtract", "sum", "tag", "take", "tan", "tanh", "tile", "transpose", "trunc", "unsqueeze",
    "where", "where_any", "within",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    raise missing("topi", name)
