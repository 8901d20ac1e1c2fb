"""Read what Keras writes of objects, as data: JSON in which each is {"class_name", "config", "module", ...}.

Nothing that a config names is imported, and nothing in it is run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm.core.dtypes import BY_NAME, numpy_dtype
from renorm.core.errors import InvalidModel, UnsupportedOp

Config = Mapping[str, Any]


@dataclass(frozen=True)
class Reference:
    """A result of a layer: the layer's name, which of its calls, which of the call's results."""

    layer: str
    call: int
    result: int


def parsed(text: str | bytes, label: str, what: str) -> Any:
    """Return what JSON says. Raises InvalidModel."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise InvalidModel(f"{label}: {what} is no JSON: {error}") from error


@dataclass(frozen=True)
class Described:
    """A layer, or an operation, as a config describes it. shared: the number of one that is described several times,
    and is one all the same."""

    kind: str  # name of its class
    registered: str  # "package>Class" of a class of the user's own
    module: str
    config: Config
    shared: Any = None
    inbound: Any = ()

    @property
    def name(self) -> str:
        return str(self.config.get("name") or self.kind)

    @property
    def layers(self) -> Any:
        """Return descriptions of the layers of a model; None of what is none."""
        return self.config.get("layers")

    @property
    def is_network(self) -> bool:
        return isinstance(self.layers, list)

    @property
    def is_functional(self) -> bool:
        return self.is_network and "output_layers" in self.config

    @property
    def has_weights(self) -> bool:
        """Return whether it is a layer that weights are stored under; operations of keras.ops are none."""
        return not re.match(r"keras(\.src)?\.(ops|activations)\b", self.module)


def described(given: Any, what: str) -> Described:
    """Return what a serialized layer is. Raises InvalidModel."""
    if not isinstance(given, Mapping) or not isinstance(given.get("class_name"), str):
        raise InvalidModel(f"{what}: no class_name in its config")
    config = given.get("config")
    if not isinstance(config, Mapping):
        raise InvalidModel(f"{what}: the config of {given['class_name']} is {type(config).__name__}, no mapping")
    own = {**config, "name": given["name"]} if isinstance(given.get("name"), str) else config
    built = given.get("build_config")
    if isinstance(built, Mapping) and "build_config" not in own:
        own = {**own, "build_config": built}
    return Described(
        given["class_name"],
        str(given.get("registered_name") or ""),
        str(given.get("module") or ""),
        own,
        given.get("shared_object_id"),
        given.get("inbound_nodes") or (),
    )


def decoded(given: Any) -> Any:
    """Return a value of a config as Python has it; what stands for a tensor is a Reference or an array, other objects
    stay as they are."""
    if isinstance(given, (list, tuple)):
        return [decoded(g) for g in given]
    if not isinstance(given, Mapping):
        return given
    kind, config = given.get("class_name"), given.get("config")
    match kind:
        case "__tuple__":
            return tuple(decoded(given.get("items") or ()))
        case "TensorShape":
            return decoded(given.get("items"))
        case "__keras_tensor__":
            return _reference(config)
        case "__tensor__" | "__numpy__" if isinstance(config, Mapping):
            dtype = str(config.get("dtype"))
            if dtype not in BY_NAME:
                raise UnsupportedOp(f"a tensor in its config is of dtype {dtype}")
            return np.asarray(config.get("value"), numpy_dtype(dtype))
        case "__slice__" if isinstance(config, Mapping):
            return slice(*(decoded(config.get(part)) for part in ("start", "stop", "step")))
        case "__ellipsis__":
            return Ellipsis
        case str():
            return given
        case _:
            return {k: decoded(v) for k, v in given.items()}


def _reference(config: Any) -> Reference:
    history = config.get("keras_history") if isinstance(config, Mapping) else None
    found = referenced(history)
    if found is None:
        raise InvalidModel(f"a tensor of the graph says {history!r} of where it comes from")
    return found


def referenced(given: Any) -> Reference | None:
    """Return [layer, call, result] as a reference; None for anything else."""
    if not isinstance(given, (list, tuple)) or len(given) != 3 or not isinstance(given[0], str):
        return None
    numbers = [n for n in given[1:] if isinstance(n, int) and not isinstance(n, bool) and n >= 0]
    return Reference(given[0], *numbers) if len(numbers) == 2 else None


def ends(given: Any) -> list[Reference]:
    """Return the references of input_layers or output_layers, in the order in which Keras flattens them."""
    if (found := referenced(given)) is not None:
        return [found]
    if isinstance(given, Mapping):
        return [r for key in sorted(given) for r in ends(given[key])]
    if isinstance(given, (list, tuple)):
        return [r for g in given for r in ends(g)]
    raise InvalidModel(f"an end of the graph is {given!r}")


def leaves(given: Any) -> Iterator[Any]:
    """Give what a structure of arguments holds, in the order in which Keras flattens it."""
    if isinstance(given, Mapping):
        for key in sorted(given):
            yield from leaves(given[key])
    elif isinstance(given, (list, tuple)):
        for g in given:
            yield from leaves(g)
    else:
        yield given


def replaced(given: Any, made: Any) -> Any:
    """Return a structure with what `made` gives for each leaf in its place."""
    if isinstance(given, Mapping):
        return {k: replaced(v, made) for k, v in given.items()}
    if isinstance(given, (list, tuple)):
        return type(given)(replaced(g, made) for g in given)
    return made(given)


_CLASSES = {"GroupQueryAttention": "GroupedQueryAttention"}  # where Keras exports a class under another name


def named_in_files(kinds: Sequence[str]) -> list[str]:
    """Return the names under which .keras files keep layers of these classes: of the class, with a number from the
    second on."""
    found, counts = list[str](), dict[str, int]()
    for kind in kinds:
        name = re.sub(r"\W+", "", _CLASSES.get(kind, kind))
        name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
        name = re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()
        counts[name] = counts.get(name, -1) + 1
        found.append(f"{name}_{counts[name]}" if counts[name] else name)
    return found
