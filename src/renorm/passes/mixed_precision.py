"""Mixed precision: which values memory holds in bfloat16 or tf32, and which stay float32, each with a reason.

A value that is held in bfloat16 is rounded where it is made, once, after all that its kernel does to it; whoever reads
it computes in float32 as before. A weight is held as the data that it is multiplied with. Rounding costs 2^-8 of a
value at most, which averages out over the terms of a sum, and does not where

    a value comes to a result as it is          results, and all that kernels read after which no product comes, but
                                                what they multiply themselves: those sums stay float32
    layers add to it, one after the other       the sum that a norm of rows reads: its errors add up
    little is computed of few numbers           small values, statistics: nothing is saved either
    errors grow or decide                       what `OpDef.wants_digits` names; what integers are made of, and of them

Values that lie in the memory of others (a concat's parts) are held as these are, or they would be copied. A tf32 has
as many bytes as a float32: only what tensor cores may multiply is held in it, and lies in one memory with that; it is
2^-11 of a value off at most.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from math import prod

from renorm.core import dtypes
from renorm.core.dims import is_static, static
from renorm.graph import registry
from renorm.graph.deferred import Rounded
from renorm.graph.held import held_weight_dtype, is_lanewise
from renorm.graph.ir import Graph, Group, Node, Value
from renorm.graph.layout import Layout
from renorm.passes import layouts
from renorm.passes.affine import given
from renorm.passes.context import Context
from renorm.runtime.report import PrecisionRecord

SMALL = 1 << 12  # elements below which rounding a value saves nothing that could be measured
ROW_NORMS = ("layer_norm", "rms_norm")  # which attention and products of rows stand behind
LARGE_WEIGHT = 1 << 19  # elements of a weight that is worth being read in fewer bytes, however little it is used


@dataclass(frozen=True)
class ChoosePrecision:
    """v: f32 -> v: f32 as bf16, for precision "bfloat16" where no reason keeps v float32, as tf32 for "tf32"; a weight
    w of such v -> w rounded; attention(v, ..) -> attention(v, ..) of rounded powers"""

    def run(self, graph: Graph, context: Context) -> None:
        if context.held_dtype is not None:
            self._hold(graph, context, context.held_dtype)
            round_weights(graph)
        _round_data(graph, context)

    def _hold(self, graph: Graph, context: Context, dtype: str) -> None:
        for v, reason in plan(graph, context).items():
            if not reason:
                v.layout = replace(v.layout or Layout(), dtype=dtype)
            node = "" if v.producer is None else v.producer.name
            record = PrecisionRecord(v.name, node, v.held_dtype, prod(context.typical(v.shape)), reason)
            context.precisions.append(record)


def arithmetic(context: Context) -> str:
    """Return how products are computed, as a sentence for the report; "" where precision says nothing of memory."""
    if context.precision == "tf32" and context.held_dtype is None:
        return "products run in float32: the target has no instructions that multiply tf32"
    if not context.precisions:
        return ""
    if context.uses_tensor_cores:
        return f"products of {context.precision} on tensor cores, summed in float32; others in float32"
    if context.multiplies:
        is_unit = context.uses_matrix_unit
        how = "on the CPU's matrix unit" if is_unit else "in pairs, by vector instructions"
        where = "its registers" if is_unit else "vector registers and no algorithm of fewer products is faster"
        attending = ", and those of attention, whose weights are rounded," if is_unit else ""
        return (
            f"products of {context.precision} with constant weights{attending} {how}, summed in float32, "
            f"where channels fill {where}; others in float32"
        )
    reason = "for want of instructions that multiply it faster"
    return f"memory holds {context.precision}; {reason}, products run in float32"


def plan(graph: Graph, context: Context) -> dict[Value, str]:
    """Return for each float32 value that goes from kernel to kernel, or into a product, why it stays so, as a sentence;
    "" where it is held in fewer digits."""
    reasons, found = _Reasons(graph, context), dict[Value, str]()
    asked = multiplied(graph) if context.held_dtype == "tf32" else candidates(graph)
    for together in lying_together(graph, asked):
        said = {v: reasons.of(v) for v in together}
        first = next((v for v in together if said[v]), None)
        small = [reasons.small(v) for v in together]
        lies_with = together if context.held_dtype == "tf32" and first is None else ()
        for v in together:
            if v not in asked and v not in lies_with:
                continue
            if first is not None:
                found[v] = said[v] or f"it lies in one memory with {first.name!r}: {said[first]}"
            else:
                found[v] = reasons.small(v) if all(small) else ""
    return {v: found[v] for v in (*asked, *found)}


def candidates(graph: Graph) -> dict[Value, None]:
    """Return float32 values that another kernel reads, and those that a product multiplies with a weight."""
    inside = {n: g.name for g in graph.groups for n in g.nodes}
    found = dict[Value, None]()
    for v in (v for n in graph.nodes for v in n.outputs):
        leaves = any(inside[u] != inside[n] for n in [v.producer] if n for u in v.readers)
        is_data = any(u.inputs[0] is v and weights(u) for u in v.readers)
        if v.dtype == "float32" and not graph.is_output(v) and (leaves or is_data):
            found[v] = None
    return found


def multiplied(graph: Graph) -> dict[Value, None]:
    """Return float32 values that products read as their factors, where all factors of a product can be held."""

    def is_weight(node: Node, i: int, v: Value) -> bool:
        return v.is_constant and node.op.channel_axis(i, node.operand_types()) is not None

    found = dict[Value, None]()
    for node in graph.nodes:
        data = [v for i, v in factors(node) if not is_weight(node, i, v)]
        if all(v.producer is not None and not graph.is_output(v) for v in data):
            found |= dict.fromkeys(data)
    return found


def factors(node: Node) -> Iterator[tuple[int, Value]]:
    """Yield the operands of float32 that a product multiplies, each with its index; none of single channels."""
    if node.op.is_product and len(node.inputs) >= node.op.factors and not is_lanewise(node):
        for i, v in enumerate(node.inputs[: node.op.factors]):
            if v is not None and v.dtype == "float32":
                yield i, v


def weights(node: Node) -> list[int]:
    """Return which operands are weights of a sum of products, and may be held as its data."""
    types = node.operand_types()
    if not node.op.is_product or node.op.magnifies_weights:
        return []
    constant = [i for i, v in enumerate(node.inputs) if v is not None and v.is_constant and v.dtype == "float32"]
    return [i for i in constant if node.op.channel_axis(i, types) is not None]


def lying_together(graph: Graph, candidates: Collection[Value]) -> list[list[Value]]:
    """Return the candidates, each with all values that may lie in one memory with it."""
    above: dict[Value, Value] = {}

    def find(v: Value) -> Value:
        while (u := above.setdefault(v, v)) is not v:
            above[v] = above[u]
            v = above[u]
        return v

    for node in (g.nodes[0] for g in graph.groups if len(g.nodes) == 1 and not g.external):
        values = [v for v in (*node.inputs, *node.outputs) if v is not None]
        for a in (node.op.aliases(node) or ()) if all(is_static(v.shape) for v in values) else ():
            if a.part.dtype == a.whole.dtype == "float32" and not a.part.is_constant:
                above[find(a.part)] = find(a.whole)
    found: dict[Value, list[Value]] = {find(v): [] for v in candidates}
    for v in [*above, *(v for v in candidates if v not in above)]:
        found.get(find(v), []).append(v)
    return list(found.values())


class _Reasons:
    """Why values stay float32."""

    def __init__(self, graph: Graph, context: Context):
        self._graph, self._context = graph, context
        self._found: dict[Value, str] = {}
        self._group = {n: g for g in graph.groups for n in g.nodes}
        leads_on = set[str]()
        for group in reversed(graph.groups):
            after = {self._group[u].name: self._group[u] for n in group.nodes for v in n.outputs for u in v.readers}
            after.pop(group.name, None)
            if any(name in leads_on or _is_product(g) for name, g in after.items()):
                leads_on.add(group.name)
        for group in graph.groups:
            self._of_kernel(group, is_last=group.name not in leads_on)

    def of(self, v: Value) -> str:
        """Return why a value, and all that lie in one memory with it, stay float32; "" where nothing keeps them."""
        if v.producer is None:
            return "it is an input of the network"
        return "it is an output of the network" if self._graph.is_output(v) else self._found.get(v, "")

    def small(self, v: Value) -> str:
        """Return why it is not worth to hold a value in fewer bytes; "" where it is."""
        count = prod(self._context.typical(v.shape))
        if count >= SMALL and v.rank > 1:
            return ""
        large = (u.inputs[i] for u in v.readers if u.inputs[0] is v for i in weights(u))
        if any(w is not None and prod(static(w.shape)) >= LARGE_WEIGHT for w in large):
            return ""
        return f"it has {count} elements" if v.rank > 1 else "it has one axis"

    def _of_kernel(self, group: Group, is_last: bool) -> None:
        read = [v for n in group.nodes for v in n.inputs if v is not None and not v.is_constant]
        written = [v for n in group.nodes for v in n.outputs]
        for n in group.nodes:
            target = self._context.target
            claimed = any(n.name in claim.nodes for claim in self._context.claims)
            if group.external or claimed or not registry.is_own(type(n.op)) or layouts.is_foreign(n, target):
                self._keep([*read, *written], f"code that is not renorm's takes part in {group.name}")
            elif kept := self._context.kept(n):
                self._keep([*n.inputs, *n.outputs], kept)
        for n in group.nodes:
            for i, v in enumerate(n.inputs):
                if v is not None and not v.is_constant and (why := n.op.wants_digits(i)):
                    self._keep(_before(v, group), f"{n.name!r} reads it: {why}")
            makes_floats = any(dtypes.is_float(v.dtype) for v in n.outputs)
            reads_floats = any(v is not None and dtypes.is_float(v.dtype) for v in n.inputs)
            if reads_floats and not makes_floats:
                of = [u for v in n.inputs if v is not None for u in _before(v, group)]
                self._keep(of, f"{n.name!r} makes integers or truths of it")
            elif makes_floats and not reads_floats:
                self._keep(written, f"{n.name!r} makes it of integers")
            elif n.op.is_statistic:
                self._keep(n.outputs, "it holds statistics")
            if n.op.name in ROW_NORMS and (x := n.inputs[0]) is not None and self._is_sum(x):
                self._keep([x], f"layers add to it, and {n.name!r} normalizes the sum")
        if is_last:
            multiplied = _multiplied(group)
            read = [v for v in read if v not in multiplied]
            self._keep(read, f"no product comes after {group.name}, which reads it")

    def _is_sum(self, x: Value) -> bool:
        """Return whether a kernel adds a product to another value where it makes x: for 2 % of the time of BERT's base
        model, the sum in float32 takes a quarter off the error of its result."""
        made = self._group[x.producer].nodes if x.producer else []
        added = (n for n in made if n.op.name == "add" and not any(v is None or v.is_constant for v in n.inputs))
        return any(n.op.is_product for n in made) and any(added)

    def _keep(self, values: Iterable[Value | None], reason: str) -> None:
        for v in values:
            if v is not None:
                self._found.setdefault(v, reason)


def _is_product(group: Group) -> bool:
    return any(n.op.is_product for n in group.nodes)


def _multiplied(group: Group) -> set[Value]:
    """Return what a kernel reads and its product computes from what it multiplies, and nobody else in the kernel
    reads."""
    found = set[Value]()
    for n in group.nodes:
        for data in n.inputs[:1] if weights(n) else [v for _, v in factors(n)]:
            before = _before(data, group) if data is not None else []
            makers = {n, *(v.producer for v in before if v.producer in group.nodes)}
            found |= {v for v in before if all(u in makers for u in v.readers if u in group.nodes)}
    return found


def _before(v: Value, group: Group) -> list[Value]:
    """Return a value, and all in its kernel, and read by it, that it is computed from."""
    found, waiting = dict[Value, None](), [v]
    while waiting:
        v = waiting.pop()
        if v not in found and not v.is_constant:
            found[v] = None
            if v.producer in group.nodes:
                waiting += [u for u in v.producer.inputs if u is not None]
    return list(found)


def _round_data(graph: Graph, context: Context) -> None:
    """Have ops that multiply data with data round what they multiply, where memory holds these in fewer digits."""
    known = context.multiplied_dtypes
    if not known or (context.level < 2 and context.held_dtype is None):
        return
    for group in graph.groups:
        for node in (n for n in group.nodes if n.op.is_product):
            dtype = _data_dtype(node, group)
            op = node.op.rounded(node, dtype, context.target.machine_target) if dtype in known else None
            if op is not None and not context.kept(node):
                node.op = op


def _data_dtype(node: Node, group: Group) -> str:
    """Return the one dtype in which memory holds all floats that a node reads, but those whose digits it wants; ""
    where there are several, or some are constant."""
    found = set[str]()
    for i, v in enumerate(node.inputs):
        if v is not None and dtypes.is_float(v.dtype) and not node.op.wants_digits(i):
            read = [u for u in _before(v, group) if u.producer not in group.nodes and dtypes.is_float(u.dtype)]
            found |= {""} if v.is_constant else {u.held_dtype for u in read}
    return found.pop() if len(found) == 1 else ""


def round_weights(graph: Graph) -> None:
    """Have each weight whose data is held in fewer digits be a constant that these hold."""
    made: dict[tuple[Value, str], Value] = {}
    for node in graph.nodes:
        for i, w in enumerate(node.inputs):
            dtype = held_weight_dtype(node, i)
            if w is None or dtype is None:
                continue
            if (w, dtype) not in made:
                rounded = Rounded(given(w), dtype)
                made[w, dtype] = graph.constant(rounded, f"{w.name}.{dtype}", w.source, dtype=w.dtype)
            node.replace_operand(w, made[w, dtype])
    graph.discard_constants()
