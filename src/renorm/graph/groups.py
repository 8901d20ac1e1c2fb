"""Groups: nodes that run as one kernel, and code of other packages that does so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from renorm.runtime.external import ExternalCode

if TYPE_CHECKING:
    from renorm.graph.ir import Node


@dataclass(frozen=True, eq=False)
class External:
    """Code that the target's own code generator made of a group. reads: what it is called with, each as the name of a
    node and which of its operands that is."""

    code: ExternalCode
    reads: tuple[tuple[str, int], ...]


@dataclass
class Group:
    """Nodes that run as one kernel, in order. name: the kernel's, made of its labels. is_aliased: nothing has to run,
    since results lie within operands, or operands within results. external: what runs it, where that is not renorm's
    code; it writes the results of the last node, and nothing else of the group exists."""

    name: str
    nodes: list[Node]
    is_aliased: bool = False
    external: External | None = None
