"""Find which arguments each phase of a kernel touches."""

from __future__ import annotations

from collections.abc import Sequence

from renorm.codegen.abi import Access
from renorm.codegen.phases import Phase
from renorm.expr import rewrite
from renorm.tir.nodes import Buffer, Store, expressions, walk


def access(phase: Phase, arguments: Sequence[Buffer], nanoseconds: float) -> Access:
    """arguments: parameters, then workspaces. nanoseconds: about how long an iteration takes."""
    position = {b: i for i, b in enumerate(arguments)}
    reads, writes = set[int](), set[int]()
    for s in walk(phase.body):
        if isinstance(s, Store) and s.buffer in position:
            writes.add(position[s.buffer])
        for e in expressions(s):
            sources = {load.source for load in rewrite.loads(e)}
            reads.update(k for b, k in position.items() if b in sources)
    return Access(tuple(sorted(reads)), tuple(sorted(writes)), nanoseconds)
