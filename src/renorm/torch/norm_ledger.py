"""Record what becomes of each norm of a model, as data and as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class ModuleNorm:
    """One norm of a model.

    path: of its layer in the model; of a call that is no layer, the name of its node in a compiled graph. cls: the
    layer's class; "" of such a call. kind: the op that it is. fate: folded (it is gone, its scale and shift are in
    parameters of other layers), or kept. into: paths of these layers; is_before: whether they stand before it. reason:
    a sentence, always there when kept. calls: how often the model calls it. channels: of its statistics or parameters.
    parameters, bytes: how much less the folded model has, buffers among the bytes. compiled: what renorm.compile makes
    of each of its calls; empty where that is not known.
    """

    path: str
    cls: str
    kind: str
    fate: str
    into: tuple[str, ...] = ()
    is_before: bool = True
    reason: str = ""
    calls: int = 0
    channels: int = 0
    parameters: int = 0
    bytes: int = 0
    compiled: tuple[str, ...] = ()

    def __str__(self) -> str:
        side = "before" if self.is_before else "after"
        told = f" into {', '.join(self.into)} {side} it" if self.into else ""
        told += f" ({self.reason})" if self.reason else ""
        compiled = f"; compiled: {'; '.join(dict.fromkeys(self.compiled))}" if self.compiled else ""
        return f"{self.path or '(the model)'}: {self.cls or self.kind} {self.fate}{told}{compiled}"


@dataclass(frozen=True)
class Verified:
    """A folded model beside the one that it was. wide: the largest difference in float64, relative to the largest
    value; None where the model does not run in it. error: the same in `dtype`, the model's own, and tolerance: what is
    allowed there of each channel. unchecked: what was not compared, a part of a sentence each."""

    wide: float | None
    error: float
    dtype: str
    tolerance: float
    unchecked: Sequence[str] = ()

    def __str__(self) -> str:
        wide = "" if self.wide is None else f"{self.wide:.1e} in float64, "
        lines = [f"verified: off by {wide}{self.error:.1e} in {self.dtype} (tolerance {self.tolerance:.1e})"]
        return "\n".join([*lines, *(f"not verified: {said}" for said in self.unchecked)])


@dataclass(frozen=True)
class ModuleLedger:
    """The norms of a model. model: its class. unread: why renorm.compile does not take the model, "" where it does, or
    nobody asked. verified: of a model that was folded."""

    model: str
    norms: tuple[ModuleNorm, ...] = ()
    unread: str = ""
    verified: Verified | None = None

    @property
    def folded(self) -> tuple[ModuleNorm, ...]:
        """Those that fold."""
        return tuple(n for n in self.norms if n.fate == "folded")

    def to_json(self) -> dict[str, Any]:
        """For who reads JSON."""
        return asdict(self)

    def __str__(self) -> str:
        saved = sum(n.parameters for n in self.folded), sum(n.bytes for n in self.folded)
        lines = [
            f"{self.model}: {len(self.norms)} norms, {len(self.folded)} of them fold, which saves {saved[0]:,} "
            f"parameters, {saved[1]:,} bytes"
        ]
        lines += [f"  {n}" for n in self.norms]
        lines += [f"renorm.compile: {self.unread}"] if self.unread else []
        return "\n".join([*lines, *([str(self.verified)] if self.verified else [])])
