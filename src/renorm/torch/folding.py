"""Norms of a module of PyTorch's before anything is compiled: what becomes of each, the module without those that fold,
and the way back.

    capture ─▶ module_folds ─▶ changed parameters ─▶ the module ─▶ verification
                                                        │
                                 originals, kept on it ─┴─▶ unfold

Layers keep their classes, paths and forward; a norm gives way to Identity. Parameters stay the same objects with other
elements, so that optimizers and who else refers to them need not know.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from renorm.core.errors import InvalidInput, RenormError
from renorm.driver.compile import analyze
from renorm.frontends.torch import exported
from renorm.runtime.report import NormRecord
from renorm.torch.arrays import array_of, tensor_of
from renorm.torch.capture import Capture, captured
from renorm.torch.layers import kind_of, norm_layers, places, shown, why_layer_stays, without_norm
from renorm.torch.module_folds import NO_LAYER, Plan, planned
from renorm.torch.norm_ledger import ModuleLedger, ModuleNorm
from renorm.torch.traced import traced
from renorm.torch.verification import Comparison

_UNKNOWN = "what it computes is no scale and shift per channel by constants"
_UNCALLED = "the model does not call it with these arguments"
_HELD = "_renorm_folds"  # an attribute of a folded module, which state_dict does not have


@dataclass(frozen=True)
class Folded:
    """A module without the norms that fold, the ledger of all of them, and the way back."""

    module: nn.Module
    report: ModuleLedger

    def unfold(self) -> nn.Module:
        """Return the module as it was: see `renorm.torch.unfold`."""
        return unfold(self.module)


@dataclass
class _Folds:
    """Hold what `unfold` needs. tensors: of parameters before, by layer and name, None where there was none; digests:
    of what they became. layers: norms that are gone, by path."""

    tensors: dict[tuple[str, str], Tensor | None] = field(default_factory=dict[tuple[str, str], "Tensor | None"])
    digests: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    layers: dict[str, nn.Module] = field(default_factory=dict[str, nn.Module])


def inspect(
    model: nn.Module, args: Any = None, kwargs: Mapping[str, Any] | None = None, dynamic_shapes: Any = None
) -> ModuleLedger:
    """Return what `fold` and `renorm.compile` make of each norm of a model.

    args, kwargs, dynamic_shapes: what torch.export.export takes. Without args only layers that stand next to each other
    are looked at, as torch.fx sees them. Raises InvalidInput where PyTorch captures no graph.
    """
    if args is None and kwargs is None:
        return traced(model)
    program = exported(model, () if args is None else args, kwargs, dynamic_shapes)
    try:
        records, unread = analyze(program)[1].norms, ""
    except RenormError as error:
        records, unread = (), error.headline
    capture = captured(model, program)
    return _ledger(model, capture, planned(model, capture), records, unread)


def fold(
    model: nn.Module,
    args: Any = None,
    kwargs: Mapping[str, Any] | None = None,
    *,
    inplace: bool = False,
    dynamic_shapes: Any = None,
    keep: Sequence[str] = (),
    tolerance: float | None = None,
) -> Folded:
    """Return a model without those of its norms that fold into other layers, verified on these arguments.

    args, kwargs, dynamic_shapes: what torch.export.export takes: what the model computes for them decides. inplace: the
    model itself changes, else a deep copy. keep: paths of norms that stay. tolerance: the most that results may differ
    by in the model's own dtypes, relative to the largest value of each channel; None for what its dtype allows, or
    rounding was measured to move. Raises InvalidInput where PyTorch captures no graph or cannot copy the model,
    VerificationError where results differ; the model is then as it was.
    """
    if args is None and kwargs is None:
        raise InvalidInput(f"{type(model).__name__}: what folds is decided and verified on arguments", do="give args=")
    given = tuple(args) if isinstance(args, (tuple, list)) else () if args is None else (args,)
    unknown = [path for path in keep if path not in norm_layers(model)]
    if unknown:
        raise InvalidInput(
            f"keep: no norm of {type(model).__name__}: {', '.join(map(repr, unknown))}", norm_layers(model)
        )
    capture = captured(model, exported(model, given, kwargs, dynamic_shapes))
    plan = planned(model, capture, keep)
    ledger, before = _ledger(model, capture, plan), Comparison(model, given, kwargs or {})
    target = model if inplace else _copy(model)
    folds = _Folds()
    vars(target).setdefault(_HELD, []).append(folds)
    try:
        exact = _apply(target, plan, folds)
        verified = before.verify(target, exact, tolerance, [str(n) for n in ledger.folded])
    except BaseException:  # an interrupt too leaves the model as it was
        _undo_last(target)
        raise
    return Folded(target, replace(ledger, verified=verified))


def unfold(module: nn.Module) -> nn.Module:
    """Return a module with the norms again that `fold` took from it or from parts of it, in place, bit for bit. Raises
    InvalidInput that names all parameters which changed since: nothing is undone then."""
    held = [(path, m) for path, m in module.named_modules() if _HELD in vars(m)]
    if not held:
        raise InvalidInput(
            f"{type(module).__name__}: nothing of it was folded", do="give what renorm.torch.fold returned"
        )
    changed = [
        f"{'.'.join(filter(None, (path, layer, name)))} is not what fold made of it"
        for path, m in held
        for (layer, name), digest in {k: d for folds in vars(m)[_HELD] for k, d in folds.digests.items()}.items()
        if _digest(m, layer, name) != digest
    ]
    if changed:
        do = "train or convert the module after it was unfolded; fold has left its own argument as it was"
        raise InvalidInput(f"{type(module).__name__}: it has changed since it was folded", changed, do)
    for _, m in held:
        while _HELD in vars(m):
            _undo_last(m)
    return module


# --- changes ----------------------------------------------------------------------------------------------------------


def _copy(model: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(model)
    except Exception as error:  # tensors that are computed, handles of files, locks
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        do = "give inplace=True, which unfold undoes"
        raise InvalidInput(f"{type(model).__name__}: it cannot be copied: {reason}", do=do) from error


def _apply(model: nn.Module, plan: Plan, folds: _Folds) -> dict[str, Tensor]:
    """Change a model, and note what it was. Return the parameters that changed in float64."""
    exact = dict[str, Tensor]()
    for change in plan.changes:
        place, layer = (change.path, change.name), model.get_submodule(change.path)
        held, made = layer._parameters[change.name], tensor_of(change.rounded.copy())
        folds.tensors[place] = None if held is None else held.data
        if held is None:
            like: Any = layer.weight
            layer._parameters[change.name] = nn.Parameter(made.to(like.device), like.requires_grad)
        else:
            held.data = torch.empty_like(held.data).copy_(made)
        folds.digests[place] = _digest(model, *place)
        exact[f"{change.path}.{change.name}".strip(".")] = torch.from_numpy(change.exact.copy())
    for path in plan.gone:
        layer = model.get_submodule(path)
        made = without_norm(layer)
        folds.layers[path] = layer
        _put(model, layer, made)
    return exact


def _undo_last(model: nn.Module) -> None:
    folds, moved = vars(model)[_HELD].pop(), dict[torch.device, torch.device]()
    for (path, name), tensor in folds.tensors.items():
        parameters = model.get_submodule(path)._parameters
        held = parameters[name]
        if tensor is None or held is None:
            parameters[name] = None
        else:
            moved[tensor.device] = held.device  # of the model, since it was folded
            held.data = tensor.to(held.device)
    for path, layer in folds.layers.items():
        gone = model.get_submodule(path)
        if any(was != now for was, now in moved.items()):
            layer._apply(lambda t: t.to(moved.get(t.device, t.device)))
        for m in layer.modules():
            m.training = gone.training
        if gone is not layer:
            _put(model, gone, layer)
    if not vars(model)[_HELD]:
        del vars(model)[_HELD]


def _put(model: nn.Module, old: nn.Module, new: nn.Module) -> None:
    """Put a layer where another one is."""
    for parent, name in places(model, old):
        parent._modules[name] = new


def _digest(model: nn.Module, path: str, name: str) -> str:
    """Return what tells whether a parameter changed."""
    p = model.get_submodule(path)._parameters.get(name)
    if p is None:
        return ""
    own = array_of(p.detach().cpu().contiguous())
    return f"{own.dtype} {own.shape} {hashlib.blake2b(own.tobytes()).hexdigest()}"


# --- the ledger -------------------------------------------------------------------------------------------------------


def _ledger(
    model: nn.Module, capture: Capture, plan: Plan, records: Sequence[NormRecord] = (), unread: str = ""
) -> ModuleLedger:
    compiled, layers = dict[str, list[str]](), norm_layers(model)
    for record in records:
        within = (capture.paths.get(name, "") for name in (record.name, *record.raised))
        said = str(replace(record, name="")).removeprefix(f": {record.kind} ")
        compiled.setdefault(next((path for path in within if path in layers), record.name), []).append(said)
    added = {(c.path, c.name): c.rounded for c in plan.changes if _parameter(model, c.path, c.name) is None}
    found = list[ModuleNorm]()
    for path, layer in layers.items():
        calls = len({capture.rounds[n] for n, p in plan.paths.items() if p == path})
        row = ModuleNorm(path, shown(layer), plan.kinds.get(path) or kind_of(layer), "kept", calls=calls)
        row = replace(row, channels=_channels(layer), compiled=tuple(compiled.get(path, ())))
        if path in plan.gone:
            biases = [added.pop(k) for k in [*added] if k[0] in plan.gone[path]]
            found.append(_folded(row, layer, plan, biases))
        else:
            reason = plan.reasons.get(path) or why_layer_stays(model, path, layer)
            found.append(replace(row, reason=reason or (_UNKNOWN if calls else _UNCALLED)))
    for name in (name for name in dict.fromkeys((*plan.kinds, *compiled)) if name not in layers):
        kind = plan.kinds.get(name) or next(r.kind for r in records if r.name == name)
        reason = plan.reasons.get(name) or NO_LAYER
        found.append(ModuleNorm(name, "", kind, "kept", reason=reason, calls=1, compiled=tuple(compiled.get(name, ()))))
    return ModuleLedger(type(model).__name__, tuple(found), unread)


def _folded(row: ModuleNorm, layer: nn.Module, plan: Plan, biases: Sequence[Any]) -> ModuleNorm:
    """Return the row of a norm that folds. biases: that layers get which had none."""
    own = [t for t in (*layer._parameters.values(), *layer._buffers.values()) if t is not None]
    return replace(
        row,
        fate="folded",
        into=plan.gone[row.path],
        is_before=plan.is_before[row.path],
        parameters=sum(t.numel() for t in own if isinstance(t, nn.Parameter)) - sum(b.size for b in biases),
        bytes=sum(t.numel() * t.element_size() for t in own) - sum(b.nbytes for b in biases),
    )


def _channels(layer: nn.Module) -> int:
    held = (*layer._parameters.values(), *layer._buffers.values())
    return max((t.numel() for t in held if t is not None), default=0)


def _parameter(model: nn.Module, path: str, name: str) -> nn.Parameter | None:
    return model.get_submodule(path)._parameters.get(name)
