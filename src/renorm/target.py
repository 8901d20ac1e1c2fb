"""Targets by TVM's names: `renorm.target.Target("llvm -mcpu=haswell")`."""

from __future__ import annotations

from renorm.core.errors import InvalidTarget
from renorm.core.target import Target as _Target
from renorm.targets import find


def Target(target: str | _Target, host: str | _Target | None = None) -> _Target:
    """The target that a string names (docs/targets.md). host: accepted for "cuda" alone, whose source needs none.
    Raises InvalidTarget."""
    if not isinstance(target, (str, _Target)):
        raise InvalidTarget(f"{type(target).__name__} {target!r} is not a target", ['expected a string, as "llvm"'])
    if host is not None:
        Target(host)
    return find(target)


create = Target


def cuda(model: str = "unknown", options: str = "") -> _Target:
    """The target "cuda". model is not used: an architecture is given as options, "-arch=sm_90"."""
    return Target(f"cuda {options}".strip())


__all__ = ["Target", "create", "cuda"]
