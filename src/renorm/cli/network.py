"""Opening what a verb is given: an artifact, or a model that is compiled first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import renorm
from renorm.cli.progress import progress
from renorm.core import dtypes
from renorm.core.random_inputs import random_inputs
from renorm.errors import InvalidInput

Array = np.ndarray[Any, Any]


def opened(model: Path, options: Mapping[str, Any], trust: Mapping[str, Any] | None = None) -> Any:
    """A module that runs. options: with Shapes. trust: which artifact may be read, as renorm.load takes it."""
    if model.suffix == ".renorm":
        module = renorm.load(model, threads=options["threads"], limits=options["limits"], **(trust or {}))
        elements(module, options.get("inputs") or {})
        if options.get("train_state") and not module.state:
            raise InvalidInput(f"{model.name} has no state", do="compile it with --train-state")
        return module
    refuse_trust(model, trust)
    with progress(f"compiling {model.name}") as tell:
        return renorm.compile(model, progress=tell, **{**options, "shapes": options["shapes"].stated})


def elements(module: Any, given: Mapping[str, Any]) -> dict[str, Array]:
    """Return the arrays of inputs that decide shapes, whose elements are given. Raise InvalidInput for other inputs."""
    specs = {v.name: v for v in module.inputs if v.deciding}
    if others := [name for name in given if name not in specs]:
        what = f"{', '.join(others)} cannot become constants of {module.name}, which is compiled"
        raise InvalidInput(what, [f"inputs: {', '.join(map(str, module.inputs))}"], "give --input NAME=FILE")
    return {name: np.asarray(value, dtypes.numpy_dtype(specs[name].dtype)) for name, value in given.items()}


def refuse_trust(model: Path, trust: Mapping[str, Any] | None) -> None:
    """A model is no artifact: it has neither digest nor signature that could be checked."""
    if any((trust or {}).values()):
        raise InvalidInput(f"{model.name} is no artifact", do="leave out --digest and --key, which are for .renorm")


def with_inputs(
    model: Path, options: Mapping[str, Any], seed: int, trust: Mapping[str, Any] | None = None
) -> tuple[Any, list[dict[str, Any]]]:
    """A module, and for each call that options["shapes"] has a random array for each of its inputs, by name and in
    order."""
    module = opened(model, options, trust)
    return module, [random_inputs(module.inputs, seed, shapes) for shapes in options["shapes"].calls]


def at(module: Any, inputs: Mapping[str, Any]) -> Any:
    """The module that answers a call with these inputs: this one, but for one that has others for each shape. A network
    in parts (with a plan) is none of these."""
    return module.specialized(**inputs) if hasattr(module, "obstacle") and not hasattr(module, "plan") else module


def shapes_text(inputs: Mapping[str, Any]) -> str:
    """The shapes of inputs as --shape has them."""
    return ", ".join(f"{name}={'x'.join(map(str, a.shape))}" for name, a in inputs.items())


def of_calls(found: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> dict[str, Any]:
    """Return what JSON has of calls, given by their inputs and what else there is to say: of one, all of it; of
    several, a list."""
    told = [{"shapes": {n: list(a.shape) for n, a in inputs.items()}, **data} for inputs, data in found]
    return told[0] if len(told) == 1 else {"calls": told}
