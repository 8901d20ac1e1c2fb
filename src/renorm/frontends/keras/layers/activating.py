"""Activations: functions that layers apply to their results, and layers that are one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from renorm import ops
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.frontends.keras.call import Call, Made, Tensor
from renorm.frontends.keras.layers.table import reads
from renorm.frontends.orders import First, to_first
from renorm.graph.ir import Value

Options = Mapping[str, Any]

_ALONG = ("softmax", "log_softmax", "glu")  # those that look along an axis


def activated(c: Call, y: Made | Tensor, key: str = "activation") -> Made:
    """Return a result after the activation that the layer's config names."""
    return activation(c, y, c.option(key))


def activation(c: Call, y: Made | Tensor, given: Any) -> Made:
    """Return a result after an activation as a config has it: a name, a function or a layer."""
    return applied(c, y, *_named(given))


def applied(c: Call, y: Made | Tensor, name: str, options: Options) -> Made:
    """Return a result after the activation of that name."""
    is_first = isinstance(y, First) or (isinstance(y, Tensor) and y.is_first)
    x = y if isinstance(y, Value) else y.value
    if name in _ALONG:
        made = _along(c, name, x, int(options.get("axis", -1)), is_first)
    else:
        made = _one_by_one(c, name, x, options)
    return First(made) if is_first else made


def _named(given: Any) -> tuple[str, Mapping[str, Any]]:
    if given is None:
        return "linear", {}
    if isinstance(given, str):
        return given, {}
    if isinstance(given, Mapping):
        kind, config = given.get("class_name"), given.get("config")
        module = str(given.get("module") or "keras")
        if kind == "function" and isinstance(config, str) and module.partition(".")[0] in ("keras", "builtins"):
            return config, {}
        if kind in _LAYERS and isinstance(config, Mapping):
            return _LAYERS[kind], config
    raise UnsupportedOp(
        "its activation is a function of the user's own, which is not run",
        [str(given)[:100]],
        "say what the layer computes: renorm.register_keras_layer(its name, function)",
    )


_LAYERS = {
    "ReLU": "relu", "LeakyReLU": "leaky_relu", "ELU": "elu", "Softmax": "softmax", "Mish": "mish",
    "HardSigmoid": "hard_sigmoid", "HardSilu": "hard_silu",
}  # fmt: skip


