"""A fused group becomes one loop kernel: compute of each node in te, one schedule, loops."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from renorm import te, topi
from renorm.core.dims import Dim, Quotient, Sym, static
from renorm.core.errors import InvalidGraph, InvalidSchedule, RenormError, UserCodeError
from renorm.core.target import Target
from renorm.driver import extents
from renorm.driver.work import work
from renorm.expr.bounds import open_truth, taken
from renorm.expr.nodes import Expr, OpenVar, const
from renorm.graph import deferred, registry
from renorm.graph.held import held_weight_dtype
from renorm.graph.ir import Graph, Group, Node, Value
from renorm.graph.layout import Layout
from renorm.graph.strided_region import strides
from renorm.ops import schedules
from renorm.ops.gather import Gather
from renorm.ops.schedules import cpu_packing, dot_weights
from renorm.ops.shape import elements
from renorm.runtime.report import WorkRecord
from renorm.te.mirror import Mirror
from renorm.te.tensor import producers_first
from renorm.topi import layout
from renorm.topi.layout import Blocking

if TYPE_CHECKING:
    from renorm.tir.nodes import Kernel

# A constant of one element is written into the code instead of being loaded.
SCALAR = 1


@dataclass(frozen=True)
class Parameter:
    """A kernel parameter. value: of the graph; form: how memory holds it where that is not row-major."""

    value: Value
    form: Blocking | None = None

    @property
    def dtype(self) -> str:
        """In which memory holds it."""
        return (self.form.dtype if self.form else None) or self.value.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents in memory."""
        shape = static(self.value.shape)
        return self.form.shape(shape) if self.form else shape

    def parts(self) -> list[tuple[int, int]]:
        """(begin, end) of parts in which a constant may be written, along the axis that memory has outermost."""
        shape = static(self.value.shape)
        return list(deferred.parts(shape, *self._outermost)) if shape else [(0, 1)]

    def write(self, out: np.ndarray[Any, Any], begin: int, end: int) -> None:
        """Write a part of a constant to `out`, of `shape`, as the kernel reads it."""
        if not self.value.rank:
            out[...] = self.value.data
            return
        axis, lanes = self._outermost
        part, out = self.value.part(axis, begin, end), out[begin // lanes : -(-end // lanes)]
        with np.errstate(all="ignore"):
            if self.form:
                self.form.pack(part, out)
            else:
                np.copyto(out, part, casting="unsafe")

    @property
    def _outermost(self) -> tuple[int, int]:
        """The axis that memory has outermost, and how many of its elements lie together."""
        axis = (self.form.first or 0) if self.form else 0
        return axis, self.form.lanes(axis) if self.form else 1


@dataclass(frozen=True)
class LoweredGroup:
    """A kernel, what its parameters are (first what it reads, then what it writes), what it must do at least, and which
    of the group's own symbols (driver.extents) its open extents are."""

    kernel: Kernel
    reads: tuple[Parameter, ...]
    writes: tuple[Value, ...]
    work: WorkRecord
    extents: tuple[Dim, ...] = ()


def group_results(graph: Graph, group: Group, users: dict[Value, list[Node]]) -> list[Value]:
    """Values of a group that somebody outside it reads."""
    inside = {id(n) for n in group.nodes}
    return [
        v
        for n in group.nodes
        for v in n.outputs
        if graph.is_output(v) or any(id(u) not in inside for u in users.get(v, ()))
    ]


@dataclass(frozen=True)
class _Program:
    """The tensor expressions of a group. reads: what its placeholders are. nominal: operations that results count
    as."""

    outs: list[te.Tensor]
    reads: dict[te.Tensor, Parameter]
    nominal: dict[te.Tensor, Dim]

    @property
    def held(self) -> list[te.Tensor]:
        """The placeholders that are read: a compute may ignore an operand, or need only its shape."""
        loaded = set(producers_first(t.op for t in self.outs))
        return [t for t in self.reads if t.op in loaded]


def lower_group(graph: Graph, group: Group, target: Target, users: dict[Value, list[Node]]) -> LoweredGroup:
    """Return the loop kernel of a group on a target. It is made of nothing but what driver.groups.group_key holds:
    whatever else it comes to read of values, nodes or the graph belongs there too.

    Where extents are open, the schedule is chosen for the program with typical values for them (graph.typical), and the
    open program is scheduled alike (te.mirror).

    Raises UserCodeError where an op's compute or schedule fails, naming node, op, operand types, file and line.
    """
    writes = group_results(graph, group, users)
    own = extents.OwnSymbols(graph, group)
    if not own.values:
        program = _program(group, writes, target, extents.known)
        s = _scheduled(group, writes, target, program)
        return _lowered(group, writes, target, s, program, work(program.outs, program.nominal))
    *others, surest = own.empty
    for empty in others:  # if it can be proved: an op may take extents to be 1 at least; most groups have none of these
        from renorm.tir.verify import verify  # loads the loop IR, which a network out of the cache does without

        with suppress(RenormError):
            lowered = _lowered_open(group, writes, target, own, empty)
            verify(lowered.kernel, target.machine_target, to_first=True)
            return lowered
    return _lowered_open(group, writes, target, own, surest)


def _lowered_open(
    group: Group,
    writes: Sequence[Value],
    target: Target,
    own: extents.OwnSymbols,
    empty: extents.Empty,
) -> LoweredGroup:
    """empty: what may be 0, of which the loops are to be proved."""
    sizes = own.typical
    of_symbols = extents.OpenExtents(own.values, sizes, own.of, empty.symbols)
    facts = [f for c in own.facts if open_truth(f := of_symbols.fact(c)) is not True]
    with taken(facts):
        open_program = _program(group, writes, target, of_symbols)
        program = _at(open_program, {v: sizes[s] for s, v in of_symbols.variables.items()})
        other = te.create_schedule([o.op for o in open_program.outs])
        s = _scheduled(group, writes, target, program, other)
        if s.mirror is None:
            what = "a schedule that is replaced by another one has no open extents"
            raise InvalidSchedule(f"kernel {group.name}: {what}")
        least = work(open_program.outs, open_program.nominal, of_symbols.dim, sizes)
        lowered = _lowered(group, writes, target, other, open_program, least, facts, empty.is_made)
    return replace(lowered, extents=of_symbols.given(lowered.kernel.given))


def _lowered(
    group: Group,
    writes: Sequence[Value],
    target: Target,
    s: te.Schedule,
    program: _Program,
    least: WorkRecord,
    facts: Sequence[Expr] = (),
    may_be_empty: bool = False,
) -> LoweredGroup:
    try:
        kernel = te.lower(s, [*program.held, *program.outs], name=group.name, facts=facts, may_be_empty=may_be_empty)
    except RenormError as error:
        anchor = registry.scheduler(group.nodes, target)
        raise error.within(f"kernel {group.name}, scheduled by node {anchor.name!r}") from error
    reads = tuple(program.reads[t] for t in program.held)
    weights = tuple(b.name for b, p in zip(kernel.params, reads) if p.value.is_constant)
    kernel = replace(kernel, attrs=kernel.attrs | {"weights": weights})
    return LoweredGroup(kernel, reads, tuple(writes), least)


def _scheduled(
    group: Group, writes: Sequence[Value], target: Target, program: _Program, other: te.Schedule | None = None
) -> te.Schedule:
    """Return the schedule of a program, as its anchor has it. other: of a program of the same structure, that is
    scheduled alike."""
    anchor = registry.scheduler(group.nodes, target)
    s = te.create_schedule([o.op for o in program.outs])
    if other is not None:
        s.mirror = Mirror(s, other)
    _store_within(s, program.outs, writes)
    override = registry.overridden(anchor.op.name, target)
    scheduled = override.schedule or partial(schedules.schedule, anchor.op)
    replaced = _user_code(anchor, "schedule", scheduled, s, program.outs, target.machine_target)
    s = replaced if isinstance(replaced, te.Schedule) else s
    _store_within(s, program.outs, writes)
    return s


def _program(group: Group, writes: Sequence[Value], target: Target, sizes: extents.Extents) -> _Program:
    tensors: dict[Value, te.Tensor] = {}
    reads: dict[te.Tensor, Parameter] = {}
    nominal: dict[te.Tensor, Dim] = {}
    stored: dict[Value, te.Tensor] = {}

    def tensor(value: Value, node: Node, index: int) -> te.Tensor:
        if value in tensors:
            return tensors[value]
        shape = sizes(value.shape, f"value {value.name!r}")
        name = identifier(value.name)
        stored = _panels(node, index, target) if value.is_constant else None
        form = Blocking.of(value.layout) if value.layout else stored
        if value.is_constant and prod(shape) == SCALAR:
            assert value.data is not None
            number = const(value.data.reshape(-1)[0].item(), value.dtype)
            tensors[value] = te.compute(shape, lambda *i, number=number: number, name=name, tag="elemwise")
        elif extents.is_extents(value):  # nothing in memory holds them
            held = elements(list(_static_array(node, name, value, sizes).flat), value.dtype, name)
            tensors[value] = topi.reshape(held, shape)
        elif form:
            parameter = Parameter(value, form)
            held = te.placeholder(form.shape(shape), parameter.dtype, name, strides(value))
            reads[held] = parameter
            view = layout.view(held, shape, form)
            if value.is_constant:
                return view  # another operand may need the same weight in another form
            tensors[value] = view
        else:
            tensors[value] = te.placeholder(shape, value.dtype, name, strides(value))
            reads[tensors[value]] = Parameter(value)
        return tensors[value]

    def operand(value: Value, node: Node, index: int) -> te.Tensor:
        """Return what a node reads of a value: of a weight that is no constant, what the kernel packs."""
        t = tensor(value, node, index)
        form = _panels(node, index, target) if cpu_packing.takes(node, index, target.machine_target) else None
        return layout.view(layout.packed(t, form), t.shape, form) if form else t

    for node in group.nodes:
        override = registry.overridden(node.op.name, target)
        operands = _operands(node, lambda v, i, node=node: operand(v, node, i), sizes)
        compute = override.compute
        call: Callable[..., Any] = node.op.compute if compute is None else lambda *xs, f=compute, op=node.op: f(op, *xs)
        results = _user_code(node, "compute", call, *operands)
        results = list(results) if isinstance(results, (list, tuple)) else [results]
        _check_results(node, results, sizes)
        tensors.update(zip(node.outputs, results))
        for v in node.outputs:
            if v.layout and (v in writes or v.layout.dtype):  # who reads it inside of the group reads it rounded too
                form = Blocking.of(v.layout)
                stored[v] = layout.result(tensors[v], form)
                tensors[v] = layout.view(stored[v], sizes(v.shape, v.name), form)
        flops = node.op.nominal_flops(node.operand_types(), [v.type for v in node.outputs])
        if flops is not None:
            nominal[results[0]] = flops
    return _Program(_distinct([stored.get(v, tensors[v]) for v in writes]), reads, nominal)


def _at(program: _Program, values: Mapping[OpenVar, int]) -> _Program:
    """Return an open program where its variables have values: of the same structure, whatever these are."""
    held = list(program.reads)
    whole = te.create_schedule([o.op for o in program.outs])
    _, made = te.specialize(whole, [*held, *program.outs], values)
    tensors = dict(zip([*held, *program.outs], made))
    return _Program(made[len(held) :], {tensors[t]: p for t, p in program.reads.items()}, {})


def expressions(node: Node, sizes: extents.Extents = extents.known) -> list[te.Tensor]:
    """Return what a node computes, by itself."""
    operands = _operands(node, lambda v, _: te.placeholder(sizes(v.shape, v.name), v.dtype, identifier(v.name)), sizes)
    results = _user_code(node, "compute", node.op.compute, *operands)
    return list(results) if isinstance(results, (list, tuple)) else [results]


def _operands(node: Node, tensor: Callable[[Value, int], te.Tensor], sizes: extents.Extents) -> list[Any]:
    """Return what `compute` of a node is called with: arrays where it is to know elements, else what `tensor` returns
    for a value and its number among the inputs; a list for a variadic operand."""
    operands, flat = list[Any](), 0
    for parameter, operand in zip(node.op.parsed.operands, node.operands, strict=True):
        values = operand if isinstance(operand, list) else [operand]
        given = [
            None
            if v is None
            else _static_array(node, parameter.name, v, sizes)
            if parameter.is_static
            else tensor(v, flat + i)
            for i, v in enumerate(values)
        ]
        flat += len(values)
        operands.append(given if isinstance(operand, list) else given[0])
    return operands


def identifier(name: str) -> str:
    """`name` as an identifier of the loop IR."""
    return re.sub(r"\W", "_", name).strip("_") or "value"


def _panels(node: Node, index: int, target: Target) -> Blocking | None:
    """Return how kernels read a weight: blocks of result channels one after the other; within, the channels that are
    summed over in blocks too where the data has them so; in the dtype that memory holds the data in."""
    node, index = _as_held(node, index)
    axis = node.op.channel_axis(index, node.operand_types())
    machine = target.machine_target
    dtype = held_weight_dtype(node, index)
    if axis is None or machine.is_gpu or registry.overridden(node.op.name, target).compute is not None:
        return Blocking((), dtype=dtype) if dtype else None
    data = node.inputs[0]
    summed = node.op.summed_axis(index, node.operand_types())
    if dtype and data is not None:
        held = replace(data.layout or Layout(), dtype=data.held_dtype)
        if (groups := dot_weights.held(node, index, held, machine)) is not None:
            return groups
    cuts = [(axis, machine.lanes(4))]
    if data is not None and data.layout is not None and data.layout.axis is not None and summed is not None:
        cuts.insert(0, (summed, data.layout.lanes))
    weight = node.inputs[index]
    return Blocking(tuple(cuts), axis, None if weight is None or dtype == weight.dtype else dtype)


def _as_held(node: Node, index: int) -> tuple[Node, int]:
    """Return which node, and which operand of it, says how memory holds a constant: of what rows are looked up in, a
    product that multiplies it."""
    weight = node.inputs[index]
    if index == 0 and isinstance(node.op, Gather) and weight is not None:
        products = [u for u in weight.readers if u.op.is_product and u.inputs[1] is weight]
        return (products[0], 1) if products else (node, index)
    return node, index


def _static_array(node: Node, parameter: str, value: Value, sizes: extents.Extents) -> np.ndarray[Any, Any]:
    """The elements of an operand that `compute` is told: numbers, or extents."""
    if (found := value.told) is not None:
        return found
    what = f"operand {parameter} of node {node.name!r}"
    if value.known is not None and all(isinstance(e, (int, Sym)) for e in value.known.flat):
        elements = sizes(tuple(value.known.flat), what)
        is_open = any(isinstance(e, Expr) for e in elements)
        return np.array(elements, object if is_open else np.int64).reshape(value.known.shape)
    if value.known is not None and any(isinstance(e, Quotient) for e in value.known.flat):
        parts = (
            (Quotient(*sizes((e.extent, e.over), what)) if isinstance(e, Quotient) else e) for e in value.known.flat
        )
        scales = np.empty(value.known.size, object)
        scales[:] = [sizes((e,), what)[0] if isinstance(e, Sym) else e for e in parts]
        return scales.reshape(value.known.shape)
    raise InvalidGraph(
        f"node {node.name!r}: operand {parameter} ({value.name}) of {node.op.name} must be known at compile time",
        [f"{value.name} is computed by {value.producer.name!r}" if value.producer else f"{value.name} is an input"],
        "make it a constant, or compile with fixed input shapes (shapes=) if it depends on them",
    )


def _distinct(outs: list[te.Tensor]) -> list[te.Tensor]:
    """Outputs as tensors of their own: one that is an input, or stands twice, is copied."""
    seen, distinct = set[int](), list[te.Tensor]()
    for t in outs:
        if id(t) in seen or isinstance(t.op, te.PlaceholderOp):
            source = t
            t = te.compute(t.shape, lambda *i, source=source: source[i], name=f"{t.name}_copy", tag="elemwise")
        seen.add(id(t))
        distinct.append(t)
    return distinct


def _store_within(s: te.Schedule, outs: Sequence[te.Tensor], values: Sequence[Value]) -> None:
    """Tell a schedule which results lie in memory that holds more."""
    for out, value in zip(outs, values, strict=True):
        steps = strides(value)
        if steps is not None:
            s[out].store_within(steps)


def _check_results(node: Node, results: Sequence[Any], sizes: extents.Extents) -> None:
    for value, t in zip(node.outputs, results, strict=False):
        expected = sizes(value.shape, f"value {value.name!r}")
        if not extents.are_equal(t.shape, expected) or t.dtype != value.dtype:
            raise UserCodeError(
                f"node {node.name!r}: compute of {node.op.name} gives another type than its signature and infer",
                [f"computed {t.dtype}{list(t.shape)}", f"expected {value.type}"],
            )
    if len(results) < len(node.outputs):
        raise UserCodeError(
            f"node {node.name!r}: compute of {node.op.name} gives {len(results)} of {len(node.outputs)} results"
        )


def _user_code(node: Node, part: str, f: Callable[..., Any], *args: Any) -> Any:
    try:
        return f(*args)
    except Exception as error:  # an op may stand in a user's file and fail in any way
        raise node.failed(part, error) from error
