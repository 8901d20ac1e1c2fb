"""Modules for models of which elements of inputs decide more than extents: axes, scales, branches.

y = ReduceSum(x, axes)      axes = [1]     a module where axes is the constant [1]
                            axes = [0, 2]  another one
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.dims import Dim, format_shape
from renorm.core.errors import InvalidInput
from renorm.core.inputs import named_inputs
from renorm.core.lru import Latest
from renorm.core.stated import Undecided
from renorm.driver.module import CompiledModule, ExternalText, KernelText, OpenModule, SpecializingModule
from renorm.graph.deciding import deciding_sources
from renorm.graph.ir import Graph
from renorm.runtime.arrays import given_type, view_of
from renorm.runtime.artifact import Encoded
from renorm.runtime.module import Shapes
from renorm.runtime.program import TensorSpec
from renorm.runtime.report import KernelRecord, Report
from renorm.runtime.state import State

Array = np.ndarray[Any, Any]
Decided = CompiledModule | SpecializingModule

DECIDED = 8  # modules of one model that are kept; the one not used for the longest time goes first


def require(graph: Graph, is_open: bool = True) -> None:
    """Raise Undecided where nodes have to be told elements of inputs as numbers. is_open: what may be an extent is
    told as one."""
    found = deciding_sources(graph, is_open)
    by = [v for v in graph.inputs if v in found]
    if by:
        names = [v.name for v in by]
        headline = f"{graph.name}: elements of {', '.join(names)} decide more than extents"
        raise Undecided(headline, [str(v) for v in by], "give them (inputs=)", graph.inputs, names, graph.name)


class DecidingModule(SpecializingModule):
    """A model that is read and compiled for each new combination of elements of the inputs that decide, the latest few
    of which are kept. It must not change meanwhile.

    undecided: why. deciding: names of the inputs that decide. compiled: of the model where they have these elements.
    """

    def __init__(self, undecided: Undecided, compiled: Callable[[Mapping[str, Array]], Decided]):
        self.name, self.deciding, self.obstacle = undecided.network, undecided.by, str(undecided)
        self._declared, self._compiled = undecided.declared, compiled
        self._decided = Latest[tuple[object, ...], Decided](f"{self.name} for elements of inputs", DECIDED)

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(v.name, v.dtype, tuple(v.shape)) for v in self._declared)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """Of the module used last. Raises InvalidInput before the first call."""
        return self._last("outputs").outputs

    @property
    def report(self) -> Report:
        """As `outputs`."""
        return self._last("report").report

    @property
    def state(self) -> State:
        """Return no state: where inputs decide, `compile` takes no train_state."""
        return State((), ())

    @property
    def graph(self) -> Graph:
        """As `outputs`."""
        return self._last("graph").graph

    def _last(self, what: str) -> Decided:
        if (found := self._decided.last()) is None:
            facts = [f"elements of {', '.join(self.deciding)} decide it"]
            raise InvalidInput(f"{self.name} has no {what} yet", facts, "call run, or give them (inputs=)")
        return found

    def decided(self, /, **elements: Any) -> Decided:
        """Return the module where the inputs that decide have these elements, compiled if it is not there yet. Raises
        InvalidInput, and Undecided where what is known now shows that more inputs decide."""
        unknown = [f"{name!r} is no input that decides" for name in elements if name not in self.deciding]
        if unknown:
            raise InvalidInput(f"{self.name}: the arrays given do not fit its inputs", unknown)
        return self._decided_by(self.deciding, elements)

    def _decided_by(self, names: Sequence[str], elements: Mapping[str, Any]) -> Decided:
        found, problems = dict[str, Array](), list[str]()
        for v in self._declared:
            if v.name not in names:
                continue
            array = view_of(elements[v.name]) if v.name in elements else "missing"
            expected = f"expected {v.dtype}{format_shape(v.shape)}"
            if isinstance(array, str):
                problems.append(f"input {v.name}: {array}, {expected}")
            elif array.dtype == dtypes.numpy_dtype(v.dtype) and _fits(array.shape, v.shape):
                found[v.name] = np.array(array)
            else:
                problems.append(f"input {v.name}: {given_type(array)}, {expected}")
        if problems:
            raise InvalidInput(f"{self.name}: the arrays given do not fit its inputs", problems)
        key = tuple((n, a.shape, a.tobytes()) for n, a in found.items())
        try:
            return self._decided.made(key, lambda: self._compiled(found))
        except Undecided as error:
            self.deciding = tuple(dict.fromkeys((*self.deciding, *error.by)))
            raise

    def run(
        self, /, *args: Any, out: Any = None, timeout: float | None = None, stream: int | None = None, **named: Any
    ) -> list[Any]:
        """As Module.run, or GpuModule.run, on the module for the elements that are given, whose compilation has no time
        limit."""
        module, others = self._for(named_inputs(self.name, [v.name for v in self._declared], args, named))
        more: dict[str, Any] = {} if stream is None else {"stream": stream}
        order = [v.name for v in module.inputs]
        if others.keys() == {*order}:  # an input may be called as an option is
            return module.run(*(others[n] for n in order), out=out, timeout=timeout, **more)
        return module.run(out=out, timeout=timeout, **more, **others)

    def _for(self, given: Mapping[str, Any]) -> tuple[Decided, dict[str, Any]]:
        """Return the module for inputs, and those that it takes."""
        names = self.deciding
        while True:
            with suppress(Undecided):  # what is known now shows that more inputs decide
                return self._decided_by(names, given), {n: a for n, a in given.items() if n not in names}
            names = self.deciding

    def specialized_at(self, shapes: Shapes, elements: Shapes) -> CompiledModule:
        """Raise InvalidInput: elements that decide may be no integers."""
        raise InvalidInput(f"{self.name} has no kernels for shapes alone", [self.obstacle], "call specialized")

    def specialized(self, /, **shapes: Any) -> CompiledModule:
        """As SpecializingModule.specialized: of the inputs that decide arrays are given."""
        module, others = self._for(shapes)
        return module.specialized(**others) if isinstance(module, (OpenModule, SpecializingModule)) else module

    __call__ = run

    def cancel(self) -> None:
        """As Module.cancel, for the runs of all modules that are kept."""
        for module in self._decided.all():
            module.cancel()

    def kernel(self, name: str | KernelRecord) -> KernelText | ExternalText:
        """Return a kernel of the module used last."""
        return self._last("kernels").kernel(name)

    def encoded(self, key: Any = None) -> Encoded:
        """Return the artifact of the only module there is."""
        if len(self._decided) != 1:
            facts = [f"elements of {', '.join(self.deciding)} decide it; {len(self._decided)} combinations were used"]
            raise InvalidInput(f"{self.name}: an artifact holds one network", facts, "give the elements (inputs=)")
        return self._last("code").encoded(key)


def _fits(shape: Sequence[int], declared: Sequence[Dim]) -> bool:
    return len(shape) == len(declared) and all(n == d or not isinstance(d, int) for n, d in zip(shape, declared))
