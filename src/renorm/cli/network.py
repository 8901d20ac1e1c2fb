"""Opening what a verb is given: an artifact, or a model that is compiled first."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import renorm
from renorm.cli.progress import progress
from renorm.core.dims import is_static
from renorm.core.random_inputs import random_inputs
from renorm.errors import InvalidInput


def opened(model: Path, options: Mapping[str, Any], trust: Mapping[str, Any] | None = None) -> Any:
    """A module that runs. trust: which artifact may be read, as renorm.load takes it."""
    if model.suffix == ".renorm":
        module = renorm.load(model, threads=options["threads"], **(trust or {}))
        if options.get("inputs"):
            raise InvalidInput(
                f"{model.name} is compiled: its inputs cannot become constants", do="give --input NAME=FILE"
            )
        if options.get("train_state") and not module.state:
            raise InvalidInput(f"{model.name} has no state", do="compile it with --train-state")
        return module
    refuse_trust(model, trust)
    with progress(f"compiling {model.name}") as tell:
        return renorm.compile(model, progress=tell, **options)


def refuse_trust(model: Path, trust: Mapping[str, Any] | None) -> None:
    """A model is no artifact: it has neither digest nor signature that could be checked."""
    if any((trust or {}).values()):
        raise InvalidInput(f"{model.name} is no artifact", do="leave out --digest and --key, which are for .renorm")


def with_inputs(
    model: Path, options: Mapping[str, Any], seed: int, trust: Mapping[str, Any] | None = None
) -> tuple[Any, dict[str, Any]]:
    """A module of fixed shapes, and a random array for each of its inputs, by name and in order."""
    module = opened(model, options, trust)
    inputs = random_inputs(module.inputs, seed, options["shapes"])
    if not all(is_static(v.shape) for v in module.inputs) and hasattr(module, "specialized"):  # no artifact
        module = module.specialized(**{name: a.shape for name, a in inputs.items()})
    return module, inputs
