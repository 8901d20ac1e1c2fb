"""Targets that come with renorm beside llvm and cuda: each is registered when it is first named."""

from __future__ import annotations

from importlib import import_module

from renorm.core import target as targets
from renorm.core.target import Target

PROVIDED = {"onednn": "renorm.targets.onednn.target"}
"""Modules by the name of the target that each has as TARGET."""


def find(named: str | Target) -> Target:
    """core.target.parse, which also knows what comes with renorm. Raises InvalidTarget."""
    if isinstance(named, str) and named in PROVIDED and not targets.is_registered(named):
        targets.register_target(import_module(PROVIDED[named]).TARGET)
    return targets.parse(named, PROVIDED)
