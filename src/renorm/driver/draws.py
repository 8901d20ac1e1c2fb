"""Draws of inputs: random or given ones, fitted to the inputs of a network, and the outputs that a runtime computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.difference import move_axes, type_of
from renorm.core.dims import fixed_extents
from renorm.core.errors import InvalidInput
from renorm.core.limits import DEFAULT, Limits
from renorm.core.random_inputs import random_inputs
from renorm.driver import bounds, runners
from renorm.frontends import read
from renorm.graph.ir import Graph

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Draw:
    """Inputs and outputs of one run of a network, by name and in order."""

    inputs: dict[str, Array]
    outputs: Sequence[tuple[str, Array]] = ()


def random_draws(
    model: Any,
    given: Mapping[str, Array],
    *,
    seed: int = 0,
    count: int = 1,
    shapes: Mapping[str, Sequence[int]] | None = None,
    limits: Limits = DEFAULT,
) -> list[Draw]:
    """Return random inputs of a model, with seeds that count up from `seed`; those that are given are the same in
    all."""
    inputs = read(model, limits=limits).inputs
    shapes = {**(shapes or {}), **{n: a.shape for n, a in given.items()}}
    return [Draw({**random_inputs(inputs, seed + i, shapes), **given}) for i in range(count)]


def run(model: Any, draws: Sequence[Draw], runner: str, **options: Any) -> tuple[list[Draw], str]:
    """Return inputs, by the names that the model has for them, with its outputs, and how these were computed. runner:
    see `driver.runners`; options: of `compile`."""
    limits, by, found = options.get("limits", DEFAULT), "", list[Draw]()
    graph = read(model, limits=limits)
    for draw in draws:
        fixed, inputs = fit(graph, draw.inputs, limits)
        arrays, by = runners.run(runner, model, fixed, inputs, **options)
        found.append(Draw(inputs, [(v.name, a) for v, a in zip(fixed.outputs, arrays, strict=True)]))
    return found, by


def fit(graph: Graph, inputs: Mapping[str, Array], limits: Limits = DEFAULT) -> tuple[Graph, dict[str, Array]]:
    """Return the graph for inputs of these shapes, and the inputs under its names: by name where all names are the
    same, otherwise by position; axes are moved where one has channels last. Raise InvalidInput where they do not fit.
    """
    problems, held = list[str](), dict[str, Array]()
    if {v.name for v in graph.inputs} == {*inputs}:
        inputs = {v.name: inputs[v.name] for v in graph.inputs}
    for i, (v, name) in enumerate(zip_longest(graph.inputs, inputs)):
        if v is None or name is None:
            problems.append(f"input {i}: {'there is none' if v is None else v.type}, {name or 'nothing'} is given")
            continue
        arranged = move_axes(inputs[name], v.shape)
        if arranged is None or dtypes.from_numpy(inputs[name].dtype) != v.dtype:
            problems.append(f"input {i} {v.name!r} is {v.type}; what is given is {type_of(inputs[name])}")
        else:
            held[v.name] = arranged[0]
    if problems:
        raise InvalidInput(f"{graph.name}: inputs do not fit", problems, "compare networks that take the same inputs")
    graph = graph.copy(fixed_extents(graph.inputs, {n: a.shape for n, a in held.items()}, graph.name))
    bounds.check(graph, limits)
    return graph, held
