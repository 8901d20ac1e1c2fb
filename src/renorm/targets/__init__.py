"""Targets that come with renorm beside llvm and cuda, and how targets are found by name.

Each is a package of its own, loaded when somebody asks for it. docs/targets.md says how to bring another one.

    "onednn, cuda -arch=sm_90"        onednn runs what it claims, the rest runs on a GPU: another base than its own
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
    module and takes the Target of that name; "name, base" puts another base in the place of its own. Of a CPU that it
    names, or that its base names, it knows what LLVM knows. Raises InvalidTarget."""
    found = _found(text)
    if found.base:
        base = find(found.base)
        known = {"base": str(base)} if base.is_gpu else {} if base.has is None else {"has": base.has}
        return replace(found, **known) if known else found
    if found.is_gpu and isinstance(text, str) and "-arch" not in text:
        return replace(found, arch=devices.arch_here() or found.arch)
    if not found.is_named:
        return found
    from renorm.codegen.llvm.subtarget import resolved  # loads LLVM

    return resolved(found)


def _found(text: str | Target) -> Target:
    if isinstance(text, Target):
        return text
    if not isinstance(text, str):
        raise InvalidTarget(f"target is {text!r}", ["expected a text, as 'llvm -mcpu=haswell', or a Target"])
    name, comma, base = text.partition(",")
    if comma and not any(c.isspace() for c in name.strip()):  # lists of features have commas too, behind an option
        return _on(_found(name.strip()), base.strip())
    if text in PROVIDED and not targets.is_registered(text):
        targets.register_target(import_module(PROVIDED[text]).TARGET)
    module, colon, name = text.partition(":")
    if not colon or any(c.isspace() for c in text):
        return targets.parse(text, PROVIDED)
    if module == "cuda" and name.isdigit():
        raise InvalidTarget(f"target {text!r} is a device", do=f'say target="cuda", device={name}')
    try:
        found = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidTarget(f"target {text!r} cannot be imported", [f"{type(error).__name__}: {error}"]) from error
    if not isinstance(found, Target):
        raise InvalidTarget(f"target {text!r} is {type(found).__name__}", ["expected a renorm.Target"])
    return found


def _on(target: Target, base: str) -> Target:
    """Return a target with another base, which must be a machine."""
    asked = f"target {f'{target.kind}, {base}'!r}"
    if not target.base:
        raise InvalidTarget(f"{asked}: {target.kind} runs whole networks", ["what stands first runs parts of them"])
    if not base or _found(base).base:
        raise InvalidTarget(f"{asked}: what runs the rest must be a machine", ["as in 'tandem, cuda -arch=sm_90'"])
    return replace(target, base=base)
