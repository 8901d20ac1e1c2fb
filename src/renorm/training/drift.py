"""How far statistics that were estimated anew are from those that a network had."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from renorm.core.dtypes import unit_roundoff
from renorm.core.errors import InvalidInput
from renorm.core.lazy import cached_property
from renorm.runtime.report import Extreme

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class LayerDrift:
    """One layer. name: its norm; nodes: all norms that share its statistics; mean_name, var_name: what holds them in
    the file. old_mean, old_var, mean, var: float64, per channel; the new ones as they are stored. count: values per
    channel that they were estimated from. after: in which pass over the data, from 1."""

    name: str
    nodes: tuple[str, ...]
    mean_name: str
    var_name: str
    old_mean: Array
    old_var: Array
    mean: Array
    var: Array
    count: int
    after: int
    epsilon: float

    @cached_property
    def shift(self) -> Extreme:
        """The largest |mean - old mean| in units of the old deviation, sqrt(old var + epsilon)."""
        with np.errstate(all="ignore"):
            moved = np.abs(self.mean - self.old_mean)
            found = np.where(moved == 0, 0.0, moved / np.sqrt(self.old_var + self.epsilon))
        return _extreme(np.where(np.isnan(found), np.inf, found), largest=True)

    @cached_property
    def ratios(self) -> tuple[Extreme, Extreme]:
        """The least and the greatest (var + epsilon) / (old var + epsilon)."""
        with np.errstate(all="ignore"):
            found = (self.var + self.epsilon) / (self.old_var + self.epsilon)
        found = np.where(np.isnan(found), np.inf, found)
        return _extreme(found, largest=False), _extreme(found, largest=True)

    @cached_property
    def dead(self) -> tuple[int, ...]:
        """Channels that have one value in all of the data, but for rounding: the norm gives its bias there."""
        least = (unit_roundoff("float32") * self.mean) ** 2
        return tuple(np.flatnonzero(self.var <= least).tolist())

    @property
    def is_dead(self) -> bool:
        """Return whether all channels are."""
        return len(self.dead) == self.var.size > 0

    def to_json(self) -> dict[str, Any]:
        def extreme(e: Extreme) -> dict[str, Any]:
            return {"channel": e.channel, "value": e.value}

        return {
            "name": self.name,
            "nodes": list(self.nodes),
            "after": self.after,
            "count": self.count,
            "mean": {"name": self.mean_name, "old": self.old_mean.tolist(), "new": self.mean.tolist()},
            "var": {"name": self.var_name, "old": self.old_var.tolist(), "new": self.var.tolist()},
            "shift": extreme(self.shift),
            "ratios": [extreme(e) for e in self.ratios],
            "dead": list(self.dead),
        }

    def __str__(self) -> str:
        least, most = self.ratios
        return (
            f"{self.name}: mean moved by up to {self.shift.value:.3g} deviations (channel {self.shift.channel}), "
            f"variance {least.value:.3g} to {most.value:.3g} of the old one"
            + (f", {len(self.dead)} of {self.var.size} channels dead" if self.dead else "")
        )


@dataclass(frozen=True, eq=False)
class Restated:
    """A network with statistics estimated anew. file: with these statistics. layers: in the order of the network.
    skipped: batch norms whose statistics are no constants of the file, and why. batches: how many were read in each
    pass, by this rank; passes: how many there were; reads: how often the batches were gone through for them; work: how
    often the network was computed for each batch, where 1.0 is least: more where values between passes did not fit
    into memory."""

    file: Any
    layers: Sequence[LayerDrift]
    skipped: Sequence[tuple[str, str]]
    method: str
    batches: int
    passes: int
    reads: int
    work: float

    @property
    def model(self) -> Any:
        """An onnx.ModelProto."""
        return self.file.model

    @property
    def worst(self) -> LayerDrift:
        """The layer whose mean moved furthest."""
        return max(self.layers, key=lambda d: d.shift.value)

    @property
    def passage(self) -> str:
        """Return how the data were gone through, in words."""
        said = f"{self.batches} batches in {self.passes} passes"
        if self.work == 1:
            return said
        read = f", read {self.reads} times" if self.reads > 1 else ""
        return f"{said}{read}, computed {self.work:.3g} times (more memory= would spare that)"

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the model to `path`, whole or not at all: the source with other statistics."""
        if not os.fspath(path).lower().endswith(".onnx"):
            raise InvalidInput(
                f"{path}: a model comes back in the format that it has", do="name a file ending in .onnx"
            )
        self.file.write(path)

    def to_json(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "batches": self.batches,
            "passes": self.passes,
            "reads": self.reads,
            "work": self.work,
            "layers": [d.to_json() for d in self.layers],
            "worst": self.worst.name,
            "dead": [d.name for d in self.layers if d.is_dead],
            "skipped": [list(s) for s in self.skipped],
        }

    def __str__(self) -> str:
        lines = [f"{len(self.layers)} layers, {self.passage}"]
        lines += [f"  {d}" for d in self.layers]
        lines += [f"  {name}: left as it is, {why}" for name, why in self.skipped]
        return "\n".join([*lines, f"furthest: {self.worst.name}"])


def _extreme(values: Array, largest: bool) -> Extreme:
    if not values.size:
        return Extreme(0, 0.0 if largest else 1.0)
    channel = int(values.argmax() if largest else values.argmin())
    return Extreme(channel, float(values[channel]))
