"""The graph IR.

    graph ::= name (inputs) -> (outputs) { constants nodes groups }
    value ::= input | constant | result of a node: a name, a dtype, a shape
    node  ::= results = op(operands) {attributes}       op: an OpDef instance, which carries the attributes
    group ::= kernel name { nodes }                      nodes that run as one kernel; a partition made by the fuse pass

Nodes stand in topological order. Values have names, unique among the values of their graph, and nodes among its nodes;
names of the source model are kept. Fusing changes no node: it only groups them, so every pass and the interpreter see
one flat graph. The text form is in graph.text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Generator, Iterable, KeysView, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from operator import attrgetter
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.dims import Dim, Shape, Sizes, Symbol, as_shape, static, substitute_shape, symbols_of
from renorm.core.errors import InvalidGraph, OperandError, RenormError, UserCodeError, raised_at
from renorm.core.indexed_list import Listed
from renorm.core.inputs import IDLE
from renorm.graph import known
from renorm.graph.deferred import LARGE, Deferred, cut
from renorm.graph.groups import External as External
from renorm.graph.groups import Group
from renorm.graph.layout import Layout
from renorm.graph.names import Names
from renorm.graph.op import OpDef
from renorm.graph.origin import Origin
from renorm.graph.strided_region import StridedRegion
from renorm.graph.types import Operand, TensorType


class Value:
    """A tensor in a graph. data: its elements if it is a constant; deferred: what computes them when somebody asks,
    where they are given so (graph.deferred). known: elements as ints or symbolic extents, where a shape computation
    gives them before shapes are fixed. idle: symbols of elements of an input that decide nothing. source: where a
    constant came from. exact: what a folded constant was before it was rounded to its dtype (float64), so that the next
    fold starts from there and rounding happens once. layout: how memory holds the elements, and in which dtype
    (graph.layout); None: in order and as they are. within: where in another value's memory this one lies, if it does.
    origin: names of the source model's values that it is, as Graph.replace follows them."""

    def __init__(self, graph: Graph, name: str, type: TensorType, producer: Node | None = None):
        self.graph, self.name, self.type, self.producer = graph, name, type, producer
        self._readers: dict[Node, None] = {}  # kept by Graph.apply, Graph.discard and Node.replace_operand
        self._data: np.ndarray[Any, Any] | None = None
        self.deferred: Deferred | None = None
        self._exact: np.ndarray[Any, Any] | None = None
        self.known: np.ndarray[Any, Any] | None = None
        self._source: Sequence[str] = ""
        self.idle: Set[Symbol] = frozenset()
        self.layout: Layout | None = None
        self.within: Within | None = None
        self.origin: Sequence[str] = ()

    @property
    def dtype(self) -> str:
        return self.type.dtype

    @property
    def held_dtype(self) -> str:
        return (self.layout and self.layout.dtype) or self.dtype

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @property
    def rank(self) -> int:
        return len(self.type.shape)

    @property
    def data(self) -> np.ndarray[Any, Any] | None:
        if self._data is None and self.deferred is not None:
            self._data = self.deferred.rounded(self.dtype)
        return self._data

    @data.setter
    def data(self, elements: np.ndarray[Any, Any] | None) -> None:
        self._data, self.deferred = elements, None

    @property
    def source(self) -> str:
        return self._source if isinstance(self._source, str) else f"folded {', '.join(self._source)}"

    @source.setter
    def source(self, source: Sequence[str]) -> None:
        self._source = source

    @property
    def exact(self) -> np.ndarray[Any, Any] | None:
        return self._exact if self.deferred is None else self.deferred.exact()

    @exact.setter
    def exact(self, elements: np.ndarray[Any, Any] | None) -> None:
        self._exact = elements

    @property
    def elements(self) -> np.ndarray[Any, Any] | Deferred | None:
        """A constant's elements as they were given, which tell one constant from another."""
        return self._data if self.deferred is None else self.deferred

    @property
    def told(self) -> np.ndarray[Any, Any] | None:
        """Elements of a constant, or those that shape inference has found, where all are numbers; else None."""
        if self.data is None and self.known is not None:
            are_numbers = all(isinstance(e, (int, float)) for e in self.known.reshape(-1))
            return self.known.astype(dtypes.numpy_dtype(self.dtype)) if are_numbers else None
        return self.data

    @property
    def deciding(self) -> Shape:
        """Return the extents that an input's elements are, in row-major order, where these decide shapes (IDLE for one
        that does not); none where no element does."""
        if self.producer is not None or self.is_constant or self.known is None:
            return ()
        return tuple(IDLE if symbols_of(e) & self.idle else e for e in self.known.flat)

    @deciding.setter
    def deciding(self, elements: Sequence[Dim]) -> None:
        self.known = None
        if elements:
            flat = np.empty(len(elements), dtype=object)
            flat[:] = elements
            self.known = flat.reshape(static(self.shape))

    def part(self, axis: int, begin: int, end: int) -> np.ndarray[Any, Any]:
        """A constant's elements [begin, end) along an axis, in float64 where they are not computed yet."""
        source = self._data if self._data is not None else self.deferred
        assert source is not None
        with np.errstate(all="ignore"):
            return cut(source, axis, begin, end)

    @property
    def is_constant(self) -> bool:
        return self._data is not None or self.deferred is not None

    @property
    def users(self) -> list[Node]:
        """Nodes that read this value, each once, in the order in which they came to read it."""
        return list(self._readers)

    @property
    def readers(self) -> KeysView[Node]:
        """The same without a list of them, of which there may be thousands; for who changes nothing meanwhile."""
        return self._readers.keys()

    def apply_op(self, op: OpDef, operands: Sequence[Any], name: str | None) -> Any:
        return self.graph.apply(op, operands, name=name)

    def __repr__(self) -> str:
        return f"%{self.name}: {self.type}"


