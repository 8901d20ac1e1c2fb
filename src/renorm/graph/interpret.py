"""Run a graph in NumPy by the references of its ops: the oracle of passes and kernels.

Floating values are float64 throughout. With rounded=True each result is rounded to its dtype before it is read, as a
network that is run kernel by kernel rounds; constants always have the elements of their dtype. What memory holds in
another dtype (graph.layout) is rounded to that, unless held=False leaves layouts out.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.conversion import converted
from renorm.core.errors import InvalidInput, RenormError, UserCodeError
from renorm.core.inputs import fixed_extents
from renorm.graph.ir import Graph, Node, Value
from renorm.graph.known import substituted

Array = np.ndarray[Any, Any]


def run(graph: Graph, inputs: Sequence[Any] | Mapping[str, Any], *, rounded: bool = False) -> list[Array]:
    """Return the outputs, in order, in their dtypes. inputs: arrays in order, or by name."""
    env = evaluate(graph, inputs, rounded=rounded)
    return [narrow(env[v], v.dtype) for v in graph.outputs]


def evaluate(
    graph: Graph, inputs: Sequence[Any] | Mapping[str, Any], *, rounded: bool = False, held: bool = True
) -> dict[Value, Array]:
    """Return every value of the graph; floats as float64."""
    env = known(graph, inputs)
    compute(graph.nodes, env, rounded=rounded, held=held)
    return env


def known(graph: Graph, inputs: Sequence[Any] | Mapping[str, Any]) -> dict[Value, Array]:
    """Return inputs and constants of the graph; floats as float64. Raise InvalidInput where inputs do not fit."""
    given = (
        dict(inputs) if isinstance(inputs, Mapping) else dict(zip((v.name for v in graph.inputs), inputs, strict=True))
    )
    names = {v.name for v in graph.inputs}
    wrong = [f"{n!r} is not an input" for n in given if n not in names]
    wrong += [f"input {v.name!r}: {v.type} is missing" for v in graph.inputs if v.name not in given]
    if wrong:
        raise InvalidInput(f"graph {graph.name}: inputs do not fit", wrong)
    env = {v: widen(narrow(np.asarray(given[v.name]), v.dtype)) for v in graph.inputs}
    env |= {v: widen(v.data) for v in graph.constants.values() if v.data is not None}
    return env | {v: _numbers(v, env) for v in graph.extents.values()}


def fixed(graph: Graph, inputs: Mapping[str, Array]) -> Graph:
    """Return a copy whose extents are those of these inputs, by name."""
    elements = {v.name: inputs[v.name].reshape(-1).tolist() for v in graph.inputs if v.deciding}
    shapes = {v.name: inputs[v.name].shape for v in graph.inputs}
    return graph.copy(fixed_extents(graph.inputs, shapes, graph.name, elements))


def _numbers(extents: Value, env: Mapping[Value, Array]) -> Array:
    """Return elements that are open extents, for inputs of these shapes."""
    graph = extents.graph
    given = {v: env[v] for v in graph.inputs if v in env}
    elements = {v.name: a.reshape(-1).tolist() for v, a in given.items() if v.deciding}
    sizes = fixed_extents(graph.inputs, {v.name: a.shape for v, a in given.items()}, graph.name, elements)
    return substituted(extents.known, sizes).astype(dtypes.numpy_dtype(extents.dtype))


def compute(nodes: Iterable[Node], env: dict[Value, Array], *, rounded: bool = False, held: bool = True) -> None:
    """Add the results of nodes, in order, to `env`, which has what they read apart from constants."""
    for node in nodes:
        for v in node.inputs:
            if v is not None and v not in env:  # of nodes that a rewrite made
                env[v] = widen(v.data) if v.data is not None else _numbers(v, env)
        env.update(zip(node.outputs, apply(node, env, rounded=rounded, held=held)))


def ancestors(values: Sequence[Value], known: Container[Value] = ()) -> list[Node]:
    """Return the nodes that compute values of one graph from those that are `known`, in order."""
    reached, nodes = [v.producer for v in values if v not in known], dict[Node, None]()
    while reached:
        node = reached.pop()
        if node is not None and node not in nodes:
            nodes[node] = None
            reached += [v.producer for v in node.inputs if v is not None and v not in known]
    return sorted(nodes, key=values[0].graph.position_of) if nodes else []


def apply(node: Node, env: Mapping[Value, Array], *, rounded: bool = False, held: bool = True) -> list[Array]:
    """Return the results of one node on the arrays of its operands. Raise UserCodeError where the op's reference fails,
    or gives another shape than the types say."""
    operands = node.arranged(None if v is None else env[v] for v in node.inputs)
    try:
        with np.errstate(all="ignore"):
            made = node.op.reference(*operands)
    except RenormError:
        raise
    except Exception as error:  # an op may stand in a user's file and fail in any way
        raise node.failed("reference", error) from error
    results = list(made) if isinstance(made, (list, tuple)) else [made]
    return [_result(node, v, r, rounded, held) for v, r in zip(node.outputs, results)]


def _result(node: Node, v: Value, result: Any, rounded: bool, held: bool) -> Array:
    array = np.asarray(result)
    dtype = dtypes.numpy_dtype(v.dtype)
    if v.type.is_static and array.shape != v.shape:
        raise UserCodeError(
            f"node {node.name!r}: reference of {node.op.name} gives another shape than its types say",
            [f"reference {list(array.shape)}", f"expected  {v.type}"],
        )
    if not dtypes.is_float(v.dtype):
        return array.astype(dtype, copy=False)
    with np.errstate(all="ignore"):
        array = widen(array.astype(dtype)) if rounded else array.astype(np.float64, copy=False)
        if held and v.held_dtype != v.dtype:
            array = narrow(array, v.held_dtype).astype(np.float64)
        return array


class Known:
    """Elements of values that can be told before a network runs, each computed once, however many ways lead to it, and
    however long they are; each step rounds to its dtype, as the network itself would.

    given: the elements that a value has by itself; None where a node would have to be computed for them. may_compute:
    whether that may be done.
    """

    def __init__(self, given: Callable[[Value], Array | None], may_compute: Callable[[Value], bool] = lambda v: True):
        self._given, self._may_compute = given, may_compute
        self._found = dict[Value, Array | None]()

    def __call__(self, v: Value) -> Array | None:
        """Return the elements, in the value's dtype; None where they are not known."""
        waiting = [v]
        while waiting:
            if waiting[-1] in self._found or not (before := self._look(waiting[-1])):
                waiting.pop()
            else:
                waiting += before
        return self._found[v]

    def _look(self, v: Value) -> list[Value]:
        """Find the elements of a value, or return operands whose elements must be found first."""
        own, node = self._given(v), v.producer
        operands = [] if node is None else [o for o in node.inputs if o is not None]
        if own is not None or node is None or not operands or not self._may_compute(v):
            self._found[v] = own
            return []
        before = [o for o in operands if o not in self._found]
        if before:
            return before
        env = {o: widen(a) for o in operands if (a := self._found[o]) is not None}
        results = apply(node, env, rounded=True) if env.keys() >= {*operands} else [None] * len(node.outputs)
        for y, a in zip(node.outputs, results):
            self._found.setdefault(y, None if a is None else a.astype(dtypes.numpy_dtype(y.dtype)))
        return []


def narrow(array: Array, dtype: str) -> Array:
    """Return the array rounded to a dtype; what is beyond its range becomes infinite."""
    with np.errstate(all="ignore"):
        return converted(array, dtype) if dtypes.is_float(dtype) else array.astype(dtypes.numpy_dtype(dtype))


def widen(array: Array) -> Array:
    """Return floats as float64, others as they are."""
    return array.astype(np.float64, copy=False) if dtypes.is_float(dtypes.from_numpy(array.dtype)) else array
