"""Parts of networks that the host computes node by node, by the references of ops; results are rounded to dtypes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from math import prod
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.dims import static
from renorm.core.errors import Cancelled, InvalidInput, OutOfMemory, RenormError, TimeLimit, UserCodeError
from renorm.core.inputs import fixed_extents
from renorm.core.limits import Limits
from renorm.driver.extents import is_extents
from renorm.graph import interpret, known
from renorm.graph.deciding import undecided
from renorm.graph.ir import Node, Value
from renorm.graph.types import Operand, TensorType
from renorm.runtime.program import TensorSpec
from renorm.runtime.report import NormRecord, Report
from renorm.runtime.rounds import ArrayType

Array = np.ndarray[Any, Any]
NAMED = 8  # nodes, or lines, that a text names; of others it says how many there are
LONGEST = 200  # characters of a line of an error that another one tells


class HostPart:
    """Nodes of a graph that the host computes: what runs a part, and what a module is to it. Safe to call from several
    Python threads.

    nodes: in order. given: what they read that others compute. made: what of theirs others read.
    """

    def __init__(self, name: str, nodes: Sequence[Node], given: Sequence[Value], made: Sequence[Value], limits: Limits):
        self.name, self.nodes, self._given, self._made, self._limits = name, nodes, given, made, limits
        self._cancels, self._counted = 0, count(1)
        last = {v: n for n in nodes for v in (*n.outputs, *n.inputs) if v is not None and v not in made}
        self._dead: dict[Node, list[Value]] = {n: [] for n in nodes}  # what nobody reads once a node is computed
        for v, node in last.items():
            self._dead[node].append(v)
        self._numbers = dict.fromkeys(v for n in nodes for v in n.inputs if v is not None and is_extents(v))
        self._sized = {n for n in nodes if any(True for _ in undecided(n))}

    @property
    def modules(self) -> Sequence[Any]:
        """As Runner.modules."""
        return [self]

    def module_for(self, given: Sequence[Array]) -> HostPart:
        """As Runner.module_for."""
        return self

    def types(self, given: Sequence[Array]) -> list[ArrayType]:
        """As Runner.types."""
        return [(a.dtype, a.shape) for a in self.run(*given)]

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return tuple(map(spec, self._given))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return tuple(map(spec, self._made))

    @property
    def report(self) -> Report:
        """No kernels: which nodes run here, and what became of norms."""
        why = "the host runs it: data decide extents that no kernel is told"
        norms = [NormRecord(n.name, n.op.name, "kept", (), why) for n in self.nodes if n.op.is_normalization]
        names = named([f"{n.op.name} {n.name!r}" for n in self.nodes])
        many = f"{len(self.nodes)} node{'s' * (len(self.nodes) > 1)}"
        said = f"{self.name}: the host runs {many}, by the references of their ops: {names}"
        return Report(norms=norms, diagnoses=[said])

    def cancel(self) -> None:
        """As Module.cancel, between nodes."""
        self._cancels = next(self._counted)

    def kernel(self, name: object) -> Any:
        """Raise InvalidInput: there are none."""
        raise InvalidInput(f"{self.name} has no kernels", ["the host runs it"])

    def encoded(self, key: object = None) -> Any:
        """Raise InvalidInput: there is no code."""
        raise InvalidInput(f"{self.name} is not compiled", self.report.diagnoses)

    def run(self, *given: Array, timeout: float | None = None) -> list[Array]:
        """Return the results. Raises Cancelled and TimeLimit between nodes, InvalidInput where a node has no result for
        what comes, LimitExceeded before more is computed than is allowed."""
        begun, deadline = self._cancels, None if timeout is None else time.monotonic() + timeout
        env = {v: interpret.widen(np.asarray(a)) for v, a in zip(self._given, given, strict=True)}
        env |= self._elements(env)
        for node in self.nodes:
            if self._cancels != begun:
                raise Cancelled(f"a run of {self.name} was cancelled")
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeLimit(f"a run of {self.name} was not done in {timeout:g} s")
            if node in self._sized:
                self._check(node, env)
            try:
                interpret.compute([node], env, rounded=True)
            except UserCodeError as error:
                self._check(node, env)  # which says it in the words of the op
                kind = OutOfMemory if isinstance(error.__cause__, MemoryError) else InvalidInput
                raise kind(f"{self.name}: {error.headline}", error.facts) from error
            for v in self._dead[node]:
                env.pop(v, None)
        return [np.asarray(interpret.narrow(env[v], v.dtype), order="C") for v in self._made]

    def _elements(self, env: Mapping[Value, Array]) -> Iterator[tuple[Value, Array]]:
        """Yield what is read that shapes alone decide, and elements of inputs that are extents."""
        if not self._numbers:
            return
        inputs = [v for v in env if v.producer is None]
        elements = {v.name: env[v].reshape(-1).tolist() for v in inputs if v.deciding}
        sizes = fixed_extents(inputs, {v.name: env[v].shape for v in inputs}, self.name, elements)
        for v in self._numbers:
            yield v, known.substituted(v.known, sizes).astype(dtypes.numpy_dtype(v.dtype))

    def _check(self, node: Node, env: Mapping[Value, Array]) -> None:
        """Raise LimitExceeded, or what inference raises, for a node that is told now how large its results are."""

        def view(v: Value | None) -> Operand | None:
            if v is None:
                return None
            array = env.get(v, v.data)
            assert array is not None
            return Operand(
                v.name, TensorType(v.dtype, array.shape), known.elements(array) if array.size <= 64 else array
            )

        try:
            made = node.op.result_types(node.arranged(map(view, node.inputs)), hint=node.name)
        except RenormError as error:
            raise InvalidInput(f"{self.name}: node {node.name!r}: {error.headline}", error.facts) from error
        sizes = [prod(static(t.shape)) for t in made]
        where = f"of node {node.name!r}"
        self._limits.check(self.name, [("elements", max(sizes), where), ("bytes", 8 * sum(sizes), where)])


def named(names: Sequence[str]) -> str:
    """Return names as a text, the first few of many."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def spec(v: Value) -> TensorSpec:
    """Return a value as modules tell it."""
    return TensorSpec(v.name, v.dtype, v.shape, deciding=v.deciding)