def _along(c: Call, name: str, x: Value, axis: int, is_first: bool) -> Value:
    """Return an activation that looks along an axis of the format."""
    at = to_first(x.rank).index(axis % x.rank) if is_first else axis % x.rank
    if name == "glu":
        n = x.shape[at]
        if not isinstance(n, int) or n % 2:
            raise InvalidModel(f"glu halves {n} elements")
        return ops.mul(c.sliced(x, at, 0, n // 2), ops.sigmoid(c.sliced(x, at, n // 2, n)))
    return (ops.softmax if name == "softmax" else ops.log_softmax)(x, axis=at)


# --- element by element -----------------------------------------------------------------------------------------------


def relu(c: Call, x: Value, slope: float = 0.0, most: float | None = None, least: float = 0.0) -> Value:
    """Return x where it is at least `least`, and at most `most`; slope * (x - least) below."""
    if not slope and not least:
        return ops.relu(x) if most is None else ops.clip(x, c.scalar(0, x.dtype), c.scalar(most, x.dtype))
    if not least and most is None:
        return ops.leaky_relu(x, alpha=slope)
    bound, zero = c.scalar(least, x.dtype), c.scalar(0, x.dtype)
    above = ops.where(ops.greater(x, bound), x, zero)
    above = above if most is None else ops.clip(above, zero, c.scalar(most, x.dtype))
    if not slope:
        return above
    return ops.sub(above, ops.mul(ops.relu(ops.sub(bound, x)), c.scalar(slope, x.dtype)))


def _clipped(c: Call, x: Value, low: float, high: float) -> Value:
    return ops.clip(x, c.scalar(low, x.dtype), c.scalar(high, x.dtype))


def _sparse_plus(c: Call, x: Value) -> Value:
    one = c.scalar(1, x.dtype)
    curve = ops.mul(ops.mul(ops.add(x, one), ops.add(x, one)), c.scalar(0.25, x.dtype))
    middle = ops.where(ops.greater(x, c.scalar(-1, x.dtype)), curve, c.scalar(0, x.dtype))
    return ops.where(ops.less(x, one), middle, x)


def _squareplus(c: Call, x: Value, b: float) -> Value:
    root = ops.sqrt(ops.add(ops.mul(x, x), c.scalar(b, x.dtype)))
    return ops.mul(ops.add(x, root), c.scalar(0.5, x.dtype))


_FUNCTIONS: Mapping[str, Callable[[Call, Value, Options], Value]] = {
    "linear": lambda c, x, o: x,
    "relu": lambda c, x, o: relu(c, x, o.get("negative_slope") or 0.0, o.get("max_value"), o.get("threshold") or 0.0),
    "relu6": lambda c, x, o: relu(c, x, most=6.0),
    "leaky_relu": lambda c, x, o: ops.leaky_relu(x, alpha=float(o.get("negative_slope", o.get("alpha", 0.2)))),
    "elu": lambda c, x, o: ops.elu(x, alpha=float(o.get("alpha", 1.0))),
    "celu": lambda c, x, o: ops.celu(x, alpha=float(o.get("alpha", 1.0))),
    "selu": lambda c, x, o: ops.selu(x),
    "softplus": lambda c, x, o: ops.softplus(x),
    "softsign": lambda c, x, o: ops.softsign(x),
    "squareplus": lambda c, x, o: _squareplus(c, x, o.get("b", 4)),
    "soft_shrink": lambda c, x, o: ops.shrink(x, lambd=o.get("threshold", 0.5), bias=o.get("threshold", 0.5)),
    "hard_shrink": lambda c, x, o: ops.shrink(x, lambd=o.get("threshold", 0.5), bias=0.0),
    "sparse_plus": lambda c, x, o: _sparse_plus(c, x),
    "silu": lambda c, x, o: ops.swish(x),
    "gelu": lambda c, x, o: ops.gelu(x, approximate="tanh" if o.get("approximate") else "none"),
    "tanh": lambda c, x, o: ops.tanh(x),
    "tanh_shrink": lambda c, x, o: ops.sub(x, ops.tanh(x)),
    "hard_tanh": lambda c, x, o: _clipped(c, x, -1.0, 1.0),
    "sigmoid": lambda c, x, o: ops.sigmoid(x),
    "log_sigmoid": lambda c, x, o: ops.neg(ops.softplus(ops.neg(x))),
    "sparse_sigmoid": lambda c, x, o: ops.hard_sigmoid(x, alpha=0.5, beta=0.5),
    "hard_sigmoid": lambda c, x, o: ops.hard_sigmoid(x, alpha=1 / 6, beta=0.5),
    "hard_silu": lambda c, x, o: ops.hard_swish(x),
    "exponential": lambda c, x, o: ops.exp(x),
    "mish": lambda c, x, o: ops.mish(x),
}
_ALIASES = {"swish": "silu", "hard_swish": "hard_silu", "exp": "exponential"}


def _one_by_one(c: Call, name: str, x: Value, options: Options) -> Value:
    """Return the activation of that name, element by element. Raises UnsupportedOp."""
    found = _FUNCTIONS.get(_ALIASES.get(name, name))
    if found is None:
        raise UnsupportedOp(f"renorm does not read the activation {name}")
    return found(c, x, options)


# --- layers -----------------------------------------------------------------------------------------------------------


@reads("Activation", keeps_mask=True)
def _activation(c: Call, x: Tensor) -> Any:
    return activated(c, x)


@reads("ReLU", "LeakyReLU", "ELU", keeps_mask=True)
def _layer(c: Call, x: Tensor) -> Any:
    config = dict(c.layer.config)
    if c.layer.kind == "LeakyReLU":
        config.setdefault("negative_slope", config.get("alpha", 0.3))
    return activation(c, x, {"class_name": c.layer.kind, "config": config})


@reads("PReLU", keeps_mask=True)
def _prelu(c: Call, x: Tensor) -> Any:
    return c.joined([x, c.held(c.own("alpha")["alpha"])], ops.prelu)


@reads("Softmax", keeps_mask=True)
def _softmax(c: Call, x: Tensor) -> Any:
    if x.mask is not None:
        raise UnsupportedOp("a softmax with a mask", do="mask the scores before it")
    axes = c.axes("axis", x.value.rank)
    if len(axes) == 1:
        return activation(c, x, {"class_name": "Softmax", "config": {"axis": axes[0]}})
    value = x.stored()
    if axes != tuple(range(value.rank - len(axes), value.rank)):
        raise UnsupportedOp(f"a softmax over axes {list(axes)}, which are not the last ones")
    rest = value.shape[: axes[0]]
    size = int(np.prod([n for n in value.shape[axes[0] :] if isinstance(n, int)]))
    if not all(isinstance(n, int) for n in value.shape[axes[0] :]):
        raise UnsupportedOp("a softmax over several axes, of which extents are open")
    return c.reshaped(ops.softmax(c.reshaped(value, (*rest, size)), axis=-1), value.shape)
