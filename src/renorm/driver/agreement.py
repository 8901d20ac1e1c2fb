"""Two models side by side: what each makes of the same inputs, compared by position; names are compared apart.

A model may be a file of any format that renorm reads. Where one has channels last and the other first, the axes of
what goes in and comes out are moved, and the comparison says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat, zip_longest
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.comparison import distances, is_counted, largest, random_inputs
from renorm.core.dims import Shape, fixed_extents, format_shape
from renorm.core.errors import InvalidInput
from renorm.core.limits import DEFAULT
from renorm.core.tolerance import Judged, judge, tolerance
from renorm.driver import bounds, runners
from renorm.frontends import read, tflite
from renorm.graph import interpret
from renorm.graph.ir import Graph, Value
from renorm.passes.sensitivity import Sensitivity, tolerances

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Tolerance:
    """An element differs where |before - after| is above the limit: the larger one of `absolute`, and `relative` times
    the largest absolute value that the tensor has before, unless it is of integers. NaN agrees with NaN, an infinity
    with itself. relative: None for what core.tolerance says of the dtype."""

    absolute: float = 0.0
    relative: float | None = 0.0

    def __post_init__(self) -> None:
        if not (self.absolute >= 0 and (self.relative is None or self.relative >= 0)):  # nothing is above NaN
            raise InvalidInput(f"a tolerance is {self.absolute} absolute, {self.relative} relative")

    def limit(self, before: Array) -> float:
        relative = tolerance(dtypes.from_numpy(before.dtype)) if self.relative is None else self.relative
        return self.absolute if is_counted(before) else max(self.absolute, relative * largest(before))


@dataclass(frozen=True)
class Draw:
    """Inputs and outputs of one run of a network, by name and in order."""

    inputs: dict[str, Array]
    outputs: Sequence[tuple[str, Array]] = ()


@dataclass(frozen=True)
class Compared:
    """A tensor before and after. error: the largest |before - after|, at index `worst`; largest: absolute value before;
    differing: elements of `count` above `limit`. moved: how axes of `after` were moved, if they were. why: a sentence,
    where it is not by its elements that they differ."""

    name: str
    after: str
    before_type: str
    after_type: str
    error: float
    largest: float
    limit: float
    differing: int
    count: int
    worst: tuple[int, ...] = ()
    moved: str = ""
    why: str = ""

    @property
    def agrees(self) -> bool:
        return not self.differing and not self.why


@dataclass(frozen=True)
class Agreement:
    """before, after: how each was computed. outputs: the worst of all draws, by position. names: (what, before, after)
    of inputs and outputs that are named otherwise. first: where outputs differ, the first tensor of the network after
    that one of the same name and shape before differs from; first_node: what makes it, as the network after has it;
    is_searched: whether it was looked for."""

    before: str
    after: str
    draws: int
    tolerance: Tolerance
    outputs: tuple[Compared, ...]
    names: tuple[tuple[str, str, str], ...]
    first: Compared | None = None
    first_node: str = ""
    is_searched: bool = False

    @property
    def agrees(self) -> bool:
        return all(o.agrees for o in self.outputs)


def compared(
    name: str,
    before: Array,
    after: Array,
    allowed: Tolerance,
    after_name: str = "",
    judged: Callable[[Array], Judged] | None = None,
) -> Compared:
    """One tensor beside another. judged: counts the elements that differ, in the place of `allowed`."""
    limit, types = allowed.limit(before), (_type(before), _type(after))
    arranged = move_axes(after, before.shape)
    if arranged is None:
        why = f"shapes differ: {format_shape(before.shape)} and {format_shape(after.shape)}"
        return Compared(
            name, after_name or name, *types, float("inf"), largest(before), limit, before.size, before.size, why=why
        )
    after, moved = arranged
    errors = distances(before, after)
    worst = tuple(map(int, np.unravel_index(int(errors.argmax()), errors.shape))) if errors.size else ()
    found = judged(after) if judged is not None else Judged(0.0, int((errors > limit).sum()), worst)
    why = f"types differ: {before.dtype} and {after.dtype}" if before.dtype != after.dtype else ""
    return Compared(
        name,
        after_name or name,
        *types,
        float(errors.max(initial=0.0)),
        largest(before),
        limit,
        found.differing,
        errors.size,
        found.worst or worst,
        moved,
        why,
    )


def move_axes(array: Array, shape: Shape) -> tuple[Array, str] | None:
    """The array with its axes in the order of `shape`, whose open extents fit anything, and what was moved; None where
    neither order fits."""

    def fits(found: Sequence[int]) -> bool:
        return len(found) == len(shape) and all(not isinstance(d, int) or d == e for d, e in zip(shape, found))

    if fits(array.shape):
        return array, ""
    if array.ndim > 2:
        for source, target, said in ((-1, 1, "channels last to first"), (1, -1, "channels first to last")):
            turned = np.moveaxis(array, source, target)
            if fits(turned.shape):
                return turned, said
    return None


def inputs_of(
    model: Any, *, seed: int, draws: int, shapes: Mapping[str, Sequence[int]] | None, given: Mapping[str, Array]
) -> list[Draw]:
    """Random inputs of a model, with seeds that count up from `seed`; those that are given are the same in all."""
    graph = read(model)
    shapes = {**(shapes or {}), **{n: a.shape for n, a in given.items()}}
    return [Draw({**random_inputs(graph.inputs, seed + i, shapes), **given}) for i in range(draws)]


def draw(model: Any, inputs: Sequence[Draw], runner: str, **options: Any) -> tuple[list[Draw], str]:
    """Return what a model makes of inputs, which are taken by position, and how that was computed."""
    limits = options.get("limits", DEFAULT)
    graph, said, found = read(model, limits=limits), "", list[Draw]()
    for given in inputs:
        fixed, held = _fixed(graph, given)
        bounds.check(fixed, limits)
        arrays, said = runners.run(runner, model, fixed, held, **options)
        found.append(Draw(held, [(v.name, a) for v, a in zip(fixed.outputs, arrays, strict=True)]))
    return found, said


def agree(
    before: Sequence[Draw], after: Sequence[Draw], allowed: Tolerance, said: tuple[str, str], model: Any = None
) -> Agreement:
    """Compares what two networks made of the same inputs; said: how each was computed. model: what gave `before`, whose
    own sensitivity counts where `allowed` leaves it to the dtype. Raises InvalidInput where they have different numbers
    of outputs."""
    outputs = list[Compared]()
    for old, new in zip(before, after, strict=True):
        if len(old.outputs) != len(new.outputs):
            raise InvalidInput(
                f"the networks have {len(old.outputs)} and {len(new.outputs)} outputs",
                [f"{side} {', '.join(n for n, _ in d.outputs)}" for side, d in (("before", old), ("after ", new))],
            )
        judges = _judges(model, old) if model is not None and allowed.relative is None else repeat(None)
        pairs = zip(old.outputs, new.outputs, judges)
        found = [compared(n, a, b, allowed, m, by) for (n, a), (m, b), by in pairs]
        outputs = [max(pair, key=_badness) for pair in zip(outputs, found)] if outputs else found
    return Agreement(*said, len(after), allowed, tuple(outputs), tuple(_renamed(before[0], after[0])))


def _judges(model: Any, old: Draw) -> list[Callable[[Array], Judged]]:
    """For each output what judges an array in its place."""
    graph, held = _fixed(model, old)
    sensitivity = Sensitivity.of(graph, held)

    def judge_of(place: int, expected: Array, allowed: float) -> Callable[[Array], Judged]:
        return lambda after: judge(after, expected, allowed, sensitivity.movements(place))

    pairs = zip(old.outputs, tolerances(graph.outputs), strict=True)
    return [judge_of(i, a, allowed) for i, ((_, a), allowed) in enumerate(pairs)]


def _fixed(model: Any, given: Draw) -> tuple[Graph, dict[str, Array]]:
    """The graph of a model for inputs of these shapes, and the inputs by its names."""
    graph = read(model)
    held = _placed(graph, given.inputs)
    return graph.copy(fixed_extents(graph.inputs, {n: a.shape for n, a in held.items()}, graph.name)), held


def first_diverging(found: Agreement, before: Any, after: Any, given: Sequence[Draw]) -> Agreement:
    """The same, with the first tensor of `after` that differs from the one of its name and shape in `before`, and the
    node that makes it, if there is one; both networks computed by the interpreter."""
    for inputs in given:
        known = {(name, a.shape): a for name, v, a in _values(before, inputs) if not v.is_constant}
        for name, v, array in _values(after, inputs):
            if v.producer is None or (name, array.shape) not in known:
                continue
            first = compared(name, known[name, array.shape], array, found.tolerance)
            if not first.agrees:
                made_by = f"{v.producer.name} ({v.producer.op.name})"
                return replace(found, first=first, first_node=made_by, is_searched=True)
    return replace(found, is_searched=True)


def _values(model: Any, given: Draw) -> list[tuple[str, Value, Array]]:
    """Every value as the interpreter computes it, under the name that the file has for it."""
    graph = read(model)
    source: Any = graph.metadata.get(tflite.KEY)
    tensors: dict[str, tuple[str, bool]] = source.forms if source is not None else {}
    fixed, held = _fixed(graph, given)
    values = interpret.evaluate(fixed, held)
    return [(tensors.get(v.name, (v.name, False))[0], v, array) for v, array in values.items()]


def _placed(graph: Graph, given: Mapping[str, Array]) -> dict[str, Array]:
    """Arrays by the names of a graph's inputs: of the same names where all of them are, otherwise by position."""
    problems, held = list[str](), dict[str, Array]()
    if {v.name for v in graph.inputs} == {*given}:
        given = {v.name: given[v.name] for v in graph.inputs}
    for i, (v, name) in enumerate(zip_longest(graph.inputs, given)):
        if v is None or name is None:
            problems.append(f"input {i}: {'there is none' if v is None else v.type}, {name or 'nothing'} is given")
            continue
        arranged = move_axes(given[name], v.shape)
        if arranged is None or dtypes.from_numpy(given[name].dtype) != v.dtype:
            problems.append(f"input {i} {v.name!r} is {v.type}; what is given is {_type(given[name])}")
        else:
            held[v.name] = arranged[0]
    if problems:
        raise InvalidInput(f"{graph.name}: inputs do not fit", problems, "compare networks that take the same inputs")
    return held


def _type(array: Array) -> str:
    return f"{dtypes.short(dtypes.from_numpy(array.dtype))}{format_shape(array.shape)}"


def _badness(found: Compared) -> tuple[bool, float]:
    return not found.agrees, found.error


def _renamed(before: Draw, after: Draw) -> list[tuple[str, str, str]]:
    sides = [("input", [*before.inputs], [*after.inputs])]
    sides.append(("output", [n for n, _ in before.outputs], [n for n, _ in after.outputs]))
    return [(f"{what} {i}", a, b) for what, x, y in sides for i, (a, b) in enumerate(zip(x, y)) if a != b]
