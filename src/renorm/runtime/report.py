"""Reports on networks, as data and as text: norms, kernels, memory. Kept in an artifact (core.records)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from renorm.core.dims import Dim, Sizes, Sym, substitute

FATES = ("folded", "unit", "fused", "unpacked", "kept")
FLOAT16_LARGEST, FLOAT16_NORMAL = 65504.0, 2.0**-14  # the smallest normal; smaller ones have fewer digits


@dataclass(frozen=True)
class Extreme:
    """A number per channel, where it is largest or smallest. channel: of the node's result."""

    channel: int
    value: float


@dataclass(frozen=True)
class ConstantRecord:
    """The constant that holds a norm now, with all that was folded into it.

    node: which reads it. name: the constant's; before: its name in the source model, "" where it was made. growth:
    largest magnitude after / before; shrunk, grown: the same of single channels, the least and the most (None where
    there was no such constant before, or it was 0). largest, smallest: magnitudes after, of each channel the largest;
    channels that are 0 are left out. is_weight: whether it is multiplied, and so has to keep its digits.
    """

    node: str
    name: str
    before: str = ""
    is_weight: bool = True
    growth: float | None = None
    shrunk: Extreme | None = None
    grown: Extreme | None = None
    largest: Extreme | None = None
    smallest: Extreme | None = None

    @property
    def objection(self) -> str:
        """Return why float16 could not hold it, as a sentence; "" where it could."""
        if self.largest and not self.largest.value <= FLOAT16_LARGEST:
            return (
                f"{self.name!r} of {self.node!r} reaches {self.largest.value:.3g} in channel {self.largest.channel}, "
                f"beyond float16's {FLOAT16_LARGEST:g}"
            )
        if self.is_weight and self.smallest and self.smallest.value < FLOAT16_NORMAL:
            return (
                f"{self.name!r} of {self.node!r} is below float16's smallest normal number {FLOAT16_NORMAL:.2g} in all "
                f"of channel {self.smallest.channel}: {self.smallest.value:.3g} at most"
            )
        return ""


@dataclass(frozen=True)
class NormRecord:
    """One normalization of the source model.

    name: its node. kind: its op. fate: folded (merged into constants of other nodes), unit (one op still, because
    `keep` or the target says so), fused (reduced to scale and shift, or to statistics, inside another kernel),
    unpacked (smaller ops in kernels of their own), kept (whole). into: names of nodes or of a kernel. reason: a
    sentence, always there when not folded. max_error: largest difference seen on probe inputs relative to the
    largest value, when verified. raised: names of the nodes in which the source model spelled it out, where it is no
    node there. through: nodes that carried it to where it went. constants: what it became part of. estimate: what
    rounding its constants may cost relative to the largest result; see passes.norm_fates.estimate. rules: names of the
    rewrites (classes in renorm.passes) that folded or unpacked it, or refused to.
    """

    name: str
    kind: str
    fate: str
    into: tuple[str, ...] = ()
    reason: str = ""
    max_error: float | None = None
    raised: tuple[str, ...] = ()
    estimate: float | None = None
    through: tuple[str, ...] = ()
    constants: tuple[ConstantRecord, ...] = ()
    rules: tuple[str, ...] = ()

    @property
    def error(self) -> float | None:
        """As it was measured, or else estimated."""
        return self.estimate if self.max_error is None else self.max_error

    @property
    def growth(self) -> float | None:
        """Largest |weight| after / before folding, of the weight that grew most; None where no weight changed."""
        return max((c.growth for c in self.constants if c.growth is not None and c.is_weight), default=None)

    @property
    def headroom(self) -> float | None:
        """float16's largest number over the largest magnitude of its constants: below 1, they do not fit."""
        largest = max((c.largest.value for c in self.constants if c.largest), default=0.0)
        return FLOAT16_LARGEST / largest if largest else None

    @property
    def float16(self) -> str:
        """Return why its constants would not survive in float16, as a sentence; "" where they would."""
        return next((c.objection for c in self.constants if c.objection), "")

    def __str__(self) -> str:
        into = f" into {', '.join(self.into)}" if self.into else ""
        raised = f" raised from {len(self.raised)} nodes," if self.raised else ""
        return f"{self.name}: {self.kind}{raised} {self.fate}{into}" + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True)
class NearNorm:
    """Arithmetic of the source model that looks like a normalization and was left as it is. name: its last node;
    nodes: all of them. kind: the op that it resembles. reason: a sentence on what differs, or stands in the way."""

    name: str
    kind: str
    reason: str
    nodes: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}: {len(self.nodes)} nodes resemble {self.kind} ({self.reason})"


