"""A model file as what every format has: operators that read and make named values, and constants.

What is the format's own stays opaque: it goes in and out as it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

from renorm.frontends.order import topological

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class Operator:
    """kind, name: for people. body: all that it is beside the names of values, as bytes. reads: "" where an operand is
    left out; captures: what graphs within it read. native: as the format has it. groups: of a convolution, else 1."""

    kind: str
    name: str
    body: bytes
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    native: Any
    captures: tuple[str, ...] = ()
    groups: int = 1

    @property
    def operands(self) -> tuple[str, ...]:
        return tuple(n for n in (*self.reads, *self.captures) if n)

    @property
    def results(self) -> tuple[str, ...]:
        return tuple(n for n in self.makes if n)


@dataclass
class Listing:
    """operators in order. constants by name. types: what the format says of values, by name. is_typed: whether that is
    part of what operators compute (scales of quantized tensors, say). extents: dtype and shape as far as stated."""

    inputs: Sequence[str]
    outputs: Sequence[str]
    operators: list[Operator]
    constants: dict[str, Array] = field(default_factory=dict[str, Array])
    types: dict[str, bytes] = field(default_factory=dict[str, bytes])
    extents: dict[str, Any] = field(default_factory=dict[str, Any])
    is_typed: bool = False
    _digests: dict[str, str] = field(default_factory=dict[str, str], repr=False)

    def digest(self, name: str) -> str:
        """Of a constant's elements, dtype and shape."""
        if name not in self._digests:
            array = np.ascontiguousarray(self.constants[name])
            seen = blake2b(f"{array.dtype}{array.shape}".encode(), digest_size=12)
            seen.update(array.reshape(-1).view(np.uint8).data)
            self._digests[name] = seen.hexdigest()
        return self._digests[name]

    def key(self, operator: Operator) -> str:
        """Equal where two operators of that listing, or of another one of the model, are the same down to the bits of
        their constants."""
        seen = blake2b(operator.body, digest_size=12)
        for name in (*operator.reads, "", *operator.captures, "", *operator.makes):
            content = self.digest(name) if name in self.constants else ""
            seen.update(f"{len(name)} {name} {content}".encode())
            if self.is_typed:
                seen.update(self.types.get(name, b""))
        return seen.hexdigest()

    def producers(self) -> dict[str, Operator]:
        return {name: o for o in self.operators for name in o.results}

    def readers(self) -> dict[str, list[Operator]]:
        found: dict[str, list[Operator]] = {}
        for o in self.operators:
            for name in o.operands:
                found.setdefault(name, []).append(o)
        return found


def in_order(operators: Iterable[Operator], rank: Mapping[str, int]) -> list[Operator]:
    """Return operators so that each stands after those whose results it reads, and otherwise by the rank of their first
    result, those without rank last. What reads its own result, even indirectly, is left out."""
    listed = sorted(operators, key=lambda o: rank.get(next(iter(o.results), ""), len(rank)))
    places, _ = topological([o.operands for o in listed], [o.results for o in listed])
    return [listed[place] for place in places]
