"""Statistics of a network's batch norms, estimated anew: over batches of any sizes, on any number of ranks.

Counts, means and squared distances of batches are merged in float64 (`merging.py`), never averaged: the result is that
of the whole data set as one batch. A norm's variance is that of the population, as its network uses it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from renorm.core.errors import InvalidInput
from renorm.core.inputs import fixed_extents
from renorm.core.limits import DEFAULT
from renorm.driver.compile import options_of, silent
from renorm.driver.kernels import Progress
from renorm.frontends import read, statistics_of
from renorm.passes.constants import FoldConstants
from renorm.passes.context import Context
from renorm.training import layers as norms
from renorm.training.advance import Advance, Known
from renorm.training.communicators import Alone, Communicator
from renorm.training.drift import LayerDrift, Restated
from renorm.training.layers import Layer
from renorm.training.merging import Statistics, merge, merged_all

Array = np.ndarray[Any, Any]

METHODS = ("exact", "one_pass")
MEAN, VAR = 3, 4  # places among what a batch norm reads
MEMORY = 2 << 30  # bytes of values that may wait between two passes


def restat(
    model: Any,
    batches: Iterable[Any],
    comm: Communicator | None = None,
    method: str = "exact",
    *,
    correction: int = 0,
    memory: int = MEMORY,
    progress: Progress | None = None,
    **options: Any,
) -> Restated:
    """Return the same network with the statistics that its batch norms have on `batches`, and how far they moved.

    model: an ONNX file, its bytes, or an onnx.ModelProto, which stays as it is. batches: each an array, a sequence of
    arrays in the order of the inputs, or arrays by name; of any sizes that the network takes, empty ones too.
    method: "exact": what a norm reads is measured after all norms before it have their new statistics, so that the
    network which comes out has, on this data, at each norm exactly the mean and variance that it stores. One pass per
    level of depth; norms that do not stand before each other share a pass. "one_pass": every norm normalizes with the
    statistics of its batch, as in training, and all are measured at once. So does a norm, also in "exact", that stands
    before one which is measured and has no new statistics yet, since it shares them with one after.
    memory: bytes of intermediate values that may be kept, so that each pass goes on where the one before ended. While
    more would lie between two passes, `batches` are gone through again, and the network is computed from its inputs.
    comm: each rank gives its own batches, and all have the same result, to the last bit. correction: 1 stores
    M2 / (count - 1), as some trainers do; 0 M2 / count. progress: called with (stage, done, of). options: of `compile`.

    Raises InvalidInput where there are no batch norms with stored statistics, no data, batches that do not fit, or
    statistics that are not finite (it names the layers); what `compile` raises; SynchronizationError.
    """
    comm = comm or Alone()
    with comm.guard("restat"):
        _check_arguments(batches, method, correction, memory)
        return _Run(model, batches, comm, method, correction, memory, progress or silent, options).restated()


def _check_arguments(batches: Any, method: str, correction: int, memory: int) -> None:
    if method not in METHODS:
        raise InvalidInput(f"method is {method!r}", [f"known: {', '.join(METHODS)}"])
    if isinstance(batches, np.ndarray) or not hasattr(batches, "__iter__"):
        what = f"an array {list(batches.shape)}" if isinstance(batches, np.ndarray) else repr(batches)
        raise InvalidInput(f"batches is {what}", ["expected batches, one after the other"], "give a list, [array]")
    if correction not in (0, 1):
        raise InvalidInput(f"correction is {correction!r}", ["known: 0, 1"])
    if memory < 0:
        raise InvalidInput(f"memory is {memory!r}", ["expected bytes, 0 or more"])


class _Run:
    """One call of `restat`."""

    def __init__(
        self,
        model: Any,
        batches: Iterable[Any],
        comm: Communicator,
        method: str,
        correction: int,
        memory: int,
        progress: Progress,
        options: dict[str, Any],
    ):
        limits, shapes = options.get("limits", DEFAULT), options.pop("shapes", None) or {}
        self.file = statistics_of(model, limits)
        graph = read(self.file.model, shapes=shapes, limits=limits)
        self.graph = graph.copy(fixed_extents(graph.inputs, shapes, graph.name))
        FoldConstants().run(self.graph, Context(keep=frozenset({"batch_norm"})))  # also those that read constants
        self.layers, self.skipped = norms.find(self.graph, self.file.norm)
        if not self.layers:
            facts = [f"{name}: {why}" for name, why in self.skipped]
            raise InvalidInput(
                f"{self.graph.name}: there are no batch norms with stored statistics",
                facts or ["it has no batch norm: one that was folded into weights left nothing to estimate"],
                "" if facts else "give the model before it was folded; `renorm unfold` restores what kept its recipe",
            )
        self.passes = norms.passes(self.graph, self.layers) if method == "exact" else [self.layers]
        self.data = Advance(self.graph, self.passes, batches, memory, options_of(**options))
        self.comm, self.method, self.correction, self.progress = comm, method, correction, progress

    def restated(self) -> Restated:
        measured, known = dict[Layer, tuple[int, int]](), dict[Layer, tuple[Array, Array]]()
        for number, layers in enumerate(self.passes, 1):
            for layer, s in zip(layers, self._measured(number, layers, known)):
                known[layer] = self._stored(layer, s)
                measured[layer] = s.count, number
        names = {layer: self._put(layer, *known[layer]) for layer in self.layers}
        drifts = list[LayerDrift]()
        for layer in self.layers:
            old_mean, old_var, mean, var = (a.astype(np.float64) for a in (layer.mean, layer.var, *known[layer]))
            count, after = measured[layer]
            drifts.append(
                LayerDrift(
                    layer.name, layer.nodes, *names[layer], old_mean, old_var, mean, var, count, after, layer.epsilon
                )
            )
        data = self.data
        work = data.runs / max(1, data.count * len(self.passes))
        return Restated(self.file, drifts, self.skipped, self.method, data.count, len(self.passes), data.reads, work)

    def _measured(self, number: int, layers: Sequence[Layer], known: Known) -> list[Statistics]:
        """Statistics of what the norms of `layers` read, over the batches of all ranks."""
        total = [Statistics(0, np.zeros(x.mean.shape), np.zeros(x.mean.shape)) for x in layers]
        first_wrong = dict[Layer, int]()
        for i, found in enumerate(self.data.measured(number - 1, known)):
            results = iter(found)
            for k, layer in enumerate(layers):
                parts = [_statistics(results) for _ in layer.nodes]
                total[k] = merge([total[k], *parts])
                if not all(np.isfinite(p.m2).all() for p in parts):
                    first_wrong.setdefault(layer, i)
            self.progress(f"pass {number} of {len(self.passes)}", i + 1, self.data.count)
        found = merged_all(self.comm, [(x.name, s.count, s.mean, s.m2) for x, s in zip(layers, total)])
        self._check(layers, found, first_wrong)
        return found

    def _check(self, layers: Sequence[Layer], found: Sequence[Statistics], first_wrong: Mapping[Layer, int]) -> None:
        """InvalidInput where no statistics can be stored."""
        for layer, s in zip(layers, found):
            if s.count <= self.correction:
                values = "is one value" if s.count else "are no values"
                reader = f" by rank {self.comm.rank}" if self.comm.size > 1 else ""
                raise InvalidInput(
                    f"{self.graph.name}: there {values} per channel for {layer.name!r} in all batches",
                    [f"batches read{reader}: {self.data.count}"],
                    "give more data" + (", or correction=0" if s.count else ""),
                )
        wrong = [
            f"{layer.name}: channels {_first(np.flatnonzero(~np.isfinite(s.m2) | ~np.isfinite(s.mean)))}"
            + (f", from batch {first_wrong[layer]} on" if layer in first_wrong else "")
            for layer, s in zip(layers, found)
            if not (np.isfinite(s.m2).all() and np.isfinite(s.mean).all())
        ]
        if wrong:
            raise InvalidInput(
                f"{self.graph.name}: statistics are not finite",
                [*wrong, *self.data.not_finite],
                "look at these batches" if self.data.not_finite else "look at these batches: a value overflows there",
            )

    def _stored(self, layer: Layer, s: Statistics) -> tuple[Array, Array]:
        """Mean and variance as the file holds them."""
        dtype = layer.mean.dtype, layer.var.dtype
        with np.errstate(over="ignore"):
            mean, var = (a.astype(d) for a, d in zip((s.mean, s.m2 / (s.count - self.correction)), dtype))
        beyond = [n for n, a in (("mean", mean), ("variance", var)) if not np.isfinite(a.astype(np.float64)).all()]
        if beyond:
            what = " and the ".join(beyond)
            raise InvalidInput(
                f"{self.graph.name}: {layer.name!r} stores {dtype[0].name}, which cannot hold the {what}"
            )
        return mean, var

    def _put(self, layer: Layer, mean: Array, var: Array) -> tuple[str, str]:
        return self.file.put(layer.source, MEAN, mean), self.file.put(layer.source, VAR, var)


def _statistics(results: Iterator[Array]) -> Statistics:
    """Return the next three results of a network that measures."""
    count, mean, squares = (next(results) for _ in range(3))
    return Statistics(int(count[0]), mean, squares)


def _first(channels: Array) -> str:
    return ", ".join(map(str, channels[:4])) + (f" and {channels.size - 4} more" if channels.size > 4 else "")
