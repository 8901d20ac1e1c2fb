"""torch's normalization layers in a model become ours, and ours torch's, where they are.

A layer stays the same object, with its parameters, buffers and hooks: only its class changes. So an optimizer, a
DistributedDataParallel and whoever else refers to it need not know.
"""

from __future__ import annotations

from torch import nn

from renorm.core.dataclass import dataclass
from renorm.torch.fuse import fuse_norms, unfuse
from renorm.torch.modules import OURS, _BatchNorm, _InstanceNorm


@dataclass(frozen=True)
class Replaced:
    """name: of a layer in the model, "" for the model itself; was, now: names of classes; fused: what its kernel
    computes too, "addition" and "ReLU"; refusal: why nothing, where that was asked for."""

    name: str
    was: str
    now: str
    fused: tuple[str, ...] = ()
    refusal: str | None = None

    def __str__(self) -> str:
        more = "".join(f" + {f}" for f in self.fused) + (f" alone: {self.refusal}" if self.refusal else "")
        return f"{self.name or '(the model)'}: {self.was} -> {self.now}{more}"


_THEIRS = {ours: theirs for theirs, ours in OURS.items()}


def replace_norms(model: nn.Module, *, fuse: bool = False) -> list[Replaced]:
    """Makes renorm's of torch's normalization layers, in place; tells which. `restore` undoes it.

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
        if before[m] in OURS or fused:
            rows.append(Replaced(name, _shown(before[m]), _shown(type(m)), fused, refusal))
    return rows


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