@dataclass(eq=False)
class Within:
    """A region of the memory of another value. root: what graph.strided_region.root found last; no longer so where that
    value has come to lie within another one."""

    value: Value
    region: StridedRegion
    root: tuple[Value, StridedRegion] | None = field(default=None, repr=False)


class Node:
    """An application of an op. operands: by parameter of the signature (None where left out, a list for a variadic
    one).
    origin: names of the source model's nodes that this one stands for. notes: what passes remember of it, by keys of
    their own, as long as it has these operands."""

    def __init__(self, op: OpDef, operands: list[Any], name: str, origin: Sequence[str] = ()):
        self.op, self.name, self.outputs = op, name, list[Value]()
        self.operands: list[Any] = operands
        self.origin: Sequence[str] = origin or (name,)
        self.notes: dict[Any, Any] = {}
        self._order = 0.0  # see Graph.position_of

    @property
    def inputs(self) -> list[Value | None]:
        """Operands flat, variadic ones spread."""
        return [v for o in self.operands for v in (o if isinstance(o, list) else [o])]

    def arranged(self, given: Iterable[Any]) -> list[Any]:
        """Return what is given flat, one thing for each of `inputs`, as `operands` has them."""
        flat = iter(given)
        return [[next(flat) for _ in o] if isinstance(o, list) else next(flat) for o in self.operands]

    @property
    def output(self) -> Value:
        """The first result."""
        return self.outputs[0]

    def operand_types(self) -> list[TensorType | None]:
        return [None if v is None else v.type for v in self.inputs]

    def failed(self, part: str, error: Exception) -> UserCodeError:
        """Return the error to raise where `part` of this node's op (its compute, its reference, ...) raised `error`."""
        what = error.headline if isinstance(error, RenormError) else f"{type(error).__name__}: {error}"
        types = ", ".join("-" if t is None else str(t) for t in self.operand_types())
        headline = f"node {self.name!r}: {part} of {self.op.name} failed: {what}"
        return UserCodeError(headline, [f"operands {types}", raised_at(error)])

    def replace_operand(self, old: Value, new: Value) -> None:
        # no call per operand: n replacements on a node of n operands go over n² of them
        self.operands = [[new if v is old else v for v in o] if isinstance(o, list) else o for o in self.operands]
        self.operands = [new if o is old else o for o in self.operands]
        self.notes.clear()
        if self in old._readers:  # a node that is not in its graph yet reads nothing
            del old._readers[self]
            new._readers[self] = None

    def __repr__(self) -> str:
        results = ", ".join(repr(v) for v in self.outputs)
        return f"{results} = {self.op!r}({', '.join('-' if v is None else '%' + v.name for v in self.inputs)})"


