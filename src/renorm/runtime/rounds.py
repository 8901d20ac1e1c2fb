"""One run of a network in pieces: loops and branches, over arrays by the names of values."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from renorm.core.errors import Cancelled, InvalidInput, RenormError, TimeLimit
from renorm.core.limits import Limits
from renorm.runtime import threads as teams
from renorm.runtime.steps import Along, Choice, Plan, Rounds, Whole

Array = np.ndarray[Any, Any]
Values = dict[str, Array]
ArrayType = tuple["np.dtype[Any]", tuple[int, ...]]


class Runner(Protocol):
    """Run a part of a network: choose a module for what is given, or tell the types of its results."""

    @property
    def modules(self) -> Sequence[Any]:
        """The modules that there are by now."""
        ...

    def module_for(self, given: Sequence[Array]) -> Any:
        """Return the module that runs the part on these inputs."""
        ...

    def types(self, given: Sequence[Array]) -> list[ArrayType]:
        """Return dtype and shape of each output for these inputs; 0 for an extent that only running tells."""
        ...


@dataclass(frozen=True)
class PartCall:
    """One call of a part. name: of the part. module: that ran, on what was given, for so many seconds."""

    name: str
    module: Any
    given: Sequence[Array]
    seconds: float


class Run:
    """One call of a module."""

    def __init__(
        self,
        plan: Plan,
        runners: Sequence[Runner],
        limits: Limits,
        cancels: Callable[[], int],
        timeout: float | None,
        told: Callable[[PartCall], object] = lambda call: None,
    ):
        """runners: of the parts, in order. cancels: how often runs were cancelled. told: is called after each part."""
        self._plan, self._name, self._runners, self._limits = plan, plan.name, runners, limits
        self._limit, self._told = None if timeout is None else teams.Limit(timeout), told
        self._now, self._cancels = cancels, cancels()

    def _left(self) -> float | None:
        """Return the seconds that are left. Raises Cancelled, TimeLimit."""
        if self._now() != self._cancels:
            raise Cancelled(f"a run of {self._name} was cancelled")
        if self._limit is not None and not self._limit.left:
            raise self._late(self._limit)
        return self._limit and self._limit.left

    def _late(self, limit: teams.Limit) -> TimeLimit:
        return TimeLimit(f"a run of {self._name} was not done in {limit.seconds:g} s")

    def of(self, values: Values) -> None:
        """Run all steps, and note what they make among values."""
        for step in self._plan.steps:
            if isinstance(step, Whole):
                values |= self._part(step.part, values)
            elif isinstance(step, Choice):
                self._choice(step, values)
            else:
                self._rounds(step, values)

    def _part(self, number: int, values: Mapping[str, Array]) -> Values:
        """Return the outputs of a part."""
        left, part = self._left(), self._plan.parts[number]
        if not part.outputs:
            return {}
        given = [values[name] for name in part.inputs]
        module, begin = self._runners[number].module_for(given), time.perf_counter()
        try:
            results = module.run(*given, timeout=left)
        except TimeLimit as error:
            assert self._limit is not None
            raise self._late(self._limit) from error
        self._told(PartCall(part.name, module, given, time.perf_counter() - begin))
        return dict(zip(part.outputs, results))

    def _choice(self, step: Choice, values: Values) -> None:
        """Run the branch that is chosen, and note its results among values."""
        is_first = bool(_element(values[step.condition], f"the condition of {step.kind} {step.name!r}"))
        body, which = step.bodies[0 if is_first else 1], "then" if is_first else "else"
        try:
            seen = {**values, **self._part(body.part, values)}
        except RenormError as error:
            raise error.within(f"{step.kind} {step.name!r}, {which}") from error
        values |= {made: seen[name] for made, name in zip(step.results, body.results) if made}

    def _rounds(self, step: Rounds, values: Values) -> None:
        """Run a body round by round, and note what it made among values."""
        what, number = f"{step.kind} {step.name!r}", 0
        most = None if step.count is None else int(_element(values[step.count], f"the number of rounds of {what}"))
        if step.sliced:
            most = _length(step, values)
        condition = None if step.condition is None else values[step.condition]
        states = [values[name] for name in step.states]
        kept: list[list[Array]] = [[] for _ in step.stacked]
        taken, has_condition = 0, condition is not None
        while (most is None or number < most) and _goes_on(condition, what):
            seen = self._given(step, values, number, most, condition, states)
            try:
                seen |= self._part(step.body.part, seen)
                made = [seen[name] for name in step.body.results]
                if has_condition:
                    condition = made.pop(0)
                states, others = made[: len(states)], made[len(states) :]
                for held, one in zip(kept, others):
                    _check_alike(held, one)
                    held.append(one)
                    taken += one.nbytes
                if kept:
                    self._limits.check(self._name, [("bytes", taken, "results of rounds")])
            except RenormError as error:
                raise error.within(f"{what}, round {number}") from error
            number += 1
        if number:
            stacked = [_together(held, along) for held, along in zip(kept, step.stacked)]
        else:
            stacked = self._none(step, self._given(step, values, 0, most, condition, states)) if kept else []
        values |= {name: a for name, a in zip(step.results, [*states, *stacked]) if name}

    def _given(
        self, step: Rounds, values: Values, number: int, most: int | None, condition: Array | None, states: list[Array]
    ) -> Values:
        """Return what a round sees."""
        seen = {**values, **dict(zip(step.carried, states))}
        if step.number is not None:
            seen[step.number] = np.array(number, np.int64)
        if step.going is not None:
            seen[step.going] = np.array(True) if condition is None else condition
        for formal, (name, along) in zip(step.slices, step.sliced):
            assert most is not None
            place, whole = most - 1 - number if along.is_backward else number, np.moveaxis(values[name], along.axis, 0)
            seen[formal] = whole[place] if most else np.zeros(whole.shape[1:], whole.dtype)
        return seen

    def _none(self, step: Rounds, seen: Values) -> list[Array]:
        """Return what is put together of no rounds: of the types that a round would give, where extents that only it
        would tell are 0."""
        what = f"{step.kind} {step.name!r} makes no rounds"
        try:
            part = self._plan.parts[step.body.part]
            types = dict(zip(part.outputs, self._runners[step.body.part].types([seen[n] for n in part.inputs])))
        except RenormError as error:
            raise error.within(f"{what}, and the type of its results is not known") from error
        types = {n: (a.dtype, a.shape) for n, a in seen.items()} | types
        found = list[Array]()
        for name, along in zip(step.body.results[len(step.body.results) - len(step.stacked) :], step.stacked):
            dtype, shape = types[name]
            whole = np.zeros((0, *shape), dtype)
            found.append(np.ascontiguousarray(np.moveaxis(whole, 0, along.axis)))
        return found


def _goes_on(condition: Array | None, what: str) -> bool:
    return condition is None or bool(_element(condition, f"the condition of {what}"))


def _element(value: Array, what: str) -> Any:
    if value.size != 1:
        raise InvalidInput(f"{what} is {value.dtype}{list(value.shape)}, not one element")
    return value.reshape(-1)[0]


def _length(step: Rounds, values: Values) -> int:
    lengths = {values[name].shape[along.axis] for name, along in step.sliced}
    if len(lengths) != 1:
        facts = [f"{name}: {list(values[name].shape)}, axis {along.axis}" for name, along in step.sliced]
        raise InvalidInput(f"{step.kind} {step.name!r}: its inputs have other numbers of slices", facts)
    return lengths.pop()


def _check_alike(held: list[Array], one: Array) -> None:
    if held and (held[0].shape, held[0].dtype) != (one.shape, one.dtype):
        facts = [f"round 0: {held[0].dtype}{list(held[0].shape)}", f"now: {one.dtype}{list(one.shape)}"]
        raise InvalidInput("results that are put together have other shapes", facts)


def _together(held: list[Array], along: Along) -> Array:
    return np.stack(held[::-1] if along.is_backward else held, along.axis)
