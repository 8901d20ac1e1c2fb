"""One kernel as a function of arrays, inputs and outputs alike, as TVM's `build` gives one."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm.core.errors import InvalidArtifact, InvalidInput
from renorm.runtime import artifact
from renorm.runtime.device import Device
from renorm.runtime.module import Module, held


@dataclass(frozen=True)
class Timings:
    """results: seconds of a call, one for each repetition, each the mean over the calls of that repetition."""

    results: tuple[float, ...]

    mean = property(lambda self: float(np.mean(self.results)))
    median = property(lambda self: float(np.median(self.results)))
    min = property(lambda self: min(self.results))
    max = property(lambda self: max(self.results))
    std = property(lambda self: float(np.std(self.results)))


class Entry(ABC):
    """A kernel to be called with one array per argument, and timed. imported_modules: of devices; none on a CPU."""

    imported_modules: Sequence[Any] = ()

    @property
    @abstractmethod
    def entry_name(self) -> str:
        """The name of the kernel."""

    @abstractmethod
    def __call__(self, *arrays: Any) -> None: ...

    @property
    def entry_func(self) -> Entry:
        return self

    def __getitem__(self, name: str) -> Entry:
        return self.get_function(name)

    def get_function(self, name: str) -> Entry:
        """The kernel of that name, of which there is one."""
        if name not in (self.entry_name, "__tvm_main__"):
            raise InvalidInput(f"there is no function {name!r}", [f"there is {self.entry_name!r}"])
        return self

    def time_evaluator(
        self,
        func_name: str,
        dev: Device | None = None,
        number: int = 10,
        repeat: int = 1,
        min_repeat_ms: int = 0,
        *,
        ctx: Device | None = None,
    ) -> Any:
        """A function of the same arrays that gives Timings: of `repeat` times `number` calls, or as many more as take
        min_repeat_ms. One call before them is not counted. dev (ctx in TVM 0.6 and 0.7): cpu(0)."""
        function = self.get_function(func_name)
        if (place := ctx or dev) is not None:
            place.require()
        if number < 1 or repeat < 1:
            raise InvalidInput(f"time_evaluator: {repeat} times {number} calls", ["expected numbers from 1 up"])

        def measure(*arrays: Any) -> Timings:
            function(*arrays)
            results, calls = list[float](), number
            while len(results) < repeat:
                begin = time.perf_counter()
                for _ in range(calls):
                    function(*arrays)
                seconds = time.perf_counter() - begin
                if seconds * 1e3 < min_repeat_ms:
                    calls *= 2
                else:
                    results.append(seconds / calls)
            return Timings(tuple(results))

        return measure


class Function(Entry):
    """A module of one kernel, called with one array per argument of the kernel, in order; outputs are written in place.

    NumPy arrays, renorm.nd arrays, or anything with __dlpack__, of exactly the shapes and dtypes of the arguments.
    """

    def __init__(self, module: Module):
        steps = module.program.steps
        arguments = [a for step in steps for a in step.args if a.kind in ("input", "output")]
        self._writes = [a.kind == "output" for a in arguments]
        if len(steps) != 1 or len(arguments) != len(module.inputs) + len(module.outputs):
            raise InvalidArtifact(f"{module.name} is a network of {len(steps)} kernels", do="open it with renorm.load")
        self._module = module
        places = {True: iter(module.outputs), False: iter(module.inputs)}
        self._arguments = [next(places[writes]) for writes in self._writes]

    @property
    def entry_name(self) -> str:
        return self._module.program.steps[0].kernel

    def __call__(self, *arrays: Any) -> None:
        if len(arrays) != len(self._writes):
            shown = ", ".join(map(str, self._arguments))
            raise InvalidInput(f"kernel {self.entry_name} takes {len(self._writes)} arrays, not {len(arrays)}", [shown])
        outs = [a for a, writes in zip(arrays, self._writes) if writes]
        self._module.run(*[a for a, writes in zip(arrays, self._writes) if not writes], out=outs)

    def get_source(self, fmt: str = "ll") -> str:
        """Texts are left behind where it was compiled. Raises InvalidInput."""
        raise InvalidInput(f"{self.entry_name} was read from a file, which has code and no {fmt!r}")

    def export_library(self, file_name: str | os.PathLike[str]) -> None:
        """Write it to a file of renorm's own format, which `load_module` reads."""
        self._module.save(file_name)

    save = export_library


def load_module(path: str | os.PathLike[str]) -> Function:
    """The function that `export_library` wrote. Raises InvalidArtifact."""
    return Function(held(artifact.read(path)))


load = load_module
