"""Targets that come with renorm beside llvm and cuda, and how targets are found by name.

Each is a package of its own, loaded when somebody asks for it. docs/targets.md says how to bring another one.
"""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module

from renorm.core import target as targets
from renorm.core.errors import InvalidTarget
from renorm.core.target import Target
from renorm.runtime.gpu import device as devices

PROVIDED = {"onednn": "renorm.targets.onednn.target", "tandem": "renorm.targets.tandem.target"}
"""Modules by the name of the target that each has as TARGET."""


def find(text: str | Target) -> Target:
    """Return what core.target.parse finds, or a target that comes with renorm; "package.module:name" imports that
    module and takes the Target of that name. Of a CPU that it names, or that its base names, it knows what LLVM knows.
    Raises InvalidTarget."""
    found = _found(text)
    if found.base:
        has = find(found.base).has
        return found if has is None else replace(found, has=has)
    if found.is_gpu and isinstance(text, str) and "-arch" not in text:
        return replace(found, arch=devices.arch_here() or found.arch)
    if not found.is_named:
        return found
    from renorm.codegen.llvm.subtarget import resolved  # loads LLVM

    return resolved(found)


def _found(text: str | Target) -> Target:
    if not isinstance(text, str):
        return text
    if text in PROVIDED and not targets.is_registered(text):
        targets.register_target(import_module(PROVIDED[text]).TARGET)
    module, colon, name = text.partition(":")
    if not colon or any(c.isspace() for c in text):
        return targets.parse(text, PROVIDED)
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidTarget(f"target {text!r} cannot be imported", [f"{type(error).__name__}: {error}"]) from error
    if not isinstance(found, Target):
        raise InvalidTarget(f"target {text!r} is {type(found).__name__}", ["expected a renorm.Target"])
    return found
