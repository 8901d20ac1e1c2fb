"""Cells of recurrent networks: which gates they have, and the functions that ONNX names for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from renorm.core.errors import OperandError, suggest
from renorm.expr.nodes import Expr, call
from renorm.graph import registry
from renorm.graph.attributes import Attribute

GATES = {"lstm": 4, "gru": 3, "rnn": 1}  # in ONNX's order: input, output, forget, cell; update, reset, hidden
STATES = {"lstm": 2, "gru": 1, "rnn": 1}  # h, and c
_DEFAULTS = {"lstm": ("Sigmoid", "Tanh", "Tanh"), "gru": ("Sigmoid", "Tanh"), "rnn": ("Tanh",)}
_OPS = {
    "relu": "relu", "tanh": "tanh", "sigmoid": "sigmoid", "leakyrelu": "leaky_relu", "softplus": "softplus",
    "thresholdedrelu": "thresholded_relu", "hardsigmoid": "hard_sigmoid", "elu": "elu", "softsign": "softsign",
}  # fmt: skip


class Function(Protocol):
    """A function of a gate: a scalar formula, and the same over arrays."""

    def element(self, x: Expr, /) -> Expr: ...

    def numpy(self, x: Any, /) -> Any: ...


@dataclass(frozen=True)
class Affine:
    """alpha * x + beta."""

    alpha: float
    beta: float

    def element(self, x: Expr) -> Expr:
        return x if (self.alpha, self.beta) == (1.0, 0.0) else x * self.alpha + self.beta

    def numpy(self, x: Any) -> Any:
        return self.alpha * x + self.beta


@dataclass(frozen=True)
class ScaledTanh:
    """alpha * tanh(beta * x)."""

    alpha: float
    beta: float

    def element(self, x: Expr) -> Expr:
        return call("tanh", x * self.beta) * self.alpha

    def numpy(self, x: Any) -> Any:
        return self.alpha * np.tanh(self.beta * x)


_OWN: dict[str, Any] = {"affine": Affine, "scaledtanh": ScaledTanh}


class Words(Attribute):
    """A tuple of words; None where none are given."""

    kind = "a list of words"

    def convert(self, value: Any) -> tuple[str, ...] | None:
        if value is None:
            return self.left_out()
        if isinstance(value, (str, bytes)):
            raise TypeError("must be a list")
        return tuple(v.decode() if isinstance(v, bytes) else str(v) for v in value)


@dataclass(frozen=True)
class Cell:
    """kind: a key of GATES. functions: of each direction, those of the gates, then of what they let through. is_back:
    whether each direction begins at the end. clip: what gates are held within before
    their function, None for anything.
    coupled: forget is 1 - input. state_clip: what c is held within. resets_after: the reset gate is applied to
    products, not to the state."""

    kind: str
    functions: tuple[tuple[Function, ...], ...]
    is_back: tuple[bool, ...]
    clip: float | None = None
    coupled: bool = False
    state_clip: float | None = None
    resets_after: bool = False

    @property
    def gates(self) -> int:
        return GATES[self.kind]

    @property
    def states(self) -> int:
        return STATES[self.kind]


def functions(
    kind: str, directions: int, names: Sequence[str] | None, alphas: Sequence[float] | None,
    betas: Sequence[float] | None,
) -> tuple[tuple[Function, ...], ...]:  # fmt: skip
    """Return the functions of each direction. alphas, betas: in order of those functions that have such a number; what
    is not given is that of ONNX's operator of this name, as is said there.

    Raises OperandError for a name that is unknown, and where there are too many or too few.
    """
    count = len(_DEFAULTS[kind])
    given = list(_DEFAULTS[kind]) * directions if names is None else list(names)
    if len(given) != count * directions:
        raise OperandError(f"{kind}: activations has {len(given)} names, expected {count * directions}")
    left = {"alpha": list(alphas or ()), "beta": list(betas or ())}
    found = list[Function]()
    made: Any
    for name in given:
        word = name.lower()
        if word in _OWN:
            made, has = _OWN[word], ("alpha", "beta")
            if not (left["alpha"] and left["beta"]):
                raise OperandError(f"{kind}: the activation {name} has no alpha or beta, which has no default")
        elif word in _OPS:
            made = registry.find(_OPS[word])
            has = tuple(a for a in ("alpha", "beta") if a in made.attributes)
        else:
            known = {**_OPS, **_OWN}
            raise OperandError(f"{kind}: there is no activation {name!r}", [f"known: {suggest(name, known)}"])
        found.append(made(**{a: left[a].pop(0) for a in has if left[a]}))
    return tuple(tuple(found[d * count : (d + 1) * count]) for d in range(directions))