@dataclass
class Graph:
    """A network. extents: values like constants whose elements are open extents. metadata: what a frontend keeps of the
    source model (its opset, for example), so that it can be written back."""

    name: str = "graph"
    inputs: list[Value] = field(default_factory=list[Value])
    outputs: list[Value] = field(default_factory=list[Value])
    nodes: list[Node] = field(default_factory=list[Node])
    constants: dict[str, Value] = field(default_factory=dict[str, Value])
    extents: dict[str, Value] = field(default_factory=dict[str, Value])
    groups: list[Group] = field(default_factory=list[Group])
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    _names: Names = field(default_factory=Names, repr=False)  # of values
    _node_names: Names = field(default_factory=Names, repr=False)
    _at: tuple[Node, Sequence[str], list[Node]] | None = field(default=None, repr=False)  # see `at`

    # --- building -----------------------------------------------------------------------------------------------------

    def fresh(self, hint: str) -> str:
        """A name that no value has yet: `hint`, or `hint` with a number."""
        return self._names.fresh(hint)

    def reserve(self, names: Iterable[str]) -> None:
        """Sets names aside for those who ask for exactly them: inputs, named results, exact constants, `rename`."""
        self._names.reserved.update(names)

    def is_free(self, name: str) -> bool:
        """Return whether no value has that name."""
        return name not in self._names.taken

    def rename(self, value: Value, name: str, *, exact: bool = True) -> None:
        """Gives a value another name, which must be unused, or is a hint unless `exact`; its old one is free again."""
        self._take_name(value, self._claim(name) if exact else self.fresh(name))

    def _take_name(self, value: Value, name: str) -> None:
        self._names.taken.discard(value.name)
        for named in (self.constants, self.extents):
            if named.get(value.name) is value:
                named[name] = named.pop(value.name)
        value.name = name

    def input_for(self, value: Value) -> Value:
        """A new input with the name and type of a value, which gets another name and keeps its readers."""
        name = value.name
        self._take_name(value, self.fresh(f"{name}.computed"))
        return self.input(name, value.dtype, value.shape)

    def rename_node(self, node: Node, name: str, *, exact: bool = True) -> None:
        """Gives a node another name; one in use is an error, or numbered. Its old one is free again."""
        if exact and not self._node_names.claim(name):
            raise InvalidGraph(f"graph {self.name}: two nodes would be named {name!r}")
        self._node_names.taken.discard(node.name)
        node.name = name if exact else self._node_names.fresh(name)

    def input(self, name: str, dtype: str, shape: Iterable[Any]) -> Value:
        """A new input. name: must be unused. shape: integers, Syms, or names of open extents. Raises OperandError."""
        type = TensorType(dtypes.lookup(dtype).name, as_shape(shape))
        value = Value(self, self._claim(name), type)
        self.inputs.append(value)
        return value

    def constant(
        self, data: Any, name: str = "const", source: Sequence[str] = "", *, exact: bool = False, dtype: str = ""
    ) -> Value:
        """A new constant. `name` is a hint, unless `exact`. dtype: `data` is rounded to it, and stays as the value's
        `exact`. source: a sentence, or the nodes of the source model that were folded into it. data: may be a Deferred
        if there is a dtype."""
        name = self._claim(name) if exact else self.fresh(name)
        if isinstance(data, Deferred) and prod(data.shape) >= LARGE:
            value = Value(self, name, TensorType(dtype, data.shape))
            value.deferred = data
        else:
            given = data.exact() if isinstance(data, Deferred) else np.asarray(data)
            array = given.astype(dtypes.numpy_dtype(dtype)) if dtype else given
            value = Value(self, name, TensorType(dtypes.from_numpy(array.dtype), tuple(array.shape)))
            value.data = array
            if array.dtype != given.dtype and given.dtype == np.float64:
                value.exact = given
            if array.dtype.kind in "iubf" and array.size <= 64:
                value.known = known.elements(array)
        value.source = source
        self.constants[value.name] = value
        return value

    def open_constant(self, elements: np.ndarray[Any, Any], name: str, dtype: str) -> Value:
        """Return a value of these elements, ints and Syms, which are numbers once symbols are: what an op is told
        before the network runs. `name` is a hint."""
        if all(isinstance(e, int) for e in elements.reshape(-1)):
            return self.constant(elements.astype(dtypes.numpy_dtype(dtype)), name)
        type = TensorType(dtype, tuple(elements.shape))
        for v in self.extents.values():
            if v.type == type and v.known is not None and np.array_equal(v.known, elements):
                return v
        value = Value(self, self.fresh(name), type)
        value.known = elements
        self.extents[value.name] = value
        return value

    def apply(
        self,
        op: OpDef,
        operands: Sequence[Any],
        *,
        name: str | None = None,
        outputs: Sequence[str] = (),
        before: Node | None = None,
        origin: Sequence[str] = (),
    ) -> Any:
        """Adds a node and gives its result, or a tuple of results. name: the node's; outputs: names of its results;
        before: the node in front of which it is placed (default: at the end, or where `at` says). Arrays and numbers
        among operands become constants."""
        if self._at is not None and before is None:
            before, origin = self._at[0], origin or self._at[1]
        arranged = op.arrange(list(operands)) if not any(isinstance(o, list) for o in operands) else list(operands)
        arranged = [[self._value(v) for v in o] if isinstance(o, list) else self._value(o) for o in arranged]
        node = Node(op, arranged, self._node_names.fresh(name or op.name), origin)
        types = self.infer(node)
        for i, t in enumerate(types):
            given = outputs[i] if i < len(outputs) and outputs[i] else ""
            hint = node.name if i == 0 else f"{node.name}_{i}"
            node.outputs.append(Value(self, self._claim(given) if given else self.fresh(hint + "_out"), t, node))
        self._learn(node)
        self._insert(node, self.position_of(before) if before else len(self.nodes))
        for v in node.inputs:
            if v is not None:
                v._readers[node] = None
        if self._at is not None:
            self._at[2].append(node)
        return node.outputs[0] if len(node.outputs) == 1 else tuple(node.outputs)

    @contextmanager
    def at(self, node: Node, origin: Sequence[str] = ()) -> Generator[list[Node]]:
        """Inside the block, new nodes are placed in front of `node` and stand for the source nodes `origin`; gives the
        list of them."""
        outer, made = self._at, list[Node]()
        self._at = (node, origin, made)
        try:
            yield made
        finally:
            self._at = outer

    def _insert(self, node: Node, place: int) -> None:
        before = self.nodes[place - 1]._order if place else -1.0
        node._order = (before + self.nodes[place]._order) / 2 if place < len(self.nodes) else before + 1
        self.nodes.insert(place, node)

    def position_of(self, node: Node) -> int:
        """Return where a node stands, found without going over all of them: numbers grow along the list, and are given
        anew where they turn out not to, since whoever assigns `nodes` may change the order."""
        place = bisect_left(self.nodes, node._order, key=_order)
        if place == len(self.nodes) or self.nodes[place] is not node:
            for i, n in enumerate(self.nodes):
                n._order = float(i)
            place = bisect_left(self.nodes, node._order, key=_order)
            if place == len(self.nodes) or self.nodes[place] is not node:
                raise InvalidGraph(f"graph {self.name} does not hold node {node.name!r}")
        return place

    def _claim(self, name: str) -> str:
        if not self._names.claim(name):
            raise InvalidGraph(f"graph {self.name}: the name {name!r} is used twice")
        return name

    def _value(self, operand: Any) -> Value | None:
        if operand is None or isinstance(operand, Value):
            return operand
        return self.constant(operand)

    def infer(self, node: Node) -> list[TensorType]:
        """Types of the node's results as its operands are now; RenormError that names the node where they do not
        fit."""

        def view(parameter: str, v: Value | None) -> Operand | None:
            if v is None:
                return None
            given = v._data if v.deferred is None else None  # types do not depend on weights
            return Operand(parameter, v.type, v.known if v.known is not None else given)

        operands: list[Any] = []
        for p, o in zip(node.op.parsed.operands, node.operands, strict=True):
            operands.append(
                [view(f"{p.name}[{i}]", v) for i, v in enumerate(o)] if isinstance(o, list) else view(p.name, o)
            )
        try:
            return node.op.result_types(operands, hint=node.name)
        except RenormError as error:
            raise error.within(f"node {node.name!r}") from error
        except Exception as error:  # an op may stand in a user's file and fail in any way
            raise node.failed("infer", error) from error

    def _learn(self, node: Node) -> None:
        """Compute elements of small integer results, over ints and Syms alike: so the shape chains of exporters are
        known even where extents are symbolic."""
        found = node.op.known_result(*node.arranged(map(knowledge, node.inputs)))
        for v, elements in zip(node.outputs, found if isinstance(found, list) else [] if found is None else [found]):
            v.known = known.within(np.asarray(elements, dtype=object), v.dtype)

    # --- reading ------------------------------------------------------------------------------------------------------

    def user_map(self) -> dict[Value, list[Node]]:
        """Readers of all values at once, in graph order; values that nobody reads are not in it."""
        found: dict[Value, list[Node]] = {}
        for n in self.nodes:
            for v in dict.fromkeys(v for v in n.inputs if v is not None):
                found.setdefault(v, []).append(n)
        return found

    @property
    def launches(self) -> list[Group]:
        """The groups that have to run, in order."""
        return [g for g in self.groups if not g.is_aliased]

    def values(self) -> Iterable[Value]:
        yield from self.inputs
        yield from self.constants.values()
        yield from self.extents.values()
        for n in self.nodes:
            yield from n.outputs

    def node(self, name: str) -> Node:
        for n in self.nodes:
            if n.name == name:
                return n
        raise InvalidGraph(f"graph {self.name} has no node {name!r}")

    # --- editing ------------------------------------------------------------------------------------------------------

    def replace(self, old: Value, new: Value) -> None:
        """Every reader of `old`, and the output list, reads `new` instead, which takes the name of an output over."""
        if old is new:
            return
        reason = self.why_not_replace(old, new)
        if reason:
            raise OperandError(f"cannot replace {old!r} by {new!r}: {reason}")
        for n in old.users:
            n.replace_operand(old, new)
        new.origin = Origin(new.origin, old.origin)
        if self.is_output(old):
            self.swap_names(old, new)
            self.outputs = [new if o is old else o for o in self.outputs]

    def why_not_replace(self, old: Value, new: Value) -> str | None:
        """Return why `old` cannot give way to `new` everywhere, as a sentence; None where it can. Names of outputs are
        a promise to the user, so an output gives way only to the result of a node that is not an output itself."""
        if old.type.rank != new.type.rank or old.dtype != new.dtype:
            return f"their types differ, {old.type} and {new.type}"
        if self.is_output(old) and new.producer is None:
            return f"{old.name!r} is an output of the graph and {new.name!r} is not computed"
        if self.is_output(old) and self.is_output(new):
            return f"{old.name!r} and {new.name!r} are both outputs of the graph"
        return None

    def is_output(self, value: Value) -> bool:
        if type(self.outputs) is not Listed:
            self.outputs = Listed(self.outputs)
        return value in self.outputs.members

    def swap_names(self, a: Value, b: Value) -> None:
        """Two results of nodes exchange their names."""
        a.name, b.name = b.name, a.name

    def discard(self, nodes: Collection[Node]) -> None:
        """Takes out nodes whose results nobody reads but nodes among them."""
        going = set(nodes)
        for n in nodes:
            for v in n.outputs:
                if self.is_output(v) or any(u not in going for u in v._readers):
                    raise InvalidGraph(f"node {n.name!r} cannot go: {v.name!r} is still read")
        if len(going) < 8:
            self.nodes = self.nodes.copy()  # somebody may be going over it
            for n in going:
                del self.nodes[self.position_of(n)]
        else:
            self.nodes = [n for n in self.nodes if n not in going]
        for n in nodes:
            self._node_names.taken.discard(n.name)
            for v in n.inputs:
                if v is not None:
                    v._readers.pop(n, None)

    def sort(self, begin: int = 0, end: int | None = None) -> None:
        """Puts every node of nodes[begin:end] after those that make what it reads, and otherwise leaves the order as
        it is. All that they read is made in front of `end`, the end of all nodes where it is None."""
        unsorted = self.nodes[begin:end]
        own, found = set(unsorted), dict[Node, None]()
        for n in unsorted:
            waiting = [n]
            while waiting:
                last = waiting[-1]
                before = [v.producer for v in last.inputs if v is not None and v.producer in own]
                missing = [p for p in before if p not in found]
                if missing:
                    waiting += missing[::-1]
                else:
                    found[waiting.pop()] = None
        for n, order in zip(found, [n._order for n in unsorted]):
            n._order = order
        self.nodes = [*self.nodes[:begin], *found, *(self.nodes[end:] if end is not None else ())]

    def discard_constants(self) -> None:
        """Takes out constants that nobody reads."""
        for named in (self.constants, self.extents):
            for v in [v for v in named.values() if not v._readers and not self.is_output(v)]:
                del named[v.name]

    def infer_again(self, nodes: Iterable[Node] | None = None) -> None:
        """Types and known elements of all results (of some nodes), from operands as they are now; for after operands
        became constants."""
        for n in self.nodes if nodes is None else nodes:
            n.notes.clear()
            for v, t in zip(n.outputs, self.infer(n)):
                v.type, v.known = t, None
            self._learn(n)

    def copy(self, sizes: Sizes | None = None, elements: Mapping[str, np.ndarray[Any, Any]] | None = None) -> Graph:
        """An independent graph with the same names (constants share their arrays); `sizes` replaces symbols of the
        inputs, `elements` makes inputs constants, and all types are inferred anew."""
        new = Graph(self.name, metadata=dict(self.metadata))
        env: dict[Value, Value] = {}
        for v in self.inputs:
            if elements is not None and v.name in elements:
                env[v] = new.constant(elements[v.name], v.name, "input given when compiled", exact=True)
            else:
                env[v] = new.input(v.name, v.dtype, substitute_shape(v.shape, sizes or {}))
                if v.known is not None:
                    env[v].known, env[v].idle = known.substituted(v.known, sizes or {}), v.idle
        for v in self.constants.values():
            new.adopt_constant(v, env)
        for v in self.extents.values():
            env[v] = new.open_constant(known.substituted(v.known, sizes or {}), v.name, v.dtype)
        new.reserve(
            self._names.taken | self._names.reserved
        )  # those of values that are gone too: none comes to mean another
        for n in self.nodes:
            new.adopt(n, env)
        for v, made in env.items():
            made.origin, made.layout = v.origin, v.layout
        new.outputs = [env[v] for v in self.outputs]
        by_name = {n.name: n for n in new.nodes}
        new.groups = [Group(g.name, [by_name[n.name] for n in g.nodes], external=g.external) for g in self.groups]
        return new

    def adopt_constant(self, v: Value, env: dict[Value, Value]) -> None:
        """Adds a constant of another graph under its name, and to `env` what it is here."""
        env[v] = self.constant(v.elements, v.name, v._source, exact=True, dtype=v.dtype if v.deferred else "")
        env[v].exact = v._exact

    def adopt(self, node: Node, env: dict[Value, Value]) -> None:
        """Adds a node of another graph with its names, on what its operands are here, and its results to `env`."""
        operands = node.arranged(None if v is None else env[v] for v in node.inputs)
        names = [v.name for v in node.outputs]
        made = self.apply(node.op, operands, name=node.name, outputs=names, origin=node.origin)
        env.update(zip(node.outputs, made if isinstance(made, tuple) else (made,)))

    def __str__(self) -> str:
        return _printer(self)


def _unprinted(graph: Graph) -> str:
    return f"graph {graph.name} of {len(graph.nodes)} nodes"


_order = attrgetter("_order")
_printer: Callable[[Graph], str] = _unprinted  # graph.text puts the real one in its place; it imports this module


def set_printer(printer: Callable[[Graph], str]) -> None:
    """Make `printer` what gives a graph as text."""
    global _printer
    _printer = printer


def knowledge(v: Value | None) -> Any:
    """Return an operand as `known_result` of an op sees it: (shape, known elements or None)."""
    return None if v is None else (v.shape, v.known)
