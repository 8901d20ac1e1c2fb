"""ONNX to Graph.

Names of values and nodes are kept; a node without a name is called by its op type and its place in the file: `Conv_3`.
What is constant becomes a constant: initializers (also those listed as graph inputs), Constant nodes, and either of
these seen through Identity. An If whose condition is known becomes the branch it takes. Nodes may stand in any order.
Whatever cannot be read is collected, so that one error names all of it; what the file leaves open and is taken in one
of its senses is an assumption, which reports say.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import zip_longest
from mmap import PAGESIZE, mmap
from threading import Thread
from typing import Any

import numpy as np

from renorm.core.dims import Dim, Sym, substitute_shape
from renorm.core.errors import (
    InvalidModel,
    RenormError,
    UnsupportedOp,
    UntoldOperand,
    UserCodeError,
    raised_at,
    suggest,
)
from renorm.core.inputs import element_symbols
from renorm.core.limits import DEFAULT, Limits
from renorm.core.room import WORTH_A_THREAD, start_thread
from renorm.core.stated import STATED, Declared, Stated, Undecided, stated
from renorm.frontends.diagnosis import ASSUMPTIONS, diagnose
from renorm.frontends.hosting import deciding
from renorm.frontends.onnx import bodies, control_flow, hosting, sequence_inputs, sequences, tensors
from renorm.frontends.onnx.held import Held
from renorm.frontends.onnx.messages import (
    AttributeProto,
    AttributeType,
    Dimension,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    graphs,
    topological,
)
from renorm.frontends.onnx.model import (
    BUILT_IN,
    NEWEST_OPSET,
    Source,
    is_newer,
    load,
    op_key,
    standard_domain,
    value_names,
)
from renorm.frontends.onnx.problems import problem, raise_all
from renorm.frontends.onnx.provenance import KEY, Provenance, SourceNode
from renorm.frontends.onnx.scope import Scope
from renorm.frontends.problems import Problem, together
from renorm.graph import registry
from renorm.graph.attributes import Type
from renorm.graph.deciding import BRANCHING, inputs_of, settle
from renorm.graph.ir import Graph, Node, Value
from renorm.graph.op import OnnxNode, OpDef
from renorm.ops.identity import Identity


def read(
    source: Any,
    *,
    shapes: Mapping[str, Sequence[Stated]] | None = None,
    inputs: Mapping[str, Any] | None = None,
    is_mapped: bool = False,
    limits: Limits = DEFAULT,
) -> Graph:
    """Return the graph of an ONNX model: a path, bytes, or an onnx.ModelProto. See `renorm.frontends.read`."""
    held = load(source, limits)
    if is_mapped and isinstance(held.content, mmap) and len(held.content) > WORTH_A_THREAD:
        with suppress(RuntimeError):  # no more threads: pages are mapped when they are read
            start_thread(Thread(target=_touch, args=(held.content,)))
    graph = Reader(held, shapes or {}, inputs or {}, is_mapped, limits).read()
    diagnose(graph)
    return graph


def _touch(content: mmap) -> None:
    """Have the system map the pages of a file whose weights will be wanted, beside what is done until then."""
    np.frombuffer(content, np.uint8)[::PAGESIZE].max()


class Reader:
    def __init__(
        self,
        source: Source,
        shapes: Mapping[str, Sequence[Stated]],
        values: Mapping[str, Any],
        is_mapped: bool,
        limits: Limits,
    ):
        self.source, self.shapes, self.values, self.limits = source, shapes, values, limits
        # elements of an onnx.ModelProto are nobody else's
        self.is_mapped = is_mapped or not isinstance(source.model, ModelProto)
        self.opsets = source.opsets
        proto = source.model.graph
        self.graph = Graph(proto.name or "graph")
        self.graph.reserve(value_names(proto))
        self.provenance = Provenance(max(source.model.ir_version, 3), self.opsets, source.label)
        self.provenance.properties.update((p.key, p.value) for p in source.model.metadata_props)
        self.graph.metadata[KEY] = self.provenance
        self.problems: list[Problem] = []
        self.root = Scope(opsets=self.opsets)
        self.top = NodeProto()  # the node of the graph itself that is being read
        self.has_data = False  # inputs are what a network computes: no graph is read for each of their elements
        self.hosted = dict[int, NodeProto]()  # by problems of loops and branches: nodes of the graph itself
        self.missing: list[tuple[NodeProto, str]] = []  # nodes whose op renorm does not define
        self.declared: Sequence[Declared] = ()
        self.branching = set[Value]()  # inputs of which is taken to be so what decides a branch
        self.assumed = [*source.assumed]
        self.taken_early = Counter[str]()  # op types of nodes that are younger than the opset
        self.expansions = 0  # nodes of bodies of ops so far
        self.own_names = {v.name for v in proto.input} | {t.name for t in proto.initializer}
        self.own_names.update(out for n in proto.node for out in n.output)  # of the graph itself, which bodies leave
        self.constants = dict[int, tuple[NodeProto, Value]]()  # of bodies: there once, however often these are read
        self.read_names = {name for g in graphs(proto) for n in g.node for name in n.input}
        self.read_names |= {o.name for g in graphs(proto) for o in g.output}

    def read(self) -> Graph:
        proto, scope = self.source.model.graph, self.root
        self.hold_initializers(proto, scope)
        self._inputs([given for given in proto.input if given.name not in scope.initializers], scope)
        self._nodes(proto.node, scope)
        made = [self._output(out.name, scope) for out in proto.output]
        self._raise_undecided()
        raise_all(self.missing, self.problems, self.source)
        self._note_assumptions()
        whole = [v for v in made if v is not None]  # raise_all has reported every value that could not be made
        for name, value in sequence_inputs.spread(self, proto.output, whole):
            if value.name != name:
                value = self.graph.apply(Identity(), [value], name=f"Identity_{name}", outputs=[name])
            self.graph.outputs.append(value)
        settle(self.graph, self.branching)
        self.graph.metadata[BRANCHING] = tuple(v.name for v in self.branching)
        return self.graph

    def _output(self, name: str, scope: Scope) -> Value | None:
        try:
            return self.find(name, scope, "the list of outputs")
        except RenormError as error:
            self._fault(error)
            return None

    def _fault(self, error: RenormError, proto: NodeProto | None = None, name: str = "") -> None:
        """Note what is wrong: with a node, if one is named."""
        self.problems.append(Problem(error) if proto is None else problem(error, proto, name, self.source))

    def _raise_undecided(self) -> None:
        """Raise Undecided where nothing is wrong but that elements of inputs are not known."""
        by = deciding(self.graph, self.problems, self.hosted, self.has_data)
        if by is None:
            return
        if by and not self.missing:
            told = together(self.problems, self.source.label)
            names = tuple(v.name for v in self.graph.inputs if v in by)
            raise Undecided(told.headline, told.facts, told.do, self.declared, names, self.graph.name) from told
        hosting.require(self)

    def _note_assumptions(self) -> None:
        for op_type, count in self.taken_early.items():
            since = self.provenance.early[op_type]
            self.assumed.append(
                f"{op_type} ({count} {'node' if count == 1 else 'nodes'}) is an op of ai.onnx since {since}, the model "
                f"states {self.opsets['']}: it is taken as {since} defines it"
            )
        if self.assumed:
            self.graph.metadata[ASSUMPTIONS] = tuple(dict.fromkeys(self.assumed))

    # --- inputs and constants -----------------------------------------------------------------------------------------

    def hold_initializers(self, proto: GraphProto, scope: Scope) -> None:
        for tensor in proto.initializer:
            if not tensor.name:
                self._fault(InvalidModel(f"an initializer of graph {proto.name!r} has no name"))
            scope.initializers[tensor.name] = partial(self._elements, tensor)
        for sparse in proto.sparse_initializer:
            scope.initializers[sparse.values.name] = partial(tensors.from_sparse, sparse, limits=self.limits)

    def _elements(self, tensor: TensorProto, what: str) -> tensors.Array:
        return tensors.to_array(tensor, self.source.file, what, self.is_mapped, self.limits)

    def _inputs(self, given: Sequence[ValueInfoProto], scope: Scope) -> None:
        """Add inputs (what has an initializer is a constant, whatever the IR version), of extents as users state
        them."""
        found, several = list[Declared](), list[sequence_inputs.Parts]()
        for one in given:
            is_twice, scope.values[one.name] = one.name in scope.values, None
            try:
                if is_twice:
                    raise InvalidModel(f"input {one.name!r} is listed twice")
                if one.type.WhichOneof("value") in sequence_inputs.TYPES:
                    several.append(sequence_inputs.Parts(one, self))
                    found += map(self._input, several[-1].inputs)
                else:
                    found.append(self._input(one))
            except RenormError as error:
                self._fault(error)
        asked = (None, None) if self.problems else (self.shapes, self.values)
        symbols = element_symbols(found)
        found = [replace(one, deciding=symbols.get(one.name, ())) for one in found]
        extents, values = stated(found, *asked, self.graph.name)
        self.graph.metadata[STATED] = extents
        self.declared = found
        for one in found:
            if one.name in values:
                held = self.graph.constant(values[one.name], one.name, "input given when compiled", exact=True)
            else:
                held = self.graph.input(one.name, one.dtype, substitute_shape(one.shape, extents))
                held.deciding = substitute_shape(one.deciding, extents)
            scope.values[one.name] = held
        for parts in several:
            scope.values[parts.name] = parts.held(scope.values)

    def _input(self, given: ValueInfoProto) -> Declared:
        label = f"{self.source.label}: input {given.name!r}"
        kind = given.type.WhichOneof("value")
        if kind != "tensor_type":
            what = "has no type" if kind is None else f"is a {kind.removesuffix('_type')}, not a tensor"
            raise UnsupportedOp(f"{label} {what}")
        tensor = given.type.tensor_type
        dtype = tensors.dtype_name(tensor.elem_type, label)
        if not tensor.HasField("shape"):
            if given.name in self.shapes:
                ranks = enumerate(self.shapes[given.name])
                return Declared(given.name, dtype, tuple(Sym(f"?{given.name}.{axis}") for axis, _ in ranks))
            raise InvalidModel(
                f"{label} states no rank",
                do=f"give its shape: shapes={{{given.name!r}: (...)}}, --shape {given.name}=...",
            )
        shape = [self._dim(d, f"?{given.name}.{axis}") for axis, d in enumerate(tensor.shape.dim)]
        return Declared(given.name, dtype, tuple(shape))

    def _dim(self, dim: Dimension, unknown: str) -> Dim:
        """Return an extent; a negative one is how some exporters wrote an unknown one."""
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            return int(dim.dim_value)
        if not dim.dim_param:
            return Sym(unknown)
        symbol = re.sub(r"\W", "_", dim.dim_param)
        while self.provenance.dims.setdefault(symbol, dim.dim_param) != dim.dim_param:
            symbol += "_"
        return Sym(symbol)

    def find(self, name: str, scope: Scope, reader: str) -> Value | None:
        """Return the value called `name`; None if its node could not be read."""
        held = scope.holding(name)
        if held is None:
            known = [] if self.problems or self.missing else scope.seen()  # the first fault alone has facts
            raise InvalidModel(
                f"{reader} reads {name!r}, which nothing makes", [f"nearest: {suggest(name, known)}"] if known else []
            )
        if name not in held.values:
            held.values[name] = None
            what = f"{self.source.label}: initializer {name!r}"
            try:
                elements = held.initializers[name](what)
                exact = self._may_take(name, held)
                held.values[name] = self.graph.constant(elements, name, f"initializer {name!r}", exact=exact)
            except RenormError as error:
                self._fault(error)
        return held.values[name]

    # --- nodes --------------------------------------------------------------------------------------------------------

    def _nodes(self, nodes: Sequence[NodeProto], scope: Scope) -> None:
        """Read nodes, those of branches when it comes to them: without recursion, branches may be deep."""
        waiting = [self._steps(nodes, scope)]
        while waiting:
            branch = next(waiting[-1], None)
            if branch is None:
                waiting.pop()
            else:
                waiting.append(self._steps(*branch))

    def _steps(self, nodes: Sequence[NodeProto], scope: Scope) -> Iterator[tuple[Sequence[NodeProto], Scope]]:
        """Read nodes; give those of each branch that is taken, which have to be read before it goes on."""
        order, ring = topological(nodes)
        if ring:  # there is none where a node makes what exists already
            order, ring = topological(nodes, scope.seen())
        if len(order) < len(nodes):
            names = [repr(_name(nodes[place], place)) for place in ring]
            self._fault(
                InvalidModel(f"nodes read each other's results in a ring: {' reads '.join([*names, names[0]])}")
            )
            scope.values.update((out, None) for place in {*range(len(nodes))} - {*order} for out in nodes[place].output)
        for place in order:
            proto, name = nodes[place], _name(nodes[place], place) + scope.place
            self.top = proto if scope.outer is None else self.top
            if not proto.op_type:
                self._fault(InvalidModel(f"node {place} has no op type"))
                scope.values.update((out, None) for out in proto.output if out)
                continue
            operands = self._operands(proto, name, scope)
            if any(v is None and n for v, n in zip(operands, proto.input)):
                self.note_missing(proto, name, scope)
                results: Sequence[Value | None] = [None] * len(proto.output)
            elif twice := [out for out in proto.output if out and scope.holding(out) is not None]:
                error = InvalidModel(f"it makes {twice[0]!r}, which exists already")
                self._fault(error, proto, name)
                continue
            elif proto.op_type in control_flow.OPS and not standard_domain(proto.domain):
                results = yield from self._ended(control_flow.results, proto, name, operands, scope)
            elif sequences.takes(proto, operands):
                results = yield from self._ended(sequences.results, proto, name, operands, scope)
            elif held := [v for v in operands if isinstance(v, Held)]:
                self._fault(held[0].mistaken(), proto, name)
                results = [None] * len(proto.output)
            elif self._is_body(proto, scope):
                results = yield from self._body(proto, name, operands, scope)
            else:
                results = self._results(proto, name, operands, scope)
            for i, out in enumerate(proto.output):
                if not out:
                    continue
                if i < len(results):
                    scope.values[out] = results[i]
                elif out in self.read_names:
                    missing = UnsupportedOp(f"result {i} of {proto.op_type} is not computed by renorm")
                    self._fault(missing, proto, name)
                    scope.values[out] = None

    def _operands(self, proto: NodeProto, name: str, scope: Scope) -> list[Value | None]:
        """Values of the operands; None for those left out, and for those that could not be made."""
        found = list[Value | None]()
        for operand in proto.input:
            try:
                found.append(self.find(operand, scope, "it") if operand else None)
            except RenormError as error:
                self._fault(error, proto, name)
                found.append(None)
        return found

    def _results(
        self, proto: NodeProto, name: str, operands: list[Value | None], scope: Scope
    ) -> Sequence[Value | None]:
        """Values for the outputs of a node; None for those that could not be made, with a note why."""
        domain = standard_domain(proto.domain)
        try:
            if not domain and proto.op_type == "Constant":
                return [self._constant(proto, name, scope)]
            if not domain and proto.op_type == "Identity" and operands and operands[0] and operands[0].is_constant:
                return [operands[0]]
            if self.note_missing(proto, name, scope):
                return [None] * len(proto.output)
            return self._apply(proto, name, operands, scope)
        except RenormError as error:
            self._fault(error, proto, name)
            return [None] * len(proto.output)

    def note_missing(self, proto: NodeProto, name: str, scope: Scope) -> bool:
        """Return whether renorm does not define this node's op; noted if so."""
        domain = standard_domain(proto.domain)
        known = self._definition(proto, scope) is not None and not is_newer(proto, scope.opsets[domain])
        if known or (not domain and proto.op_type in BUILT_IN) or self._is_body(proto, scope):
            return False
        self.missing.append((proto, name))
        return True

    def _is_body(self, proto: NodeProto, scope: Scope) -> bool:
        """Return whether a node is read as the body that ONNX states for its op: renorm does not define that."""
        domain = standard_domain(proto.domain)
        if not domain and proto.op_type in BUILT_IN:
            return False
        opset = scope.opsets[domain]
        known = registry.find_onnx(op_key(domain, proto.op_type), opset) is not None and not is_newer(proto, opset)
        return not known and bodies.has_body(proto, domain, opset)

    def _body(
        self, proto: NodeProto, name: str, operands: list[Value | None], scope: Scope
    ) -> Generator[tuple[Sequence[NodeProto], Scope], None, Sequence[Value | None]]:
        """Return the results of a node by the body of its op, read into this graph."""
        try:
            domain = standard_domain(proto.domain)
            body = bodies.body_of(proto, domain, scope.opsets[domain], operands, name)
            self.expand(len(body.nodes), f"last of {proto.op_type}")
            opsets = {"": NEWEST_OPSET, **scope.opsets, **body.versions}  # a body may apply ops that no node does
            for imported, version in opsets.items():
                self.opsets.setdefault(imported, version)
            self.read_names |= body.read_names
            inner = Scope(Scope(), opsets)  # it sees no names of the graph around it
            inner.values.update(zip(body.inputs, operands))
            inner.names = {made: str(scope.names.get(out, out)) for made, out in zip(body.outputs, proto.output)}
            yield body.nodes, inner
            return [self.find(made, inner, name) if out else None for made, out in zip(body.outputs, proto.output)]
        except RenormError as error:
            self._fault(error, proto, name)
            return [None] * len(proto.output)

    def _definition(self, proto: NodeProto, scope: Scope) -> tuple[int, type[OpDef]] | None:
        """Return the version by which a node is read, and the op that it means there: that of the model, or the first
        that has the op at all, as exporters write some ops before there is a version with them."""
        domain = standard_domain(proto.domain)
        key, opset = op_key(domain, proto.op_type), scope.opsets[domain]
        op = registry.find_onnx(key, opset)
        return (opset, op) if op is not None else None if domain else registry.first_onnx(key)

    def _apply(self, proto: NodeProto, name: str, operands: list[Value | None], scope: Scope) -> list[Value]:
        domain = standard_domain(proto.domain)
        definition = self._definition(proto, scope)
        assert definition is not None
        opset, op = definition
        if opset != scope.opsets[domain]:
            if changed := op.onnx_changed.get(proto.op_type):
                raise UnsupportedOp(
                    f"it is no op of ai.onnx {scope.opsets['']}: {changed}", do="state the version meant"
                )
            self.provenance.early[proto.op_type] = opset
            self.taken_early[proto.op_type] += 1
        given = {a.name: self._attribute(a, name) for a in proto.attribute}
        for spec in op.attributes.values():
            if isinstance(spec, Type) and not spec.is_required and given.get(spec.onnx) == 0:
                del given[spec.onnx]  # UNDEFINED, which is the default
            elif isinstance(spec, Type) and spec.onnx in given:
                given[spec.onnx] = tensors.dtype_name(given[spec.onnx], f"attribute {spec.onnx}")
        before = len(self.graph.nodes)
        outputs = tuple(n if n in self.read_names else "" for n in proto.output)
        node = OnnxNode(proto.op_type, opset, name, tuple(operands), outputs, given, self.assumed)
        try:
            made = op.from_onnx(node)
        except (RenormError, MemoryError) as error:
            if isinstance(error, UserCodeError) and registry.is_own(op):  # raised by what infers types
                raise InvalidModel(f"operands and attributes do not fit: {error.headline}", error.facts) from error
            raise
        except Exception as error:  # an op may stand in a user's file and fail in any way
            said, types = f"{type(error).__name__}: {error}", ["-" if v is None else str(v.type) for v in operands]
            facts = [f"operands {', '.join(types)}", raised_at(error)]
            if registry.is_own(op):  # which reads what the format allows
                raise InvalidModel(f"operands and attributes do not fit: {said}", facts) from error
            raise UserCodeError(f"op {op.name} failed to read it: {said}", facts) from error
        results = list(made) if isinstance(made, (tuple, list)) else [made]
        new = self.graph.nodes[before:]
        owned = {v for n in new for v in n.outputs}
        values: list[Value] = []
        for out, result in zip(proto.output, results):
            value = result if isinstance(result, Value) else self.graph.constant(result, out, f"node {name!r}")
            if out and value in owned:
                owned.discard(value)  # a second output that is the same value stays an alias
                wanted = str(scope.names.get(out, out))
                if value.name != wanted and self._may_take(wanted, scope):
                    self.graph.rename(value, wanted)
            values.append(value)
        for n in new:
            n.origin = (name,)
        if domain and new:  # a node of another domain may be read as ops of ai.onnx, in a model that has none
            self.opsets.setdefault("", NEWEST_OPSET)
        is_one = len(new) == 1 and scope.opsets[domain] == self.opsets[domain]
        if is_one and _keeps_operands(new[0], operands) and [v for v in values if v in new[0].outputs] == values:
            present = tuple(v is not None for v in new[0].inputs)
            attributes = tuple(a.SerializeToString() for a in proto.attribute)
            self.provenance.forms[new[0].name] = SourceNode(new[0].op, proto.op_type, domain, attributes, present)
        return values

    def _constant(self, proto: NodeProto, name: str, scope: Scope) -> Value:
        """Return the value of a Constant node, in whichever of its attributes it stands."""
        if id(proto) in self.constants and self.constants[id(proto)][0] is proto:
            return self.constants[id(proto)][1]
        if len(proto.attribute) != 1:
            raise InvalidModel(f"Constant has {len(proto.attribute)} attributes, expected one")
        if not proto.output:
            raise InvalidModel("Constant has no output")
        held, what = proto.attribute[0], f"{self.source.label}: Constant {name!r}"
        match held.name:
            case "value":
                array = self._elements(held.t, what)
            case "sparse_value":
                array = tensors.from_sparse(held.sparse_tensor, what, self.limits)
            case "value_float":
                array = np.asarray(held.f, np.float32)
            case "value_floats":
                array = np.asarray(held.floats, np.float32)
            case "value_int":
                array = np.asarray(held.i, np.int64)
            case "value_ints":
                array = np.asarray(held.ints, np.int64)
            case _:
                raise UnsupportedOp(f"a constant given as {held.name} is not one renorm computes with")
        out = str(scope.names.get(proto.output[0], proto.output[0]))
        made = self.graph.constant(array, out, f"node {name!r}", exact=self._may_take(out, scope))
        if scope.outer is not None:
            self.constants[id(proto)] = proto, made
        return made

    def _attribute(self, attribute: AttributeProto, node: str) -> Any:
        """Return an attribute as Python has it: strings decoded, tensors as arrays."""
        what = f"attribute {attribute.name} of node {node!r}"
        match attribute.type:
            case AttributeType.STRING:
                return attribute.s.decode("utf-8", "replace")
            case AttributeType.STRINGS:
                return [s.decode("utf-8", "replace") for s in attribute.strings]
            case AttributeType.TENSOR:
                return self._elements(attribute.t, what)
            case AttributeType.INT:
                return attribute.i
            case AttributeType.INTS:
                return list(attribute.ints)
            case AttributeType.FLOAT:
                return tensors.shortest(attribute.f)
            case AttributeType.FLOATS:
                return [tensors.shortest(f) for f in attribute.floats]
            case AttributeType.UNDEFINED:
                raise InvalidModel(f"{what} has no type")
            case _:
                raise UnsupportedOp(f"{what} is a {AttributeType(attribute.type).name.lower()}")

    def _ended(
        self,
        reading: Callable[..., sequences.Reading],
        proto: NodeProto,
        name: str,
        operands: list[Value | None],
        scope: Scope,
    ) -> Generator[tuple[Sequence[NodeProto], Scope], None, Sequence[Value | None]]:
        """Return the results of a node by what reads it, and bodies that it has, into this graph."""
        try:
            return (yield from reading(self, proto, name, operands, scope))
        except (
            ValueError,
            IndexError,
            KeyError,
            TypeError,
            AttributeError,
            ArithmeticError,
        ) as error:  # a damaged file
            why = f"operands, attributes and bodies do not fit: {type(error).__name__}: {error}"
            self._fault(InvalidModel(why, [raised_at(error)]), proto, name)
            return [None] * len(proto.output)
        except RenormError as error:
            if isinstance(error, UntoldOperand):
                self.hosted[len(self.problems)] = self.top
            self._fault(error, proto, name)
            return [None] * len(proto.output)

    def decided_by(self, value: Value) -> None:
        """Note that a branch is taken for what the elements of inputs are as extents."""
        self.branching |= inputs_of(value)

    def expand(self, nodes: int, where: str) -> None:
        """Count nodes that a body puts in the place of one. Raises LimitExceeded."""
        self.expansions += nodes
        self.limits.check(self.source.label, [("expansions", self.expansions, where)])

    def scope_of(self, body: GraphProto, scope: Scope) -> Scope:
        """Return what a body sees, however often it is read: its initializers, and what the graph around it has."""
        held = Scope(scope)
        self.hold_initializers(body, held)
        return held

    def scope_within(
        self, held: Scope, given: Mapping[str, Value | None], names: Mapping[str, str], place: str
    ) -> Scope:
        """Return the names of a body that is read once. given: those of its inputs. names: what its results are called
        outside."""
        inner = Scope(held)
        inner.values.update(given)
        inner.names, inner.place = dict(names), held.place + place
        return inner

    def _may_take(self, name: str, scope: Scope) -> bool:
        """Return whether a value of a scope may have this name: those of the graph itself are its own."""
        if scope.outer is None:
            return True
        is_own = name in self.own_names and name not in scope.names.values()
        return not is_own and self.graph.is_free(name)


def _name(node: NodeProto, place: int) -> str:
    """Return the name of a node, which may have none in its file."""
    return node.name or f"{node.op_type}_{place}"


def _keeps_operands(node: Node, operands: list[Value | None]) -> bool:
    """Return whether a node has the operands of the ONNX node it was made of, position by position."""
    return all(a is b for a, b in zip_longest(node.inputs, operands))
