"""torch's normalization layers in a model become ours, and ours torch's, where they are.

A layer stays the same object, with its parameters, buffers and hooks: only its class changes. So an optimizer, a
DistributedDataParallel and whoever else refers to it need not know.
"""

from __future__ import annotations

from collections import Counter

from torch import Tensor, nn

from renorm.core.dataclass import dataclass
from renorm.torch.modules import OURS, RECTIFIED, _BatchNorm, _InstanceNorm


class FusedReLU(nn.ReLU):
    """A ReLU that the batch norm in front of it computes: what comes from there it passes on."""

    def forward(self, input: Tensor) -> Tensor:
        return input if hasattr(input, RECTIFIED) else super().forward(input)


@dataclass(frozen=True)
class Replaced:
    """name: of a layer in the model, "" for the model itself; was, now: names of classes."""

    name: str
    was: str
    now: str

    def __str__(self) -> str:
        return f"{self.name or '(the model)'}: {self.was} -> {self.now}"


_THEIRS = {ours: theirs for theirs, ours in OURS.items()} | {FusedReLU: nn.ReLU}


def replace_norms(model: nn.Module, *, fuse_relu: bool = True) -> list[Replaced]:
    """Makes renorm's of torch's normalization layers, in place; tells which.

    Layers of exactly torch's classes are replaced: a subclass may compute something else. fuse_relu: a ReLU that
    follows a batch norm directly in an nn.Sequential is computed with it, where nobody else sees what is between them:
    each of the two stands in the model once, and neither has hooks. `restore` undoes it.
    """
    found = [_become(name, m, OURS[type(m)]) for name, m in model.named_modules() if type(m) in OURS]
    return found + (_fuse(model) if fuse_relu else [])


def restore(model: nn.Module) -> list[Replaced]:
    """Makes torch's of renorm's normalization layers, in place; tells which."""
    found = [_become(name, m, _THEIRS[type(m)]) for name, m in model.named_modules() if type(m) in _THEIRS]
    for m in model.modules():
        for ours in ("fuses_relu", "label"):
            m.__dict__.pop(ours, None)
    return found


def _become(name: str, module: nn.Module, new: type[nn.Module]) -> Replaced:
    was = type(module)
    module.__class__ = new
    if isinstance(module, (_BatchNorm, _InstanceNorm)):
        module.label = name
    return Replaced(
        name, f"{was.__module__.split('.')[0]}.{was.__name__}", f"{new.__module__.split('.')[0]}.{new.__name__}"
    )


def _fuse(model: nn.Module) -> list[Replaced]:
    uses = Counter(id(m) for _, m in model.named_modules(remove_duplicate=False))
    found = list[Replaced]()
    for name, m in model.named_modules():
        if type(m) is not nn.Sequential:
            continue
        for norm, (key, relu) in zip(m.children(), list(m.named_children())[1:]):
            is_pair = isinstance(norm, _BatchNorm) and type(norm) in _THEIRS and type(relu) is nn.ReLU
            if is_pair and not norm.fuses_relu and all(uses[id(x)] == 1 and not _is_hooked(x) for x in (norm, relu)):
                norm.__dict__["fuses_relu"] = True
                found.append(_become(f"{name}.{key}" if name else key, relu, FusedReLU))
    return found


def _is_hooked(m: nn.Module) -> bool:
    return any(
        (
            m._forward_hooks,
            m._forward_pre_hooks,
            m._backward_hooks,
            m._backward_pre_hooks,
        )
    )
