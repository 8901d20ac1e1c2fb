"""Modules for networks that are no one program: the host runs loops and chooses branches, compiled parts all else.

h, c = before(x)
while c: c, h = body(h, x)     as often as data say
y = after(h)
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import count as counting
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.dims import Dim, format_shape, integer, substitute, symbols_of
from renorm.core.errors import InvalidArtifact, InvalidInput
from renorm.core.inputs import Typed, fixed_extents, named_inputs
from renorm.core.limits import DEFAULT, Limits
from renorm.runtime import artifact
from renorm.runtime import threads as teams
from renorm.runtime.arrays import Slot, bind_out, given_type, handed_out, view_of
from renorm.runtime.module import Module
from renorm.runtime.program import TensorSpec
from renorm.runtime.report import Report
from renorm.runtime.rounds import ArrayType, PartCall, Run, Runner, Values
from renorm.runtime.signing import Key
from renorm.runtime.state import State
from renorm.runtime.steps import Plan, parts_of

Array = np.ndarray[Any, Any]


class PiecewiseModule:
    """A network that runs step by step. Safe to call from several Python threads.

    plan: what is run. obstacle: why it is no one program. threads: how many run its parts at most.
    """

    def __init__(self, plan: Plan, runners: Sequence[Runner], threads: int, limits: Limits = DEFAULT):
        """runners: of the parts of the plan, in order."""
        self.plan, self.name, self.obstacle, self.threads = plan, plan.name, plan.obstacle, threads
        self._runners, self._limits = tuple(runners), limits
        self._results: tuple[TensorSpec, ...] = ()
        self._cancels, self._counted = 0, counting(1)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self.plan.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """As they were in the last call; before the first one as far as they are the same in all. Raises InvalidInput
        where they are not."""
        found = self._results or self.plan.results
        if len(found) != len(self.plan.outputs):
            raise InvalidInput(f"{self.name} has no outputs yet", [self.obstacle], "call run")
        return found

    @property
    def state(self) -> State:
        return State((), ())

    def _modules(self) -> Iterator[Any]:
        """Yield the modules of all parts, as far as there are any."""
        for runner in self._runners:
            yield from runner.modules

    @property
    def parts(self) -> dict[str, tuple[Any, ...]]:
        """The modules of each part that there are by now, by its name, in the order of steps."""
        order = (number for step in self.plan.steps for number in parts_of(step))
        return {self.plan.parts[number].name: tuple(self._runners[number].modules) for number in order}

    @property
    def report(self) -> Report:
        """Of all parts that are compiled by now: their kernels and norms; memory and seconds are sums."""
        found = list[Report]()
        for runner in self._runners:
            with suppress(InvalidInput):
                found += [module.report for module in runner.modules[:1]]  # others have the same nodes
        said = f"{self.name} runs in {len(self.plan.names)} parts: {self.obstacle.splitlines()[0]}"
        made = Report.of_parts(found)
        return replace(made, diagnoses=(*made.diagnoses, said))

    def run(
        self, /, *args: Any, out: Any = None, timeout: float | None = None, stream: int | None = None, **named: Any
    ) -> list[Any]:
        """As Module.run; where data end a loop `timeout` and `cancel` do as well. Compiling has no time limit.
        Raises LimitExceeded where results of rounds are more than limits allow."""
        values = self._bound(args, named)
        given = list(values.values())
        Run(self.plan, self._runners, self._limits, lambda: self._cancels, timeout).of(values)
        results = list[Array]()
        for _, name in self.plan.outputs:
            value = values[name]
            is_held = any(value is other or np.may_share_memory(value, other) for other in (*given, *results))
            results.append(np.array(value, order="C") if is_held else value)
        specs = [
            TensorSpec(name, dtypes.from_numpy(a.dtype) or a.dtype.name, a.shape)
            for (name, _), a in zip(self.plan.outputs, results)
        ]
        self._results = tuple(specs)
        wanted = () if out is None else bind_out(self.name, [Slot(s) for s in specs], out)
        return handed_out(out, wanted, results)

    __call__ = run
    as_torch = Module.as_torch
    as_keras = Module.as_keras

    def _bound(self, args: Sequence[Any], named: Mapping[str, Any]) -> Values:
        """Return the inputs by name. Raises InvalidInput that lists what does not fit."""
        specs = self.plan.inputs
        given = named_inputs(self.name, [s.name for s in specs], args, named)
        found, problems = Values(), list[str]()
        for spec in specs:
            array = view_of(given[spec.name]) if spec.name in given else "missing"
            if isinstance(array, str):
                what = array
            elif array.dtype == dtypes.numpy_dtype(spec.dtype) and array.ndim == len(spec.shape):
                found[spec.name] = array
                continue
            else:
                what = given_type(array)
            problems.append(f"input {spec.name}: {what}, expected {spec.dtype}{format_shape(spec.shape)}")
        if problems:
            raise InvalidInput(f"{self.name}: the arrays given do not fit its inputs", problems)
        fixed_extents(specs, {n: a.shape for n, a in found.items()}, self.name)
        return found

    def cancel(self) -> None:
        """As Module.cancel, between parts as well."""
        self._cancels = next(self._counted)
        for module in self._modules():
            module.cancel()

    def encoded(self, key: Key | None = None) -> artifact.Encoded:
        """Return the artifact that `save` writes."""
        return artifact.encoded_plan(self.plan, [[m.encoded() for m in r.modules] for r in self._runners], key)

    def save(self, path: str | os.PathLike[str], key: Key | None = None) -> str:
        """As Module.save."""
        return artifact.store(path, self.encoded(key))

    __reduce__ = Module.__reduce__

    def __repr__(self) -> str:
        inputs = ", ".join(map(str, self.inputs))
        return f"<{type(self).__name__} {self.name}: {inputs}; {len(self.plan.names)} parts>"


class HeldPart:
    """A part of which there are modules, one of which fits a call."""

    def __init__(self, name: str, modules: Sequence[Any]):
        self._name, self.modules = name, modules

    def module_for(self, given: Sequence[Array]) -> Any:
        """As Runner.module_for. Raises InvalidInput where none fits."""
        for module in self.modules:
            if all(_fits(spec, a) for spec, a in zip(module.inputs, given, strict=True)):
                return module
        facts = ["given: " + ", ".join(f"{a.dtype}{list(a.shape)}" for a in given)]
        facts += ["for: " + ", ".join(map(str, m.inputs)) for m in self.modules]
        do = "compile the model, or save it after a call with these"
        raise InvalidInput(f"part {self._name} has no code for inputs of these types", facts, do)

    def types(self, given: Sequence[Array]) -> list[ArrayType]:
        """As Runner.types."""
        module = self.module_for(given)
        told = module.plan.results if isinstance(module, PiecewiseModule) else ()  # in all calls, not in the last one
        return types_of(module.inputs, told or module.outputs, given)


def types_of(inputs: Sequence[Typed], outputs: Sequence[Typed], given: Sequence[Array]) -> list[ArrayType]:
    """Return dtype and shape of outputs for arrays of inputs; 0 for an extent that only running tells."""
    sizes = fixed_extents(inputs, {v.name: a.shape for v, a in zip(inputs, given)}, "a part")

    def extent(d: Dim) -> int:
        return integer(substitute(d, sizes)) if symbols_of(d) <= sizes.keys() else 0

    return [(dtypes.numpy_dtype(v.dtype), tuple(map(extent, v.shape))) for v in outputs]


def _counts(module: Any) -> tuple[int, int]:
    """Return how many inputs and outputs a module has."""
    return len(module.inputs), len(module.plan.outputs if isinstance(module, PiecewiseModule) else module.outputs)


def _fits(spec: TensorSpec, array: Array) -> bool:
    """Return whether an array has a dtype, and the extents that are numbers."""
    is_alike = dtypes.from_numpy(array.dtype) == spec.dtype and array.ndim == len(spec.shape)
    return is_alike and all(d == n for d, n in zip(spec.shape, array.shape) if isinstance(d, int))


def part_calls(module: PiecewiseModule, inputs: Mapping[str, Array]) -> list[PartCall]:
    """Run a network once, and return the calls of its parts, in their order."""
    made, values = list[PartCall](), module._bound((), inputs)
    Run(module.plan, module._runners, module._limits, lambda: 0, None, made.append).of(values)
    return made


def held(
    path: str | os.PathLike[str], plan: Plan, modules: Sequence[Sequence[Any]], threads: int | None, limits: Limits
) -> PiecewiseModule:
    """Return a network in parts as a file holds it. modules: of each part."""
    for part, of in zip(plan.parts, modules):
        if any(_counts(module) != (len(part.inputs), len(part.outputs)) for module in of):
            fact = f"part {part.name} has other inputs or outputs than its code"
            raise InvalidArtifact(f"{os.fsdecode(path)} contradicts itself", [fact], "compile the model again")
    runners = [HeldPart(part.name, of) for part, of in zip(plan.parts, modules)]
    return PiecewiseModule(plan, runners, teams.resolve(threads), limits)
