"""One call of a layer, as the function sees it that reads it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.dims import Dim
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.core.shapes import normalize_axis
from renorm.frontends.building import Building
from renorm.frontends.keras.config import Described
from renorm.frontends.keras.weights import Array, Weights
from renorm.frontends.orders import First, Ordered, aligned
from renorm.graph.ir import Value


class Tensor(Ordered):
    """A result of a layer. mask: which time steps count, where that is said. is_told: whether the call says it."""

    mask: Value | None = None
    is_told: bool = False


Made = Value | First
Inner = Callable[[Described, Weights, Sequence[Any], Mapping[str, Any]], Any]


@dataclass(frozen=True)
class Call(Building):
    """layer: what is called. weights: its own. name: its path. inner: calls a layer that is part of this one.
    constants: those of the graph that are weights, by where their elements lie."""

    layer: Described
    weights: Weights
    name: str
    inner: Inner
    constants: dict[Any, tuple[Array, Value]]

    def option(self, name: str, default: Any = None) -> Any:
        return self.layer.config.get(name, default)

    def number(self, name: str, default: float | None = None) -> float:
        found = self.option(name, default)
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            raise InvalidModel(f"{name} is {found!r}, and no number")
        return found

    def count(self, name: str, default: int | None = None) -> int:
        found = self.number(name, default)
        if found != int(found):
            raise InvalidModel(f"{name} is {found!r}, and no whole number")
        return int(found)

    def counts(self, name: str, n: int, default: Any = 1) -> tuple[int, ...]:
        """Return a whole number for each of n axes, of which one may stand for all."""
        found = self.option(name, default)
        held = list(found) if isinstance(found, (list, tuple)) else [found]
        held = held * n if len(held) == 1 else held
        if len(held) != n or not all(isinstance(h, int) and h >= 0 for h in held):
            raise InvalidModel(f"{name} is {found!r}, expected {n} whole numbers")
        return tuple(held)

    def axes(self, name: str, rank: int, default: Any = -1) -> tuple[int, ...]:
        """Return axes counted from the front, in their order."""
        found = self.option(name, default)
        given = list(found) if isinstance(found, (list, tuple)) else [found]
        if not all(isinstance(a, int) for a in given):
            raise InvalidModel(f"{name} is {found!r}, and no axes")
        return tuple(sorted(normalize_axis(a, rank) for a in given))

    def choice(self, name: str, among: Sequence[str], default: str) -> str:
        found = str(self.option(name, default)).lower()
        if found not in among:
            raise UnsupportedOp(f"{name} is {found!r}, which renorm does not read", [f"known: {', '.join(among)}"])
        return found

    @property
    def dtype(self) -> str:
        """Return the dtype of the layer's variables, in which it is computed: of mixed precision the wider one."""
        return dtype_of(self.layer.config.get("dtype"))

    # --- operands -----------------------------------------------------------------------------------------------------

    @property
    def is_first(self) -> bool:
        """Return whether the layer's own data have channels first."""
        return self.choice("data_format", ("channels_last", "channels_first"), "channels_last") == "channels_first"

    def image(self, x: Tensor, n: int | None = None) -> Value:
        """Return an operand with channels first, which has n axes beside those of batch and channels."""
        if n is not None and x.value.rank != n + 2:
            raise InvalidModel(f"it is called with {x.value.type}, expected {n + 2} axes")
        return x.stored() if self.is_first else x.first()

    def of_image(self, y: Value) -> Made:
        """Return a result with channels first in the layer's own order."""
        return y if self.is_first else First(y)

    def each(self, x: Tensor, make: Callable[[Value], Value]) -> Made:
        """Return what is made of an operand element by element, in whichever order it is."""
        return First(make(x.value)) if x.is_first else make(x.value)

    def joined(self, tensors: Sequence[Tensor], make: Callable[..., Value]) -> Made:
        """Return what is made of operands that broadcast."""
        view = aligned(tensors)
        return view.result(make(*view.values))

    def own(self, *names: str) -> dict[str, Array]:
        """Return variables of the layer."""
        return self.weights.own(names)

    def constant(self, data: Array, name: str) -> Value:
        """Return an array of the layer as a constant."""
        return self._once(data, name, (), lambda: data)

    def weight(self, data: Array, name: str, perm: Sequence[int], shape: Sequence[int] | None = None) -> Value:
        """Return an array of the layer with its axes in the order of the graph's ops."""
        if data.ndim != len(perm):
            raise InvalidModel(f"{name} has shape {list(data.shape)}, expected {len(perm)} axes")
        turned = data.transpose(perm)
        made = turned.shape if shape is None else tuple(shape)
        return self._once(data, name, (*perm, *made), lambda: np.ascontiguousarray(turned.reshape(made)))

    def _once(self, data: Array, name: str, how: Sequence[int], make: Callable[[], Array]) -> Value:
        """Return a constant, the same one for all calls of a layer."""
        place = (data.__array_interface__["data"][0], data.dtype.str, data.shape, data.strides, *how)
        if place not in self.constants:  # with the array, so that no other one comes to lie there
            self.constants[place] = data, self.graph.constant(make(), f"{self.name}.{name}")
        return self.constants[place][1]

    def scalar(self, number: float, dtype: str) -> Value:
        return self.graph.constant(np.asarray(number, dtypes.numpy_dtype(dtype)), f"{self.name}.number")

    def zeros(self, shape: Sequence[Dim], dtype: str) -> Value:
        return self.expanded(self.scalar(0, dtype), tuple(shape))

    def held(self, x: Any) -> Tensor:
        """Return an argument as a tensor: an array, or a number, is a constant."""
        if isinstance(x, Tensor):
            return x
        return self.tensor(x if isinstance(x, Value) else self.constant(np.asarray(x), "constant"))

    def tensor(self, made: Made, mask: Value | None = None) -> Tensor:
        """Return what is made as a tensor. mask: which of its time steps count."""
        tensor = Tensor(self.graph, self.name)
        tensor.make(made)
        tensor.mask = mask
        return tensor

    def converted(self, x: Tensor, dtype: str) -> Tensor:
        """Return an operand with elements of that dtype."""
        return x if x.value.dtype == dtype else self.tensor(self.each(x, lambda v: self.cast(v, dtype)), x.mask)


def dtype_of(policy: Any) -> str:
    """Return the dtype of variables under a policy as Keras writes it. Raises UnsupportedOp for quantized ones."""
    if isinstance(policy, Mapping):
        kind, config = policy.get("class_name"), policy.get("config")
        if kind not in ("DTypePolicy", "Policy", "FloatDTypePolicy") or not isinstance(config, Mapping):
            raise UnsupportedOp(f"its dtype policy is {kind}", do="save the model before it is quantized")
        policy = config.get("name")
    name = str(policy or "float32").removeprefix("mixed_") if policy not in _MIXED else "float32"
    if name not in dtypes.BY_NAME:
        raise UnsupportedOp(f"its dtype is {name}, which renorm has no kernels for")
    return name


_MIXED = ("mixed_float16", "mixed_bfloat16")
