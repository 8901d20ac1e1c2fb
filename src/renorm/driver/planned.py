"""Plan a compile without making code: modules that say what they are and do not run, and the parts of a network that
is no one program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from renorm.core.errors import InvalidInput
from renorm.driver.glue import GluedModule
from renorm.driver.host_part import HostPart
from renorm.driver.hosted import HostedModule
from renorm.driver.module import CompiledModule
from renorm.graph.counts import counts_of
from renorm.graph.ir import Graph, Node
from renorm.runtime.program import TensorSpec
from renorm.runtime.report import Report
from renorm.runtime.steps import parts_of

CODE, HOST = "compiled code", "the host"  # what runs a part
LATER = "code for what comes"  # made once a call comes to it


class PlannedModule(CompiledModule):
    """A module that does not run. source: the graph as it was read. graph: after the passes, kernel names on its
    groups. report: but for memory and times."""

    def __init__(self, source: Graph, graph: Graph, report: Report):
        self.source, self.graph, self._said = source, graph, report

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        first, number = counts_of(self.source).first, counts_of(self.source).number
        made = [TensorSpec(s.name, v.dtype, v.shape) for s, v in zip(self.source.outputs, self.graph.outputs)]
        return tuple(made[:first] if number else made)

    @property
    def report(self) -> Report:
        return self._said


@dataclass(frozen=True)
class PlannedPart:
    """A part of a network. by: what runs it; "" where that is known once a call comes to it. nodes: that it computes.
    sources, graphs: of these, as they were read and after the passes, where the host does not run it. why: the host
    runs it, or no one program does."""

    name: str
    by: str = ""
    nodes: Sequence[Node] = ()
    sources: tuple[Graph, ...] = ()
    graphs: tuple[Graph, ...] = ()
    report: Report = field(default_factory=Report)
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        ops, kernels = Counter(n.op.name for n in self.nodes), [k.name for k in self.report.kernels]
        return {"name": self.name, "by": self.by, "ops": dict(ops), "kernels": kernels, "why": self.why}


def planned_parts(module: HostedModule) -> Iterator[PlannedPart]:
    """Yield the parts of a network, and of each part of these, in the order of steps."""
    order = (number for step in module.plan.steps for number in parts_of(step))
    for part, runner in ((module.plan.parts[n], module._runners[n]) for n in order):
        made: Any = next(iter(runner.modules), None)
        if isinstance(made, HostedModule):
            yield from (
                replace(inner, name=f"{part.name}/{inner.name.removeprefix(f'{made.name}.')}")
                for inner in planned_parts(made)
            )
        elif isinstance(made, HostPart):
            yield PlannedPart(part.name, HOST, made.nodes, report=made.report, why=module.obstacle)
        elif part.outputs:
            found = PlannedPart(part.name)
            with suppress(InvalidInput):  # of what elements decide nothing is known
                if made is not None:
                    source = made.source if isinstance(made, PlannedModule) else made.graph
                    by = LATER if isinstance(module, GluedModule) and part.name in module.later else CODE
                    found = PlannedPart(part.name, by, source.nodes, (source,), (made.graph,), made.report)
            yield found
