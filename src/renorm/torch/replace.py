"""torch's normalization layers in a model become ours, and ours torch's, where they are.

A layer stays the same object, with its parameters, buffers and hooks: only its class changes. So an optimizer, a
DistributedDataParallel and whoever else refers to it need not know.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize

from renorm.torch.modules import OURS, _BatchNorm, _InstanceNorm


@dataclass(frozen=True)
class Replaced:
    """name: of a layer in the model, "" for the model itself; was, now: names of classes, the same for a norm that
    stays; refusal: why it stays."""

    name: str
    was: str
    now: str
    refusal: str | None = None

    def __str__(self) -> str:
        became = f"-> {self.now}" if self.refusal is None else f"stays: {self.refusal}"
        return f"{self.name or '(the model)'}: {self.was} {became}"


_THEIRS = {ours: theirs for theirs, ours in OURS.items()}


def replace_norms(model: nn.Module) -> list[Replaced]:
    """Make renorm's layers of torch's normalization layers, in place. Return a row for each, and for each norm that
    stays, with the reason. `restore` undoes it.

    Layers of exactly torch's classes are replaced: a subclass may compute something else.
    """
    rows = list[Replaced]()
    for name, m in model.named_modules():
        was = type(m)
        if was in OURS:
            m.__class__ = OURS[was]
            if isinstance(m, (_BatchNorm, _InstanceNorm)):
                m.label = name
            rows.append(Replaced(name, _shown(was), _shown(type(m))))
        elif stays := _why_it_stays(m):
            rows.append(Replaced(name, _shown(was), _shown(was), stays))
    return rows


def _why_it_stays(m: nn.Module) -> str | None:
    """Return why a module stays; None: it is ours, or no norm, as far as its classes and their name tell."""
    cls = type(m)
    if issubclass(cls, tuple(_THEIRS)):
        return None
    if isinstance(m, LazyModuleMixin) and isinstance(m, nn.modules.batchnorm._NormBase):
        return "it is lazy: call the model once before, so that it has its parameters"
    base = next((theirs for theirs in OURS if issubclass(cls, theirs)), None)
    if base is not None and parametrize.is_parametrized(m):
        return "it has parametrizations: replace norms first, and register them then"
    if base is not None:
        return f"it is a subclass of torch.{base.__name__}, which may compute something else"
    is_norm = re.search(r"Norm(\dd)?$", cls.__name__) and not any(True for _ in m.children())
    return f"renorm has no layer for {cls.__module__}.{cls.__name__}" if is_norm else None


def restore(model: nn.Module) -> list[Replaced]:
    """Make torch's layers of renorm's normalization layers, in place. Return a row for each. One that was made with
    relu=True stays: torch's has none."""
    rows = list[Replaced]()
    for name, m in model.named_modules():
        was = type(m)
        if was in _THEIRS and not getattr(m, "relu", False):
            m.__class__ = _THEIRS[was]
            m.__dict__.pop("label", None)
            rows.append(Replaced(name, _shown(was), _shown(type(m))))
    return rows


def _shown(cls: type[nn.Module]) -> str:
    return f"{cls.__module__.split('.')[0]}.{cls.__name__}"