@dataclass(frozen=True)
class PrecisionRecord:
    """A value that goes from kernel to kernel, where a network is compiled in fewer digits. node: which makes it.
    dtype: what memory holds it in. elements: typically. reason: a sentence, where it stays as it is."""

    name: str
    node: str
    dtype: str
    elements: int
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}" + (f" ({self.reason})" if self.reason else "")


@dataclass(frozen=True)
class WorkRecord:
    """The least that a kernel must do. flops: additions, multiplications, functions, ..., each counted as one; bytes:
    to read and to write, each element once; of open extents where these are. is_nominal: flops are those of the
    textbook algorithm, while the kernel runs one that needs fewer."""

    flops: Dim = 0
    bytes: Dim = 0
    is_nominal: bool = False

    def substituted(self, values: Sizes) -> WorkRecord:
        """Return the work where symbols have these values."""
        return WorkRecord(substitute(self.flops, values), substitute(self.bytes, values), self.is_nominal)


@dataclass(frozen=True)
class KernelRecord:
    """One launch. name: made of what is fused in it; nodes: names of the graph's nodes that it runs. spills: how many
    instructions of its hot loops move vector registers to or from the stack, because no tile did with fewer. target:
    whose external code runs it; "" where renorm's does. extents: the open ones that it is given as numbers. predicted,
    bound: about how many seconds one thread takes, at typical extents, and what most of that is for (tir.predicted)."""

    name: str
    nodes: tuple[str, ...] = ()
    work: WorkRecord = field(default_factory=WorkRecord)
    spills: int = 0
    target: str = ""
    extents: tuple[Dim, ...] = ()
    predicted: float = 0.0
    bound: str = ""

    def __str__(self) -> str:
        told = f", {self.spills} spills in hot loops" if self.spills else ""
        return self.name + (f", for any {', '.join(map(str, self.extents))}" if self.extents else "") + told


@dataclass(frozen=True)
class MemoryRecord:
    """Bytes. lower_bound: the most that is alive at once, which no plan can go below."""

    weights: int = 0
    arena: int = 0
    lower_bound: int = 0


@dataclass(frozen=True)
class RunRecord:
    """How threads share the work. phases: parts of kernels that run one after the other; barriers: where all threads
    wait for each other, the end not counted; chunked: phases of which a thread that is done takes over from others."""

    phases: int = 0
    barriers: int = 0
    chunked: int = 0

    def __str__(self) -> str:
        return f"{self.phases} phases, {self.barriers} barriers, {self.chunked} phases shared out in chunks"


@dataclass(frozen=True)
class CodeRecord:
    """Where the code came from. unique: how many different kernels there are; compiled: those that had to be compiled,
    the others were in the cache; processes: that compiled them. cache: its directory, or "off: " and the reason.
    refused: kernels lowered again for fewer registers, because their hot loops spilled."""

    unique: int = 0
    compiled: int = 0
    processes: int = 0
    cache: str = ""
    refused: int = 0


@dataclass(frozen=True)
class OutputRecord:
    """An output of compiled code beside the network's definition, on random inputs. error: the largest difference,
    relative to the largest value; absolute for integers. tolerance: that of its dtype (core.tolerance), of each
    channel. unchecked: what was not compared, as a part of a sentence."""

    name: str
    error: float
    tolerance: float
    unchecked: str = ""

    def __str__(self) -> str:
        return f"{self.name}: off by {self.error:.2g}" + (
            f" (not compared: {self.unchecked})" if self.unchecked else ""
        )


@dataclass(frozen=True)
class VerifiedRecord:
    """Outputs that `verify=True` compared with the network's definition, and what it did not compare: a sentence
    each. extents: for which open ones it was compared; an output's error is the largest of these."""

    outputs: Sequence[OutputRecord] = ()
    unchecked: Sequence[str] = ()
    extents: Sequence[str] = ()

    @property
    def lines(self) -> list[str]:
        """For people to read."""
        found = [f"verified: {o}" for o in self.outputs] + [f"not verified: {said}" for said in self.unchecked]
        return found + [f"verified where {said}" for said in self.extents]


