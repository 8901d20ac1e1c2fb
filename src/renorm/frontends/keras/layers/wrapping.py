"""Layers around another one: in both directions of time, or at each of its steps."""

from __future__ import annotations

from typing import Any

from renorm import ops
from renorm.core.errors import InvalidModel
from renorm.frontends.keras.call import Call, Tensor
from renorm.frontends.keras.config import Described, described
from renorm.frontends.keras.layers.recurrent import backward
from renorm.frontends.keras.layers.table import reads
from renorm.graph.ir import Value


@reads("Bidirectional")
def _bidirectional(c: Call, x: Tensor, initial_state: Any = None) -> Any:
    layers = [described(c.option(key), key) for key in ("layer", "backward_layer") if c.option(key) is not None]
    if len(layers) == 1:
        name = layers[0].name.removeprefix("forward_")
        config = {**layers[0].config, "go_backwards": not layers[0].config.get("go_backwards")}
        layers = [
            _renamed(layers[0], {**layers[0].config, "name": f"forward_{name}"}),
            _renamed(layers[0], {**config, "name": f"backward_{name}"}),
        ]
    found = list[list[Any]]()
    halves: list[Any] = [None, None]
    if initial_state is not None:
        n = len(initial_state) // 2
        halves = [initial_state[:n], initial_state[n:]]
    has_all, has_state = (bool(layers[0].config.get(key)) for key in ("return_sequences", "return_state"))
    for layer, key, states in zip(layers, ("forward_layer", "backward_layer"), halves):
        own = _renamed(layer, {**layer.config, "zero_output_for_mask": has_all})
        given = {} if states is None else {"initial_state": states}
        found.append(c.inner(own, c.weights.part(key, layer.name), [x], given))
    ahead, back = (f[0].stored() for f in found)
    if has_all:
        back = backward(c, back)
    merged = _together(c, str(c.option("merge_mode", "concat")), ahead, back)
    made = [c.tensor(value, x.mask if has_all else None) for value in merged]
    return [*made, *(s for f in found for s in f[1:])] if has_state else made


def _renamed(layer: Described, config: Any) -> Described:
    return Described(layer.kind, layer.registered, layer.module, config, layer.shared)


def _together(c: Call, mode: str, a: Value, b: Value) -> list[Value]:
    match mode:
        case "concat":
            return [ops.concat([a, b], axis=a.rank - 1)]
        case "sum":
            return [ops.add(a, b)]
        case "ave":
            return [ops.mean([a, b])]
        case "mul":
            return [ops.mul(a, b)]
        case "None":
            return [a, b]
        case _:
            raise InvalidModel(f"merge_mode is {mode!r}")


@reads("TimeDistributed", keeps_mask=True)
def _time_distributed(c: Call, x: Tensor) -> Any:
    """The layer over all time steps as if they were further members of the batch."""
    layer, value = described(c.option("layer"), "layer"), x.stored()
    batch, steps = value.shape[:2]
    rows = c.tensor(c.reshaped(value, (batch * steps, *value.shape[2:])))
    (y,) = c.inner(layer, c.weights.part("layer", layer.name), [rows], {})
    made = y.stored()
    return c.reshaped(made, (batch, steps, *made.shape[1:]))
