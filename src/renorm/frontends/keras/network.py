"""The graph of a model's config: calls of layers, in an order in which they can be computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from renorm.core.errors import InvalidModel
from renorm.frontends.keras.config import (
    Described,
    Reference,
    decoded,
    described,
    ends,
    leaves,
    named_in_files,
    referenced,
    replaced,
)
from renorm.frontends.keras.weights import Weights
from renorm.frontends.order import topological


@dataclass(frozen=True)
class Applied:
    """One call of a layer. number: which of the layer's calls."""

    layer: Described
    number: int
    args: Sequence[Any]
    kwargs: Mapping[str, Any]

    def references(self) -> list[Reference]:
        return [r for r in leaves([list(self.args), dict(self.kwargs)]) if isinstance(r, Reference)]


@dataclass(frozen=True)
class Network:
    """A functional or a sequential model. layers: by name. inputs, outputs: of the model, as results of layers."""

    model: Described
    layers: Mapping[str, Described]
    calls: Sequence[Applied]
    inputs: Sequence[Reference]
    outputs: Sequence[Reference]
    _kept: Mapping[str, tuple[int, str]]  # place among layers with weights, and name in .keras files

    def weights(self, layer: Described, of_model: Weights) -> Weights:
        """Return those of one of its layers."""
        place, key = self._kept.get(layer.name, (-1, ""))
        return of_model.layer(place, key, layer.name) if key else of_model


def network(model: Described) -> Network:
    """Return the graph of a model. Raises InvalidModel."""
    made = [described(given, model.name) for given in model.layers]
    layers = {layer.name: layer for layer in made}
    if len(layers) != len(made):
        raise InvalidModel(f"{model.name} has several layers of one name")
    if model.is_functional:
        kept = [layer for layer in made if layer.has_weights]
        calls, inputs, outputs = _functional(model, layers)
    else:
        kept = [layer for layer in made if layer.kind != "InputLayer"]
        calls, inputs, outputs = _sequential(model, made)
    keys = named_in_files([layer.kind for layer in kept])
    numbered = {layer.name: (i, key) for i, (layer, key) in enumerate(zip(kept, keys))}
    return Network(model, layers, _ordered(model, calls), inputs, outputs, numbered)


def _sequential(
    model: Described, layers: Sequence[Described]
) -> tuple[list[Applied], list[Reference], list[Reference]]:
    has_input = bool(layers) and layers[0].kind == "InputLayer"
    before = Reference(layers[0].name if has_input else "", 0, 0)
    inputs, calls = [before], list[Applied]()
    for layer in layers[1 if has_input else 0 :]:
        calls.append(Applied(layer, 0, [before], {}))
        before = Reference(layer.name, 0, 0)
    return calls, inputs, [before]


def _functional(
    model: Described, layers: Mapping[str, Described]
) -> tuple[list[Applied], list[Reference], list[Reference]]:
    calls = [
        Applied(layer, number, *_arguments(given, layers))
        for layer in layers.values()
        for number, given in enumerate(layer.inbound if isinstance(layer.inbound, list) else ())
    ]
    counts = {name: sum(c.layer is layer for c in calls) or 1 for name, layer in layers.items()}
    read = [r for c in calls for r in c.references()]
    # files of Keras 2 count the call by which a model was made as its first
    shifts = {name: max((r.call for r in read if r.layer == name), default=0) >= n for name, n in counts.items()}

    def within(r: Reference, shift: int) -> Reference:
        if r.layer not in layers:
            raise InvalidModel(f"{model.name} reads a layer {r.layer!r}, which it does not have")
        found = Reference(r.layer, r.call - shift, r.result)
        if not 0 <= found.call < counts[r.layer]:
            raise InvalidModel(f"{model.name} reads call {r.call} of layer {r.layer!r}, of {counts[r.layer]}")
        return found

    def settled(given: Any) -> Any:
        return within(given, int(shifts.get(given.layer, False))) if isinstance(given, Reference) else given

    def end(r: Reference) -> Reference:
        is_model = r.layer in layers and layers[r.layer].is_functional  # whose calls all files count from 1 here
        return within(r, int(is_model or (r.layer in shifts and shifts[r.layer])) if r.call else 0)

    calls = [Applied(c.layer, c.number, replaced(list(c.args), settled), replaced(c.kwargs, settled)) for c in calls]
    inputs, outputs = (ends(model.config.get(side)) for side in ("input_layers", "output_layers"))
    return calls, [end(r) for r in inputs], [end(r) for r in outputs]


def _arguments(given: Any, layers: Mapping[str, Described]) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return what a layer is called with: as Keras 3 says it, {"args", "kwargs"}, or as files of Keras 2 do, a list of
    [layer, call, result, kwargs]."""
    if isinstance(given, Mapping):
        args, kwargs = decoded(given.get("args") or []), decoded(given.get("kwargs") or {})
        if not isinstance(args, (list, tuple)) or not isinstance(kwargs, Mapping):
            raise InvalidModel(f"a layer is called with {type(args).__name__} and {type(kwargs).__name__}")
        return list(args), kwargs
    rows = [given] if isinstance(given, list) and referenced(given[:3]) else given
    if isinstance(rows, Mapping):  # named inputs
        rows = [rows[key] for key in sorted(rows)]
    found = [referenced(row[:3]) if isinstance(row, list) else None for row in rows]
    if not found or None in found:
        raise InvalidModel(f"a layer is called with {str(given)[:80]}")
    named = dict[str, Any]()
    for row in rows:
        named |= decoded(row[3]) if len(row) > 3 and isinstance(row[3], Mapping) else {}
    kwargs = {k: _tensor_in(v, layers) for k, v in named.items() if k != "name"}
    return [found[0] if len(found) == 1 else found], kwargs


def _tensor_in(given: Any, layers: Mapping[str, Described]) -> Any:
    found = referenced(given)
    return found if found is not None and found.layer in layers else given


def _ordered(model: Described, calls: Sequence[Applied]) -> list[Applied]:
    reads = [[(r.layer, r.call) for r in c.references()] for c in calls]
    order, ring = topological(reads, [[(c.layer.name, c.number)] for c in calls])
    if ring:
        names = ", ".join(repr(calls[i].layer.name) for i in ring)
        raise InvalidModel(f"layers of {model.name} read each other in a ring: {names}")
    return [calls[i] for i in order]
