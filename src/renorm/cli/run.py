"""renorm run: runs a model or an artifact on arrays from files."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
import numpy as np

import renorm
from renorm.cli import network, output
from renorm.cli.options import (
    FILE,
    OUTPUT,
    Shapes,
    arrays,
    calling,
    checked,
    given,
    model,
    seed,
    split_values,
    train_state,
    trusting,
    verb,
)
from renorm.core.files import replacing
from renorm.core.random_inputs import random_inputs
from renorm.errors import InvalidInput, StatisticsWarning
from renorm.training.batches import Files, arguments

Array = np.ndarray[Any, Any]


@verb("run")
@model
@given
@click.option(
    "--batches",
    multiple=True,
    type=FILE,
    help="Runs on each batch of a .npy or .npz file, or of a folder of them, in order; may be repeated.",
)
@click.option("--batch-size", type=click.IntRange(1), default=None, help="Cut these files; default: a file is a batch.")
@click.option("-o", "--output", "path", type=OUTPUT, help="A file for the outputs, as .npz whatever its suffix.")
@click.option(
    "--write-state",
    "state_path",
    type=FILE,
    help="MODEL with the state after the last run: .onnx, or .renorm for an artifact.",
)
@seed
@train_state
@checked
@trusting
@calling
def command(
    model: Path,
    inputs: tuple[str, ...],
    batches: tuple[Path, ...],
    batch_size: int | None,
    path: Path | None,
    state_path: Path | None,
    seed: int,
    options: dict[str, Any],
    trust: dict[str, Any],
) -> output.Outcome:
    """Runs MODEL (any file that renorm reads, or .renorm). Inputs that no --input gives are random.

    A network in training mode runs with --train-state: norms replace their running statistics, which --write-state
    puts back into the model, and nothing else changes there. With --batches the state goes from batch to batch, and
    the outputs are those of the last one. With several shapes of an input, one run of each: --output has the outputs of
    the second below 1/, of the third below 2/.
    """
    if inputs and batches:
        raise InvalidInput("--input and --batches give the same inputs twice", do="leave one of them out")
    bound, inputs = split_values(inputs)
    opened = network.opened(model, options | {"inputs": bound}, trust)
    if state_path is not None:
        _check_state_path(model, state_path, opened)
    before, drawn = opened.state.copy(), list[str]()
    if batches:
        if len(options["shapes"].calls) > 1:
            raise InvalidInput("--batches and several shapes of an input say twice what is run", do="leave one out")
        calls: Iterable[Any] = Files(batches, batch_size)
    else:
        values = network.elements(opened, bound) if model.suffix == ".renorm" else {}
        calls, drawn = _inputs(opened, inputs, values, options["shapes"], seed)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always", StatisticsWarning)
        count, ran = _run(opened, calls, 1 if batches else len(options["shapes"].calls))
    held: dict[str, Any] = {f"{i}/{n}" if i else n: a for i, (_, found) in enumerate(ran) for n, a in found.items()}
    if path:
        with replacing(path) as file:
            np.savez(file, **held)
    if state_path is not None and state_path.suffix == ".renorm":
        opened.save(state_path)
    elif state_path is not None:
        renorm.write_state(model, opened.state, state_path, limits=options["limits"])
    state = [(*_row(n, a), _moved(before[n], a)) for n, a in opened.state.items()]
    said = [str(w.message) for w in told if issubclass(w.category, StatisticsWarning)]
    keys = ("name", "dtype", "shape", "min", "mean", "max")
    columns = ("name", "dtype", "shape", "least", "mean", "greatest")
    if drawn:
        output.line(f"random input: {', '.join(drawn)} (seed {seed})")
    outputs = [(given, [_row(n, a) for n, a in results.items()]) for given, results in ran]
    if len(outputs) > 1:
        rows = [(network.shapes_text(given), *row) for given, rows in outputs for row in rows]
        output.table("outputs of each call", ("call", *columns), rows)
    for _, rows in outputs if len(outputs) == 1 else ():
        output.table("outputs" + (f" of batch {count}" if batches else ""), columns, rows)
    output.table(f"state after {count} runs" if batches or count > 1 else "state", (*columns, "moved by"), state)
    for text in said:
        output.warning(text)
    if path:
        output.line(f"{path}: {', '.join(held)}")
    told_outputs = [(given, {"outputs": [dict(zip(keys, r)) for r in rows]}) for given, rows in outputs]
    data = {"random": drawn, "runs": count, "saved": path and str(path), **network.of_calls(told_outputs)}
    return output.Outcome(data | {"state": [dict(zip((*keys, "moved"), r)) for r in state], "warnings": said})


def _check_state_path(model: Path, path: Path, opened: Any) -> None:
    if not opened.state:
        raise InvalidInput(f"{model.name} has no state to write", do="run it with --train-state")
    fitting = ".renorm" if model.suffix == ".renorm" else ".onnx"
    if path.suffix.lower() != fitting:
        raise InvalidInput(f"--write-state {path}: the state of {model.name} goes into a {fitting} file")


def _inputs(
    opened: Any, files: tuple[str, ...], values: dict[str, Array], shapes: Shapes, seed: int
) -> tuple[list[dict[str, Array]], list[str]]:
    """Arrays by the names of the inputs, for each call, and which of them are random. values: of some."""
    names = [v.name for v in opened.inputs]
    held = {**values, **arrays(files, names)}
    drawn = [n for n in names if n not in held]
    return [random_inputs(opened.inputs, seed, s, held=held) for s in shapes.calls], drawn


def _run(opened: Any, batches: Iterable[Any], kept: int) -> tuple[int, list[tuple[dict[str, Array], dict[str, Array]]]]:
    """Return how many batches there were, and inputs and outputs of the last `kept` runs by name."""
    count, found = 0, deque[tuple[dict[str, Array], dict[str, Array]]](maxlen=kept)
    for count, batch in enumerate(batches, 1):
        args, named = arguments(batch)
        try:
            results = opened.run(*args, **named)
        except InvalidInput as error:
            raise error.within(f"batch {count - 1}") from error
        inputs = {**dict(zip((v.name for v in opened.inputs), args)), **named}
        found.append((inputs, dict(zip((v.name for v in opened.outputs), results))))
    if not count:
        raise InvalidInput("there are no batches")
    return count, [*found]


def _row(name: str, array: Array) -> tuple[Any, ...]:
    return name, str(array.dtype), "x".join(map(str, array.shape)), *_extremes(array)


def _moved(before: Array, after: Array) -> float:
    """The largest difference; NaN of an empty array."""
    with np.errstate(invalid="ignore"):
        return _extremes(np.abs(after.astype(np.float64) - before.astype(np.float64)))[2]


def _extremes(array: Array) -> tuple[float, float, float]:
    """Least, mean and greatest element; NaN of an empty array."""
    if array.size == 0:
        return float("nan"), float("nan"), float("nan")
    wide = array.astype(np.float64)
    return float(wide.min()), float(wide.mean()), float(wide.max())
