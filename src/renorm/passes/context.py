"""State that all passes of one run share: the target, what must stay whole, and the log."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from renorm.core.dims import Dim
from renorm.core.dots import PAIRS
from renorm.core.errors import InvalidInput, suggest
from renorm.core.gpu import facts
from renorm.core.machine import Machine
from renorm.core.target import Target
from renorm.graph import registry
from renorm.graph.ir import External, Graph, Node
from renorm.graph.rewrite import Log, Probe
from renorm.graph.typical import typical_shape
from renorm.runtime.report import NearNorm, PrecisionRecord


class Pass(Protocol):
    """A pass is a frozen dataclass; the first line of its docstring states its algebra."""

    def run(self, graph: Graph, context: Context) -> None:
        """Changes `graph` in place."""
        ...


@dataclass(frozen=True)
class Claim:
    """Nodes that the target runs as one kernel, by their names. external: what runs them, where the target has a code
    generator of its own and shapes are fixed."""

    nodes: tuple[str, ...]
    external: External | None = None


@dataclass
class Context:
    """level: 0 to 3, see passes.pipeline. keep: names of ops and of nodes that stay whole. precision: "fast"; "exact",
    without algorithms that round differently; "bfloat16", which memory may hold values in; or "tf32", where tensor
    cores multiply it. units: why single nodes stay whole, by node name, where the target asks for it. claims: what the
    target runs as one kernel. probe: measures rewrites when the user asks for it. admits: whether passes may bring an
    op in; a file's format may lack it. raised: norms that were made out of pieces, by name, and the source nodes that
    these were. near_norms: what looked like one and stayed. sizes: typical ones of open extents, for what weighs costs.
    precisions: what memory holds values in that go from kernel to kernel."""

    target: Target = field(default_factory=Target)
    level: int = 3
    keep: frozenset[str] = frozenset()
    precision: str = "fast"
    units: dict[str, str] = field(default_factory=dict[str, str])
    claims: list[Claim] = field(default_factory=list[Claim])
    log: Log = field(default_factory=Log)
    probe: Probe | None = None
    admits: Callable[[str], bool] = lambda op: True
    raised: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    near_norms: list[NearNorm] = field(default_factory=list[NearNorm])
    sizes: dict[str, int] = field(default_factory=dict[str, int])
    precisions: list[PrecisionRecord] = field(default_factory=list[PrecisionRecord])

    def typical(self, shape: Sequence[Dim]) -> tuple[int, ...]:
        """Return a shape whose open extents have typical numbers."""
        return typical_shape(shape, self.sizes)

    @property
    def held_dtype(self) -> str | None:
        """Return the dtype that this precision has memory hold float32 in; None: its own."""
        is_held = self.precision == "bfloat16" or (self.precision == "tf32" and self.uses_tensor_cores)
        return self.precision if is_held else None

    @property
    def uses_matrix_unit(self) -> bool:
        """Return whether a unit for matrices multiplies what memory holds in this precision."""
        return self.precision == "bfloat16" and self.target.machine_target.has_tiles

    @property
    def uses_tensor_cores(self) -> bool:
        """Return whether a GPU's tensor cores multiply what memory holds in this precision."""
        machine = self.target.machine_target
        return machine.is_gpu and self.precision in facts(machine.arch).narrow

    @property
    def multiplied_dtypes(self) -> tuple[str, ...]:
        """Return in which dtypes the machine multiplies data with data, where memory holds it so."""
        machine = self.target.machine_target
        if machine.is_gpu:
            return () if self.precision == "exact" else facts(machine.arch).narrow
        return (self.precision,) if self.uses_matrix_unit else ()

    def tensor_cores_take(self, dtype: str) -> bool:
        """Return whether a GPU's tensor cores multiply weights that a network has in a dtype."""
        if not self.target.machine_target.is_gpu:
            return False
        return dtype in self.multiplied_dtypes or (dtype == "float32" and self.uses_tensor_cores)

    @property
    def multiplies_pairs(self) -> bool:
        """Return whether the machine multiplies pairs of bfloat16 faster than float32, by vector instructions."""
        machine = self.target.machine_target
        return not machine.is_gpu and PAIRS in Machine.of(machine).dots

    @property
    def multiplies(self) -> bool:
        """Return whether kernels multiply what memory holds in this precision as it is; else they widen it first."""
        in_pairs = self.precision == "bfloat16" and self.multiplies_pairs
        return in_pairs or self.uses_matrix_unit or self.uses_tensor_cores

    def kept(self, node: Node) -> str | None:
        """Return why no rewrite may touch a node; None where it may."""
        held = [name for name in (node.op.name, node.op.form_of) if name in self.keep]
        if held:
            return f"keep holds every {held[0]}"
        if node.name in self.keep:
            return f"keep holds {node.name!r}"
        return self.units.get(node.name)


def check_keep(graph: Graph, keep: Iterable[str]) -> frozenset[str]:
    """`keep` as a set; InvalidInput names every entry that is neither an op nor a node of the graph."""
    nodes = {n.name for n in graph.nodes}
    known = {op.name for op in registry.all_ops()} | {n.op.name for n in graph.nodes}
    wrong = [k for k in dict.fromkeys(keep) if k not in nodes and k not in known]
    if wrong:
        raise InvalidInput(
            f"keep: neither op nor node of {graph.name}: {', '.join(repr(k) for k in wrong)}",
            [_nearest(k, known | nodes) for k in wrong],
            "name an op (batch_norm) or a node of the model",
        )
    return frozenset(keep)


def _nearest(name: str, known: set[str]) -> str:
    same = [op.name for op in registry.all_ops() if name in op.onnx]
    return f"ONNX's {name} is {same[0]} here" if same else f"nearest to {name!r}: {suggest(name, known)}"
