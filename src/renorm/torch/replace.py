"""torch's normalization layers in a model become ours, and ours torch's, where they are.

A layer stays the same object, with its parameters, buffers and hooks: only its class changes. So an optimizer, a
DistributedDataParallel and whoever else refers to it need not know.
"""

from __future__ import annotations

import re

from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize

from renorm.core.dataclass import dataclass
from renorm.torch.fuse import fuse_norms, unfuse
from renorm.torch.modules import OURS, _BatchNorm, _InstanceNorm


@dataclass(frozen=True)
class Replaced:
    """name: of a layer in the model, "" for the model itself; was, now: names of classes, the same for a norm that
    stays; fused: what its kernel computes too, "addition" and "ReLU"; refusal: why nothing, where that was asked for,
    or why the norm stays."""

    name: str
    was: str
    now: str
    fused: tuple[str, ...] = ()
    refusal: str | None = None

    def __str__(self) -> str:
        if self.was == self.now and not self.fused:
            return f"{self.name or '(the model)'}: {self.was} stays: {self.refusal}"
        more = "".join(f" + {f}" for f in self.fused) + (f" alone: {self.refusal}" if self.refusal else "")
        return f"{self.name or '(the model)'}: {self.was} -> {self.now}{more}"


_THEIRS = {ours: theirs for theirs, ours in OURS.items()}


def replace_norms(model: nn.Module, *, fuse: bool = False) -> list[Replaced]:
    """Makes renorm's of torch's normalization layers, in place; tells which, and which stay and why. `restore` undoes
    it.

    Layers of exactly torch's classes are replaced: a subclass may compute something else. fuse: what a forward adds to
    the result of a batch norm, and a ReLU behind that, are computed with it. For this torch.fx follows the forward of
    each module that calls one, as far as nn.Sequential leads, and the module gets a subclass of its class whose forward
    is the same without these additions and ReLUs. What Python decides in a forward by anything but attributes of self
    is decided once; where torch.fx cannot follow, or a rewrite would change a number, all stays, and the rows say why.
    """
    before = {m: type(m) for m in model.modules()}
    for name, m in model.named_modules():
        if type(m) in OURS:
            m.__class__ = OURS[type(m)]
            if isinstance(m, (_BatchNorm, _InstanceNorm)):
                m.label = name
    found = fuse_norms(model) if fuse else {}
    rows = list[Replaced]()
    for name, m in model.named_modules():
        fused, refusal = (f, None) if isinstance(f := found.get(m, ()), tuple) else ((), f)
        if fuse and isinstance(m, _BatchNorm) and m not in found:
            refusal = "no forward that is followed calls it"
        stays = _why_it_stays(m) if before[m] is type(m) else None
        if stays:
            rows.append(Replaced(name, _shown(before[m]), _shown(before[m]), refusal=stays))
        elif before[m] in OURS or m in found:
            rows.append(Replaced(name, _shown(before[m]), _shown(type(m)), fused, refusal))
    return rows


def _why_it_stays(m: nn.Module) -> str | None:
    """None: it is ours, or no norm, as far as its classes and their name tell."""
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
    """Makes torch's of renorm's normalization layers, in place, and gives modules their own forwards back; tells which
    layers. One that was made with relu=True stays: torch's has none."""
    rows = list[Replaced]()
    for name, m in model.named_modules():
        unfuse(m)
        was = type(m)
        if was in _THEIRS and not getattr(m, "relu", False):
            m.__class__ = _THEIRS[was]
            m.__dict__.pop("label", None)
            rows.append(Replaced(name, _shown(was), _shown(type(m))))
    return rows


def _shown(cls: type[nn.Module]) -> str:
    return f"{cls.__module__.split('.')[0]}.{cls.__name__}"
