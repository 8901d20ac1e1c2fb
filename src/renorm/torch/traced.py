"""The norms of a model without arguments for it: which layers stand next to each other, as torch.fx sees them."""

from __future__ import annotations

from typing import Any

from torch import fx, nn

from renorm.core.errors import InvalidInput
from renorm.torch.layers import kind_of, norm_layers, shown, why_layer_stays, why_unchanged
from renorm.torch.norm_ledger import ModuleLedger, ModuleNorm

_PRODUCTS = (nn.modules.conv._ConvNd, nn.Linear)
_DYNAMIC = "its statistics come from what it reads, so that constants cannot hold it"
_MORE = "with args= more can be told"


class _Tracer(fx.Tracer):
    """Takes norms and products for one node each, whosever they are."""

    def __init__(self, leaves: Any):
        super().__init__()
        self._leaves = leaves

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return m in self._leaves or isinstance(m, _PRODUCTS) or super().is_leaf_module(m, module_qualified_name)


def traced(model: nn.Module) -> ModuleLedger:
    """Return what can be told of the norms of a model without arguments. Raises InvalidInput where torch.fx does not
    trace it."""
    layers = norm_layers(model)
    try:
        graph = _Tracer({*layers.values()}).trace(model)
    except Exception as error:  # whatever the model's own code raises
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        do = "give args=, for which torch.export captures it"
        raise InvalidInput(f"{type(model).__name__}: torch.fx does not trace it: {reason}", do=do) from error
    calls = dict[nn.Module, list[fx.Node]]()
    for node in (n for n in graph.nodes if n.op == "call_module"):
        calls.setdefault(model.get_submodule(str(node.target)), []).append(node)
    rows = (_row(model, path, layer, calls) for path, layer in layers.items())
    return ModuleLedger(type(model).__name__, tuple(rows))


def _row(model: nn.Module, path: str, layer: nn.Module, calls: dict[nn.Module, list[fx.Node]]) -> ModuleNorm:
    own, kind = calls.get(layer, []), kind_of(layer)
    row = ModuleNorm(path, shown(layer), kind, "kept", calls=len(own))
    reason = why_layer_stays(model, path, layer)
    if reason is None and kind in ("instance_norm", "layer_norm", "group_norm", "rms_norm"):
        reason = _DYNAMIC
    if reason is None and not own:
        reason = "the model does not call it"
    if reason is None and len(own) > 1:
        reason = f"it is called {len(own)} times; {_MORE}"
    if reason is not None:
        return ModuleNorm(path, row.cls, kind, "kept", reason=reason, calls=len(own))
    into, reason = _before(model, own[0], calls)
    return ModuleNorm(
        path, row.cls, kind, "folded" if into else "kept", (into,) if into else (), reason=reason, calls=1
    )


def _before(model: nn.Module, norm: fx.Node, calls: dict[nn.Module, list[fx.Node]]) -> tuple[str, str]:
    """Return the path of the product that a norm reads, or why it cannot hold the norm."""
    read = next(iter(norm.all_input_nodes), None)
    layer = model.get_submodule(str(read.target)) if read is not None and read.op == "call_module" else None
    if read is None or not isinstance(layer, _PRODUCTS):
        return "", f"it reads {read}, which is no convolution; {_MORE}"
    path = str(read.target)
    if len(read.users) > 1:
        others = ", ".join(str(u) for u in read.users if u is not norm)
        return "", f"{path!r} is also read by {others}"
    if len(calls[layer]) > 1:
        return "", f"{path!r} is called {len(calls[layer])} times"
    if reason := why_unchanged(model, path, ("weight", "bias")):
        return "", reason
    if isinstance(layer, nn.Linear):
        return "", f"how many axes {path!r} gives is not known, and so which are channels; {_MORE}"
    return path, ""
