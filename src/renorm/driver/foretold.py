"""Types of all values between the pieces of a network, before it runs.

before    x: f32[n]              -> k: f32[n, 8], c
Rounds    k: f32[m0, 8]          -> f32[m0 + 1, 8]        in each round another m0
after     k: f32[m0, 8]          -> y: f32[m0]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from renorm.core.dims import Dim, Sym, symbols_of
from renorm.core.errors import LimitExceeded, OutOfMemory, RenormError
from renorm.core.inputs import Typed
from renorm.core.limits import Limits
from renorm.core.stated import Declared
from renorm.frontends.outline import Hosted, Outline, Piece, Types
from renorm.runtime.program import TensorSpec
from renorm.runtime.steps import Along, Body, Choice, Rounds, Whole

Type = tuple[str, tuple[Dim, ...]]  # dtype and shape
_FLAG, _NUMBER = ("bool", ()), ("int64", ())


class _Untold(Exception):
    """The type of a value is another one in each call."""


@dataclass
class Foretold:
    """types: of the inputs of pieces, by their numbers; without those that only calls tell. outputs: of the network;
    None where calls tell."""

    types: dict[int, Types] = field(default_factory=dict[int, Types])
    outputs: tuple[TensorSpec, ...] | None = None

    @classmethod
    def of(cls, outline: Outline, limits: Limits, first: Sequence[TensorSpec] | None = None) -> Foretold:
        """Read the pieces of a network, one after the other. first: what the first of them gives, if that is known."""
        return _Reader(outline, limits, first).told


class _Reader:
    def __init__(self, outline: Outline, limits: Limits, first: Sequence[TensorSpec] | None):
        self._outline, self._plan, self._limits, self.told = outline, outline.plan, limits, Foretold()
        self._first = first
        self._known = {s for v in self._plan.inputs for d in v.shape for s in symbols_of(d)}
        self._fresh = dict[object, Sym]()
        found: dict[str, Type] = {v.name: (v.dtype, tuple(v.shape)) for v in self._plan.inputs}
        for step in self._plan.steps:
            try:
                if isinstance(step, Whole):
                    found |= self._part(step.part, found)
                elif isinstance(step, Choice):
                    found |= self._choice(step, found)
                else:
                    found |= self._rounds(step, found)
            except (LimitExceeded, OutOfMemory):
                raise
            except (_Untold, RenormError):  # later pieces may read none of it
                if isinstance(step, Rounds):  # what is told of its first round may not be so of others
                    self.told.types.pop(step.body.part, None)
        outputs = [(name, found.get(value)) for name, value in self._plan.outputs]
        self.told.outputs = _specs(outputs)

    def _open(self, key: object) -> Sym:
        """Return the symbol for what is known by a key."""
        if key not in self._fresh:
            names = (f"m{len(self._fresh)}{'_' * k}" for k in range(len(self._known) + 1))
            made = Sym(next(name for name in names if name not in {str(s) for s in self._known}))
            self._fresh[key] = made
            self._known |= symbols_of(made)
        return self._fresh[key]

    def _part(self, number: int, found: Mapping[str, Type]) -> dict[str, Type]:
        """Return the types of what a part makes of values of these types. Raises _Untold."""
        piece = self._outline.pieces[number]
        part = piece.part
        if not part.outputs:
            return {}
        if missing := [name for name in part.inputs if name not in found]:
            raise _Untold(missing)
        types = self._declared({name: found[name] for name in part.inputs})
        if number == self._outline.first:
            outputs = self._first or piece.read(None, {}, self._limits).outputs
        else:
            self.told.types[number] = types
            outputs = outputs_of(piece, types, self._limits)
        given = {s for v in types.values() for d in v.shape for s in symbols_of(d)}

        def extent(d: Dim) -> Dim:
            return d if isinstance(d, int) or symbols_of(d) <= given else self._open((number, str(d)))

        return {name: (v.dtype, tuple(map(extent, v.shape))) for name, v in zip(part.outputs, outputs)}

    def _declared(self, found: Mapping[str, Type]) -> Types:
        """Return types as inputs declare them: a form of several extents stands where these are told, too."""
        plain = {s for _, shape in found.values() for d in shape if _is_symbol(d) for s in symbols_of(d)}

        def extent(d: Dim) -> Dim:
            return d if isinstance(d, int) or symbols_of(d) <= plain else self._open(str(d))

        return {n: Declared(n, dtype, tuple(map(extent, shape))) for n, (dtype, shape) in found.items()}

    def _choice(self, step: Choice, found: Mapping[str, Type]) -> dict[str, Type]:
        made = [self._body(body, found) for body in step.bodies]
        return {
            name: self._either((step.name, i), *types)
            for i, (name, *types) in enumerate(zip(step.results, *made))
            if name
        }

    def _body(self, body: Body, found: Mapping[str, Type]) -> list[Type]:
        seen = {**found, **self._part(body.part, found)}
        if missing := [name for name in body.results if name not in seen]:
            raise _Untold(missing)
        return [seen[name] for name in body.results]

    def _either(self, key: object, one: Type, other: Type) -> Type:
        if one[0] != other[0] or len(one[1]) != len(other[1]):
            raise _Untold(key)
        return one[0], tuple(a if a == b else self._open((key, a, b)) for a, b in zip(one[1], other[1]))

    def _rounds(self, step: Rounds, found: Mapping[str, Type]) -> dict[str, Type]:
        """Extents of states that change are open; those that begin alike and change alike are one."""
        if missing := [name for name in (*step.states, *(name for name, _ in step.sliced)) if name not in found]:
            raise _Untold(missing)
        seen = dict(found)
        if step.number is not None:
            seen[step.number] = _NUMBER
        if step.going is not None:
            seen[step.going] = _FLAG
        for formal, (name, along) in zip(step.slices, step.sliced):
            dtype, shape = found[name]
            seen[formal] = dtype, tuple(d for a, d in enumerate(shape) if a != along.axis % len(shape))
        states, places = [found[name] for name in step.states], dict[tuple[int, int], object]()
        while True:
            made = self._body(step.body, {**seen, **dict(zip(step.carried, states))})
            made = made[step.condition is not None :]
            then = dict[tuple[int, int], object]()
            for i, (old, new) in enumerate(zip(states, made)):
                if old[0] != new[0] or len(old[1]) != len(new[1]):
                    raise _Untold(step.name)
                for axis, (d, e) in enumerate(zip(old[1], new[1])):
                    if d != e or (i, axis) in places:
                        then[i, axis] = (step.name, d, e)
            if len(then) == len(places) and _classes(then) == _classes(places):
                break
            places = then
            states = [
                (dtype, tuple(self._open(places[i, a]) if (i, a) in places else d for a, d in enumerate(shape)))
                for i, (dtype, shape) in enumerate(states)
            ]
        stacked = [self._stacked(step, t, along) for t, along in zip(made[len(states) :], step.stacked)]
        return {name: t for name, t in zip(step.results, [*states, *stacked]) if name}

    def _stacked(self, step: Rounds, of: Type, along: Along) -> Type:
        dtype, shape = of
        axis = along.axis % (len(shape) + 1)
        return dtype, (*shape[:axis], self._open((step.name, "rounds")), *shape[axis:])


def outputs_of(piece: Piece, types: Types, limits: Limits) -> Sequence[Typed]:
    """Return the outputs of a piece for inputs of these types. Raises Hosted where only calls tell them."""
    try:
        return piece.read(types, {}, limits).outputs
    except Hosted as error:
        if (found := error.outline and Foretold.of(error.outline, limits).outputs) is None:
            raise
        return found


def _classes(keys: Mapping[tuple[int, int], object]) -> set[frozenset[tuple[int, int]]]:
    """Return which places have the same key."""
    found = dict[object, set[tuple[int, int]]]()
    for place, key in keys.items():
        found.setdefault(key, set()).add(place)
    return {frozenset(places) for places in found.values()}


def _is_symbol(d: Dim) -> bool:
    return isinstance(d, Sym) and d in [Sym(s) for s in map(str, symbols_of(d))]


def _specs(outputs: Sequence[tuple[str, Type | None]]) -> tuple[TensorSpec, ...] | None:
    found = [TensorSpec(name, *of) for name, of in outputs if of is not None]
    return tuple(found) if len(found) == len(outputs) else None
