"""Batches on their way through a network, one stage for each pass over the data (`stages.py`)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import length_hint
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.errors import InvalidInput
from renorm.core.inputs import fixed_extents
from renorm.driver.compile import Options, specialize
from renorm.driver.module import SPECIALIZATIONS
from renorm.graph.ir import Graph
from renorm.passes.constants import FixStaticOperands, FoldConstants
from renorm.passes.context import Context, check_keep
from renorm.runtime.arrays import shape_of, view_of
from renorm.runtime.module import Module
from renorm.training.batches import arguments
from renorm.training.layers import Layer
from renorm.training.stages import Stages

Array = np.ndarray[Any, Any]
Known = Mapping[Layer, tuple[Array, Array]]
Extents = tuple[tuple[str, int], ...]

AGAIN = 'give a list, or an object whose __iter__ begins anew; more memory=; or method="one_pass"'


@dataclass(frozen=True)
class _Batch:
    """A batch before a stage, and the values that this stage and later ones read."""

    extents: Extents
    stage: int
    values: Mapping[str, Array]

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in self.values.values())


class Advance:
    """All batches of one rank, stage by stage.

    What a stage leaves of the batches is kept for the next one while all of it takes no more than `memory` bytes. Until
    that is so, the batches are gone through for each pass, from the first stage on. From then on they are not touched
    again; a batch of which more would be kept than there is room for stays where it was, and is computed from there.

    reads: how often the batches were gone through; count: how many there are; runs: how many stages of batches ran;
    not_finite: inputs that hold NaN or infinities, in words.
    """

    def __init__(
        self,
        graph: Graph,
        passes: Sequence[Sequence[Layer]],
        batches: Iterable[Any],
        memory: int,
        options: Options,
    ):
        check_keep(graph, options.keep)
        self._names = {n.name for n in graph.nodes}
        self._graph, self._passes, self._batches, self._memory, self._options = graph, passes, batches, memory, options
        self._kept: list[_Batch] | None = None
        self._size = 0  # bytes of what is kept
        self._stages = dict[Extents, Stages]()
        self._modules = OrderedDict[tuple[int, Extents], Module]()
        self.reads = self.runs = 0
        self.not_finite = list[str]()
        self.count = length_hint(batches)  # a loader may have a length that it refuses to tell

    def measured(self, p: int, known: Known) -> Iterator[list[Array]]:
        """Of each batch what pass p measures: count, mean and squared distances for each norm. known: statistics of
        what earlier passes measured."""
        if self._kept is None:
            yield from self._gone_through(p, known)
        else:
            for i, batch in enumerate(self._kept):
                found, after = self._advanced(batch, p, known)
                size = self._size - batch.nbytes + after.nbytes
                if size <= self._memory:
                    self._kept[i], self._size = after, size
                yield found
        oldest = min((b.stage for b in self._kept or ()), default=0 if self._kept is None else p + 1)
        for key in [k for k in self._modules if k[0] < oldest]:
            del self._modules[key]

    def _gone_through(self, p: int, known: Known) -> Iterator[list[Array]]:
        """`measured` from the batches themselves, all of which are kept after stage p if there is room."""
        kept, size, count = list[_Batch](), 0, 0
        for count, given in enumerate(self._batches, 1):
            try:
                batch = self._begun(given)
                found, after = self._advanced(batch, p, known)
            except InvalidInput as error:
                raise error.within(f"batch {count - 1}") from error
            self._note(count - 1, batch, found)
            size += after.nbytes
            if size <= self._memory:
                kept.append(after)
            else:
                kept.clear()
                self._check_repeatable(count - 1)
            yield found
        if self.reads and count != self.count:
            raise InvalidInput(
                f"{self._graph.name}: pass {p + 1} over the batches gave {count} of them, the first {self.count}",
                [f"they are read again since more than memory={self._memory} bytes would be kept between passes"],
                AGAIN,
            )
        self.count, self.reads = count, self.reads + 1
        if len(kept) == count:
            self._kept, self._size = kept, size

    def _check_repeatable(self, number: int) -> None:
        if isinstance(self._batches, Iterator):
            raise InvalidInput(
                f"{self._graph.name}: batches are read again for each of {len(self._passes)} passes, "
                f"{type(self._batches).__name__} gives them once",
                [f"what would be kept of them instead is more than memory={self._memory} bytes at batch {number}"],
                AGAIN,
            )

    def _note(self, number: int, batch: _Batch, found: Sequence[Array]) -> None:
        """Keep in mind which inputs are not finite, where statistics are not."""
        if not all(np.isfinite(a).all() for a in found):
            arrays = {n: np.asarray(view_of(a)) for n, a in batch.values.items()}
            wrong = [
                n for n, a in arrays.items() if dtypes.is_float(dtypes.from_numpy(a.dtype)) and not np.isfinite(a).all()
            ]
            self.not_finite += [f"batch {number}: input {name} has values that are not finite" for name in wrong]

    def _begun(self, given: Any) -> _Batch:
        """Return a batch as the network's inputs, by name."""
        args, named = arguments(given)
        inputs = self._graph.inputs
        values = {v.name: a for v, a in zip(inputs, args)} | {**named}
        problems = [f"input {v.name} is missing, {v.type}" for v in inputs if v.name not in values]
        problems += [f"{name!r} is not an input" for name in named if name not in {v.name for v in inputs}]
        if len(args) > len(inputs):
            problems.append(f"{len(args)} arrays for {len(inputs)} inputs")
        if problems:
            raise InvalidInput(f"the inputs do not fit {self._graph.name}", problems)
        shapes = {v.name: shape_of(values[v.name]) for v in inputs}
        extents = tuple(sorted(fixed_extents(inputs, shapes, self._graph.name).items()))
        return _Batch(extents, 0, values)

    def _advanced(self, batch: _Batch, p: int, known: Known) -> tuple[list[Array], _Batch]:
        """Return what stage p measures of a batch, and the batch after it."""
        found, values = list[Array](), dict(batch.values)
        stages = self._cut(batch.extents)
        for q in range(batch.stage, p + 1):
            module = self._module(q, batch.extents, known)
            found = module.run(*(values[v.name] for v in module.inputs))  # one may be named as a parameter of run is
            self.runs += 1
            left = stages.left(q)
            results, found = found[len(found) - len(left) :], found[: len(found) - len(left)]
            values = {n: a if q else _own(a) for n, a in values.items() if n in stages.alive[q + 1]}
            values |= zip(left, results)
        return found, _Batch(batch.extents, p + 1, values)

    def _cut(self, extents: Extents) -> Stages:
        if extents not in self._stages:
            graph = self._graph.copy(dict(extents))
            for one in (FixStaticOperands(), FoldConstants()):  # what is alive between stages is data, no shapes
                one.run(graph, Context(keep=frozenset({"batch_norm"})))
            self._stages[extents] = Stages(graph, self._passes)
        return self._stages[extents]

    def _module(self, q: int, extents: Extents, known: Known) -> Module:
        """Stage q for these extents. As many are kept as a specialising module keeps of whole networks."""
        key = (q, extents)
        if key not in self._modules:
            graph = self._cut(extents).stage(q, known)
            nodes = {n.name for n in graph.nodes}
            keep = tuple(k for k in self._options.keep if k in nodes or k not in self._names)
            self._modules[key] = specialize(graph, {}, replace(self._options, keep=keep))
            while len(self._modules) > SPECIALIZATIONS * (q + 1):
                self._modules.popitem(last=False)
        self._modules.move_to_end(key)
        return self._modules[key]


def _own(given: Any) -> Array:
    """Return a copy of an input, which its owner may write to before the next stage reads it."""
    return np.array(view_of(given))
