"""A network of a public definition, as data, and what a builder makes of it: a module and the inputs that it takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np
import torch

Array = np.ndarray[Any, Any]
NONE: Mapping[str, Any] = MappingProxyType({})

# extents by name: those of the export, and those of runs, where they are open
TRACED = {"batch": 2, "sequence": 11, "past": 5, "total": 16, "target": 6, "height": 36, "width": 44, "time": 60}
FRESH = (
    {"batch": 1, "sequence": 7, "past": 3, "total": 10, "target": 4, "height": 33, "width": 50, "time": 37},
    {"batch": 3, "sequence": 13, "past": 8, "total": 21, "target": 9, "height": 48, "width": 39, "time": 84},
)
FORMS = ("float", "dynamic int8", "static QDQ", "static QOperator", "4-bit weights")


@dataclass(frozen=True)
class Row:
    """A network as data. name: of its constructor in the package. task: what kind of network it is, as the page says.
    options: of the constructor. exporter: "script" or "dynamo". opens: the names of its extents that are open in the
    file. forms: quantized forms of the file, beside the one in floats. opset: of the file."""

    name: str
    task: str
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    exporter: str = "script"
    opens: tuple[str, ...] = ("batch",)
    forms: tuple[str, ...] = ()
    opset: int = 18


@dataclass(frozen=True)
class Given:
    """An input. shape: numbers, and names of extents. kind: what is drawn: "normal", "uniform" (0 to 1), "tokens", or
    "mask" (ones, then some zeros)."""

    name: str
    shape: tuple[int | str, ...]
    kind: str = "normal"
    words: int = 100

    def draw(self, extents: Mapping[str, int], rng: np.random.Generator) -> Array:
        """Return a random array."""
        reach = {"reach": extents["past"] + 1}  # of a word after those that are past
        shape = tuple({**extents, **reach}[d] if isinstance(d, str) else d for d in self.shape)
        match self.kind:
            case "tokens":
                return rng.integers(3, self.words, shape)
            case "mask":
                mask = np.ones(shape, np.int64)
                mask[-1, shape[-1] - shape[-1] // 4 :] = 0
                return mask
            case "uniform":
                return rng.random(shape, np.float32)
            case _:
                return rng.standard_normal(shape, np.float32)


@dataclass(frozen=True)
class Built:
    """A module, and the inputs that its method forward takes, in order. outputs: how many there are, for their names,
    0 where it does not matter."""

    module: torch.nn.Module
    given: Sequence[Given]
    extents: Mapping[str, int] = field(default_factory=dict[str, int])

    def traced(self, seed: int = 0) -> tuple[torch.Tensor, ...]:
        """Return arguments to export with."""
        rng = np.random.default_rng(seed)
        return tuple(torch.from_numpy(g.draw({**TRACED, **self.extents}, rng)) for g in self.given)

    def fresh(self, opens: Sequence[str]) -> list[dict[str, Array]]:
        """Return inputs of runs, by name: two draws, of several extents where these are open."""
        found = list[dict[str, Array]]()
        for seed, extents in enumerate(FRESH, 1):
            rng = np.random.default_rng(seed)
            at = {**TRACED, **self.extents, **{name: extents[name] for name in opens}}
            found.append({g.name: g.draw(at, rng) for g in self.given})
        return found


class Tensors(torch.nn.Module):
    """A network whose results are the tensors among those of another one, which is called with arguments by name."""

    def __init__(self, net: torch.nn.Module, names: Sequence[str] = (), options: Mapping[str, Any] = NONE):
        super().__init__()
        self.net, self.names, self.options = net, tuple(names), dict(options)

    def forward(self, *given: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if self.names:
            return tuple(tensors(self.net(**dict(zip(self.names, given, strict=True)), **self.options)))
        return tuple(tensors(self.net(*given, **self.options)))


def tensors(result: Any) -> list[torch.Tensor]:
    """Return the tensors in a result, in order, each once."""
    if isinstance(result, torch.Tensor):
        return [result]
    parts = result.values() if isinstance(result, dict) else result if isinstance(result, (list, tuple)) else ()
    found = list[torch.Tensor]()
    for t in (t for part in parts for t in tensors(part)):
        if all(t is not other for other in found):
            found.append(t)
    return found


def trained(built: Built, seed: int = 0) -> None:
    """Give batch norms the statistics of a batch, as training would, scales and shifts that are not those of a new
    network, and what begins as zeros other numbers: with those of a new network, much would be left out."""
    torch.manual_seed(seed)
    for p in built.module.parameters():
        if p.is_floating_point() and not p.any():
            torch.nn.init.normal_(p, std=0.02)
    norms: list[Any] = [m for m in built.module.modules() if isinstance(getattr(m, "running_mean", None), torch.Tensor)]
    for m in norms:
        m.running_mean.normal_(0, 0.2)
        m.running_var.uniform_(0.5, 1.5)
        if m.weight is not None:
            torch.nn.init.uniform_(m.weight, 0.5, 1.2)
    built.module.eval()
