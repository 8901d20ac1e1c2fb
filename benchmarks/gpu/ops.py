"""Every sample of every op, compiled as a network of one node and held against its NumPy reference in float64."""

from __future__ import annotations

import time
from importlib import import_module
from typing import Any

import renorm
from benchmarks.gpu.place import Place
from benchmarks.gpu.workers import FAILED, said
from renorm.core.errors import RenormError

RIGHT, WRONG, REFUSED = "right", "wrong", "refused"


def names(pattern: str = "") -> list[tuple[str, int]]:
    """Return ops, and the number of a sample; only of ops whose name has the pattern. First samples come first, so that
    no op goes without where time is short."""
    found = [op for op in _all() if pattern in op.name]
    most = max((len(op.samples) for op in found), default=0)
    return [(op.name, i) for i in range(most) for op in found if i < len(op.samples)]


def judged(place: Place, name: str, index: int) -> dict[str, Any]:
    """Return the outcome of a sample: right, wrong (with what differs), refused (before it runs); what raises while it
    runs has failed."""
    from tests.ops.one_node import OneNode  # of the tests, which need not be there for other phases

    op = next(op for op in _all() if op.name == name)
    case = OneNode(op, op.samples[index])
    begin = time.perf_counter()
    try:
        module: Any = renorm.compile(case.graph, target=place.target)
    except RenormError as error:
        return {"outcome": REFUSED, "said": said(error)}
    seconds = round(time.perf_counter() - begin, 3)
    try:
        found = module.run(*case.arrays)
    except Exception as error:
        return {FAILED: f"while it ran: {said(error)}"}
    try:
        case.agrees(found, case.reference())
    except AssertionError as error:
        return {"outcome": WRONG, "said": said(error), "seconds": seconds}
    return {"outcome": RIGHT, "seconds": seconds}


def _all() -> list[Any]:
    import_module("renorm.ops")  # registers them
    return [op for op in import_module("renorm.graph.registry").all_ops() if op.__module__.startswith("renorm.ops")]
