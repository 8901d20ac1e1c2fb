"""Norm layers of a model, and what of a model's layers forbids that they change: hooks, ties, parametrizations."""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

_KINDS: tuple[tuple[type[nn.Module], str], ...] = (
    (_InstanceNorm, "instance_norm"),
    (_BatchNorm, "batch_norm"),
    (nn.LayerNorm, "layer_norm"),
    (nn.GroupNorm, "group_norm"),
    (nn.RMSNorm, "rms_norm"),
)
_NAMES = (("batch", "batch_norm"), ("instance", "instance_norm"), ("layer", "layer_norm"), ("group", "group_norm"))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def norm_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers of a model that are norms, by path: those of torch's classes, and those that are called so and
    hold no layers with parameters."""
    return {
        path: m
        for path, m in model.named_modules()
        if isinstance(m, tuple(cls for cls, _ in _KINDS))
        or (
            re.search(r"Norm(?=[A-Z\d]|$)", type(m).__name__)
            and type(m).__module__ != "torch.nn.utils.parametrizations"
            and not any(p is not None for child in m.children() for p in child.parameters())
            and any(True for _ in (*m.parameters(), *m.buffers()))
        )
    }


def kind_of(layer: nn.Module) -> str:
    """Return which norm a layer is, as far as its class tells; its name for others."""
    for cls, kind in _KINDS:
        if isinstance(layer, cls):
            return kind
    name = type(layer).__name__
    return next((kind for said, kind in _NAMES if said in name.lower()), "rms_norm" if "RMS" in name else name)


def shown(layer: nn.Module) -> str:
    cls = type(layer)
    return f"{cls.__module__.split('.')[0]}.{cls.__name__}"


def has_tracked_statistics(layer: nn.Module) -> bool:
    return isinstance(getattr(layer, "running_mean", None), Tensor)


def why_layer_stays(model: nn.Module, path: str, layer: nn.Module) -> str | None:
    """Return why a norm layer cannot leave its place, whatever stands around it; None where it can."""
    if not path:
        return "it is the model itself, which holds nothing to fold it into"
    if any(map(is_lazy, (*layer.parameters(), *layer.buffers()))):
        return "it is lazy: call the model once before, so that it has its parameters"
    if isinstance(layer, _BatchNorm) and layer.training:
        return "it is in training mode, in which its statistics come from the batch: call eval() before"
    if isinstance(layer, _BatchNorm) and not has_tracked_statistics(layer):
        return "it tracks no statistics, so that they come from the batch"
    return why_unchanged(model, path)


def why_unchanged(model: nn.Module, path: str, names: Iterable[str] | None = None) -> str | None:
    """Return why a layer must stay as it is; None where it may change. names: of its parameters that change, None for
    all."""
    layer = model.get_submodule(path)
    if reason := why_watched(model, path):
        return reason
    if "forward" in vars(layer):
        return f"the forward of {path!r} was replaced by another one"
    if parametrize.is_parametrized(layer):
        return f"{path!r} has parametrizations: remove them before (torch.nn.utils.parametrize)"
    for name in layer._parameters if names is None else names:
        if len(held := owners(model, layer._parameters.get(name))) > 1:
            other = next(f"{p}.{n}".strip(".") for p, n in held if (p, n) != (path, name))
            return f"{name!r} of {path!r} is also {other!r}"
    return None


def why_watched(model: nn.Module, path: str) -> str | None:
    """Return who sees what goes into a layer, and what it gives; None where nobody does."""
    layer = model.get_submodule(path)
    watched = any(getattr(layer, hooks) for hooks in _HOOKS)
    return f"{path or type(layer).__name__!r} has hooks, which would see other values" if watched else None


def owners(model: nn.Module, parameter: nn.Parameter | None) -> list[tuple[str, str]]:
    """Return the layers that hold a parameter, and its name in each."""
    if parameter is None:
        return []
    return [(path, name) for path, m in model.named_modules() for name, p in m._parameters.items() if p is parameter]


def without_norm(layer: nn.Module) -> nn.Module:
    """Return what stands in the place of a norm layer: its own layers, an activation for example, one after the other;
    Identity where it has none."""
    children = OrderedDict(layer.named_children())
    made = nn.Sequential(children) if children else nn.Identity()
    made.training = layer.training
    return made


def places(model: nn.Module, layer: nn.Module) -> list[tuple[nn.Module, str]]:
    """Return the modules that hold a layer, and its name in each."""
    return [(m, name) for m in model.modules() for name, child in m._modules.items() if child is layer]
