"""Modules of graphs: equal ones, of which networks have many, are compiled once, in another process where they can."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

from renorm.core.dims import is_static
from renorm.driver.compile import compile
from renorm.driver.module import SpecializingModule
from renorm.graph.ir import Graph
from renorm.runtime.module import Module
from renorm.training import graphs

AnyModule = Module | SpecializingModule


class Compilation:
    """A graph, and its module once somebody asks. is_asked: another process is asked for it now."""

    def __init__(self, graph: Graph, options: Mapping[str, Any], threads: Any, is_asked: bool):
        self._graph, self._options, self._threads = graph, options, threads
        self._request = graphs.asked(graph, options) if is_asked else None
        self._module: AnyModule | None = None

    def module(self) -> AnyModule:
        if self._module is None and self._request is not None:
            self._module = graphs.module(self._request, self._threads, self._options.get("device", 0))
        if self._module is None:
            self._module = compile(self._graph, threads=self._threads, **self._options)
        return self._module


_EQUAL = WeakValueDictionary[Any, Compilation]()


def compilation(graph: Graph, options: Mapping[str, Any], threads: Any, has_kept: bool) -> Compilation:
    """Return what compiles a graph: one for equal graphs, of which networks have many. has_kept: it has constants that
    lie elsewhere, and are no others'."""
    if has_kept:
        return Compilation(graph, options, threads, False)
    constants = tuple(v.data.tobytes() for v in graph.constants.values() if v.data is not None)
    key = _anonymous(graph), constants, repr(options), threads
    found = _EQUAL.get(key)
    if found is None:
        is_fixed = all(is_static(v.shape) for v in graph.inputs)
        found = _EQUAL[key] = Compilation(graph, options, threads, is_fixed)
    return found


def _anonymous(graph: Graph) -> str:
    """Return a graph as text, with numbers for names."""
    numbers = dict[str, str]()
    text = re.sub(r"  //.*", "", str(graph))
    return re.sub(
        r"%[\w.]+|\b[\w.]+(?=: \w+\[)", lambda m: numbers.setdefault(m[0].lstrip("%"), f"v{len(numbers)}"), text
    )
