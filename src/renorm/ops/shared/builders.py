"""Derived from the op classes: their registration, and one function per op that applies it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from renorm.core.errors import OperandError, suggest
from renorm.graph import registry
from renorm.graph.op import OpDef
from renorm.graph.registry import override as override  # public here, where all ops are known


def ops_of(module: ModuleType) -> list[type[OpDef]]:
    """Ops that a file defines: its classes that state a signature, or of which they are composed, and the entries of
    its TABLE."""
    own = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == module.__name__]
    known = [c for c in [*own, *getattr(module, "TABLE", ())] if issubclass(c, OpDef)]
    return list(dict.fromkeys(c for c in known if vars(c).keys() & {"signature", "takes"}))


def register_package(name: str, path: Iterable[str]) -> None:
    """Registers every op of every file of a package."""
    for file in pkgutil.iter_modules(path):
        for op in ops_of(importlib.import_module(f"{name}.{file.name}")):
            registry.register(op)


def builder(op: type[OpDef]) -> Callable[..., Any]:
    """The function that applies an op: operands by position or by the names of its signature, attributes by name."""
    names = [p.name for p in op.parsed.operands]

    def build(*operands: Any, name: str | None = None, **given: Any) -> Any:
        attributes = {k: v for k, v in given.items() if k in op.attributes or k not in names}
        named = {names.index(k): v for k, v in given.items() if k not in attributes}
        clash = [names[i] for i in named if i < len(operands)]
        if clash:
            raise OperandError(f"{op.name}: operand {', '.join(clash)} is given twice")
        last = max(named, default=len(operands) - 1)
        arranged: list[Any] = [*operands, *(named.get(i) for i in range(len(operands), last + 1))]
        for i, (p, operand) in enumerate(zip(op.parsed.operands, arranged)):
            if isinstance(operand, list) and not p.is_variadic:
                arranged[i] = tuple(operand)  # a constant: lists stand for variadic operands
        return op(**attributes)(*arranged, name=name)

    build.__name__ = build.__qualname__ = op.name
    build.__doc__ = f"{op.__doc__}\n\n{op.signature}"
    return build


def all_builders() -> dict[str, Callable[..., Any]]:
    """The function of every registered op, by name."""
    return {op.name: builder(op) for op in registry.all_ops()}


def find(name: str) -> Callable[..., Any]:
    """The function of one op; for ops registered after this package was loaded."""
    known = {op.name: op for op in registry.all_ops()}
    if name not in known:
        raise AttributeError(f"renorm.ops has no op {name!r}; nearest: {suggest(name, known)}")
    return builder(known[name])