@dataclass(frozen=True)
class Report:
    """The report on one compilation. near_norms: what resembles a norm and is none. renamed: output names of the source
    model that are named otherwise now. names: for each tensor of the source model (constants aside) the name under
    which it is computed now, None where it is not computed any more. refusals: rewrites that did not fire, as (rule,
    node, reason). diagnoses: what looked wrong in the source model. assumptions: what its file leaves open, and how it
    was taken. extents: open ones of inputs, with what is known of them. conditions: what a call's extents must fulfil
    besides, and which node asks for it. precisions: values between kernels, where it was compiled in fewer digits.
    arithmetic: how products of these run, as a sentence."""

    norms: Sequence[NormRecord] = ()
    near_norms: Sequence[NearNorm] = ()
    kernels: Sequence[KernelRecord] = ()
    memory: MemoryRecord = field(default_factory=MemoryRecord)
    run: RunRecord = field(default_factory=RunRecord)
    code: CodeRecord = field(default_factory=CodeRecord)
    renamed: dict[str, str] = field(default_factory=dict[str, str])
    names: dict[str, str | None] = field(default_factory=dict[str, "str | None"])
    refusals: Sequence[tuple[str, str, str]] = ()
    diagnoses: Sequence[str] = ()
    assumptions: Sequence[str] = ()
    seconds: dict[str, float] = field(default_factory=dict[str, float])  # compile time by stage
    verified: VerifiedRecord | None = None
    extents: Sequence[str] = ()
    conditions: Sequence[str] = ()
    precisions: Sequence[PrecisionRecord] = ()
    arithmetic: str = ""

    @classmethod
    def of_parts(cls, reports: Sequence[Report]) -> Report:
        """Return the report on a network of these parts: lists one after the other, numbers as sums."""
        made = cls()
        for one in reports:
            merged = {f.name: _sum(getattr(made, f.name), getattr(one, f.name)) for f in fields(cls)}
            made = cls(**merged)
        return made

    def to_json(self) -> dict[str, Any]:
        """For who reads JSON: what core.records writes, and what follows from it."""
        data = asdict(self)
        for told, norm in zip(data["norms"], self.norms, strict=True):  # what is computed from the others
            told.update({name: getattr(norm, name) for name in _DERIVED})
        for told, kernel in zip(data["kernels"], self.kernels, strict=True):  # open extents as people read them
            told["extents"] = list(map(str, kernel.extents))
            told["work"] |= {k: str(d) for k, d in told["work"].items() if isinstance(d, Sym)}
        return data

    def __str__(self) -> str:
        fates = {fate: sum(n.fate == fate for n in self.norms) for fate in FATES}
        lines = [
            f"{len(self.norms)} normalizations: " + (", ".join(f"{k} {v}" for v, k in fates.items() if k) or "none")
        ]
        lines += [f"  {n}" for n in self.norms]
        if self.near_norms:
            lines += [f"{len(self.near_norms)} nearly normalizations", *(f"  {n}" for n in self.near_norms)]
        if self.kernels:
            lines += [f"{len(self.kernels)} kernel launches", *(f"  {k}" for k in self.kernels)]
        if self.precisions:
            wide = [p for p in self.precisions if p.reason]
            lines.append(f"{len(self.precisions)} values between kernels, {len(wide)} of them in their own dtype")
            lines.append(f"  {self.arithmetic}")
            lines += [f"  {p}" for p in wide]
        lines += [f"open extent: {e}" for e in self.extents]
        lines += [f"condition: {c}" for c in self.conditions]
        m = self.memory
        if m.weights or m.arena:
            lines.append(f"memory: weights {m.weights} B, arena {m.arena} B (lower bound {m.lower_bound} B)")
        if self.run.phases:
            lines.append(f"run: {self.run}")
        if self.verified:
            lines += self.verified.lines
        lines += [f"diagnosis: {d}" for d in self.diagnoses]
        lines += [f"assumption: {a}" for a in self.assumptions]
        return "\n".join(lines)


_DERIVED = ("error", "growth", "headroom", "float16")  # of a norm


def _sum(a: Any, b: Any) -> Any:
    """Return what two parts have together; of texts, and what one of them lacks, the first that there is."""
    if isinstance(a, (int, float)):
        return a + b
    if isinstance(a, dict):
        return {**a, **{k: _sum(a[k], v) if k in a and isinstance(v, float) else v for k, v in b.items()}}
    if hasattr(a, "__dataclass_fields__") and b is not None:
        return type(a)(*(_sum(getattr(a, f.name), getattr(b, f.name)) for f in fields(a)))
    return a or b if isinstance(a, str) or a is None or b is None else (*a, *b)
