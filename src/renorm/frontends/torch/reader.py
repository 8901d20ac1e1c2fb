"""ATen calls to Graph, one after the other.

Nodes are called by the module that makes them, `layer1.0.bn1`, where several calls are made there by module and call,
`layer1.0.attn.view_3`; values by the program's own names. Parameters, buffers and constants are the arrays that PyTorch
has, seen where they lie. Whatever cannot be read is collected, so that one error names all of it, with module and
source line.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from renorm import ops
from renorm.core import dtypes
from renorm.core.dims import Sym
from renorm.core.errors import RenormError, UnsupportedOp, UserCodeError, raised_at
from renorm.frontends.problems import Problem, together
from renorm.frontends.torch import bodies, pairs
from renorm.frontends.torch.call import Call, dtype_name
from renorm.frontends.torch.decomposed import calls_instead, is_made_of_others, tensor_of_nothing, tensors_of
from renorm.frontends.torch.extents import Extents
from renorm.frontends.torch.overloads import PAIRS, TABLE
from renorm.graph.ir import Graph, Node, Value

_NUMBERS = int, float, torch.SymInt, torch.SymFloat, torch.SymBool
_LINE = re.compile(r'File "([^"]+)", line (\d+)')


class Reader:
    """Reads the calls of a torch.fx.Graph into `graph`. made: what nodes are: Values, lists of them, extents, None.
    refused: nodes that cannot be read, with the reason each. part_of: the reader of the call that these make up."""

    def __init__(self, name: str, calls: torch.fx.Graph, extents: Extents, part_of: Reader | None = None):
        self.graph, self.extents = part_of.graph if part_of else Graph(name), extents
        self._is_part, self._decomposes = part_of is not None, part_of is None
        self.made = dict[torch.fx.Node, Any]()
        self.problems: list[Problem] = []
        self.refused = dict[torch.fx.Node, str]()
        self._constants = part_of._constants if part_of else dict[Any, Value | pairs.Pair]()  # by where they lie
        self.is_counted = False  # whether data decided extents of these calls
        self._names = Counter[str]()
        self._nodes = [n for n in calls.nodes if n.op == "call_function"]
        self._calls = Counter(map(where, filter(_is_readable, self._nodes)))  # of each module
        self._calls[""] = 0  # which has no name

    def input(self, node: torch.fx.Node, name: str = "") -> None:
        """Make a node an input of the graph."""
        held = node.meta.get("val")
        try:
            if isinstance(held, torch.SymInt):
                number = self.graph.input(name or node.name, "int64", ())
                number.deciding = (self.extents.of(held),)
                self.made[node] = number.deciding[0]
                return
            self.made[node] = self._stand_in(name or node.name, held) if isinstance(held, torch.Tensor) else held
        except RenormError as error:
            self.problems.append(Problem(error, node.name, "an input"))

    def constant(self, node: torch.fx.Node, name: str, tensor: torch.Tensor) -> None:
        """Make a node a constant: a tensor of that name."""
        place = (tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        try:
            if place not in self._constants or not tensor.numel():
                if pairs.is_complex(tensor):
                    named = zip(("real", "imag"), pairs.constant(tensor))
                    self._constants[place] = pairs.Pair(*(self.graph.constant(a, f"{name}.{n}") for n, a in named))
                else:
                    self._constants[place] = self.graph.constant(array_of(tensor), name)
            self.made[node] = self._constants[place]
        except RenormError as error:
            self.problems.append(Problem(error, name, "a parameter"))

    def probe(self, wanted: Callable[[torch.fx.Node], bool] = lambda node: True) -> None:
        """Read all calls, to see which can be: what one that cannot would give is an input to those after it. wanted:
        which are decomposed where they have no reader."""
        for node in self._nodes:
            self._decomposes = wanted(node)
            self._call(node)
            held = node.meta.get("val")
            if node in self.made or not isinstance(held, (torch.Tensor, list, tuple)):
                continue
            lacking = [n.name for n in node.all_input_nodes if n not in self.made]
            self.refused.setdefault(node, f"it reads {', '.join(lacking)}, which renorm does not")
            if isinstance(held, torch.Tensor):
                self.input(node)
            else:
                with suppress(RenormError):  # of a dtype that nothing reads
                    self.made[node] = [self._stand_in(f"{node.name}_{i}", x) for i, x in enumerate(held)]

    def _stand_in(self, name: str, held: Any) -> Any:
        if not isinstance(held, torch.Tensor):
            return None
        shape, part = self.extents.shape(held.shape), pairs.half(held)
        if part is held:
            return self.graph.input(name, dtype_name(held.dtype), shape)
        value = self.graph.input(name, dtype_name(part.dtype), (*shape, 2))
        return pairs.split(Call(self.graph, self.extents, [part]), value)

    def read(self, outputs: Sequence[Any]) -> Graph:
        """Read all calls. outputs: nodes and numbers, and whatever else results hold, which is left out. Raises
        UnsupportedOp."""
        for node in self._nodes:
            self._call(node)
        for given in outputs:
            value = self.made.get(given) if isinstance(given, torch.fx.Node) else given
            if isinstance(value, (Value, pairs.Pair)):
                self.graph.outputs.append(value if isinstance(value, Value) else pairs.joined(value))
            elif isinstance(value, (bool, int, float, Sym)):
                dtype = "bool" if isinstance(value, bool) else "float32" if isinstance(value, float) else "int64"
                number = ops.identity(Call(self.graph, self.extents, ()).number(value, dtype))
                self.graph.rename(number, given.name if isinstance(given, torch.fx.Node) else "number", exact=False)
                self.graph.outputs.append(number)
            elif isinstance(given, torch.fx.Node) and (given in self.made or not self.problems):
                error = UnsupportedOp("it is a result of the program, and no tensor")
                self.problems.append(Problem(error, given.name, stated(given)))
        if self.problems:
            raise together(self.problems, self.graph.name)
        if self.extents.has_elements:  # of which nothing is known any more
            self.graph.infer_again()
        self.graph.discard_constants()
        return self.graph

    def _call(self, node: torch.fx.Node) -> None:
        held = node.meta.get("val")
        if not isinstance(held, (torch.Tensor, list, tuple)) and _is_only_checked(node):
            return  # it tells PyTorch of extents, and computes nothing
        if overload(node) in TABLE and isinstance(held, _NUMBERS):
            self._guarded(node, lambda: self._number(node, held))
        elif isinstance(held, (bool, torch.SymBool)):
            self.made[node] = held
        elif isinstance(held, (int, torch.SymInt)):
            self._guarded(node, lambda: self.extents.of(held))
        elif overload(node) == "getitem":
            if node.all_input_nodes[0] in self.made:
                self._guarded(node, lambda: self._part(node))
        else:
            self._guarded(node, lambda: self._read(node))

    def _guarded(self, node: torch.fx.Node, make: Callable[[], Any]) -> None:
        if _is_readable(node) and any(n not in self.made for n in node.all_input_nodes):
            return  # what it reads has its problem
        try:
            self.made[node] = make()
        except RenormError as error:
            self._refuse(node, error)
        except Exception as error:  # a reader must not lose where
            failed = UserCodeError(f"{type(error).__name__}: {error}", [raised_at(error)])
            failed.__cause__ = error
            self._refuse(node, failed)

    def _refuse(self, node: torch.fx.Node, error: RenormError) -> None:
        self.problems.append(Problem(error, where(node) or node.name, stated(node), overload(node)))
        self.refused[node] = error.headline

    def _part(self, node: torch.fx.Node) -> Any:
        whole, index = node.args
        assert isinstance(whole, torch.fx.Node)
        assert isinstance(index, int)
        found = self.made[whole][index]
        if found is None and node.users:
            raise UnsupportedOp(f"result {index} of {overload(whole)} is read, which renorm does not compute")
        return found

    def _read(self, node: torch.fx.Node) -> Any:
        before, held = len(self.graph.nodes), node.meta.get("val")
        results = list(held) if isinstance(held, (list, tuple)) else [held]
        try:
            found = self._by_table(node, results)
        except Exception as error:  # of a reader's own, too
            self.graph.discard(self.graph.nodes[before:])
            found = self._by_parts(node, error)
        made = self.graph.nodes[before:]
        if not self._is_part:
            self._name(node, made)
            if isinstance(found, Value) and made and found.producer is made[-1]:
                self.graph.rename(found, node.name, exact=False)
        both = list(zip(found if isinstance(found, list) else [found], results))
        self._count(made, [(v.real if isinstance(v, pairs.Pair) else v, r) for v, r in both])
        for value, result in both:
            for part in value if isinstance(value, pairs.Pair) else [value]:
                self._check(part, pairs.half(result))
        return found

    def _count(self, made: Sequence[Node], results: Sequence[tuple[Any, Any]]) -> None:
        """Take extents that data decide for those that results have."""
        new = [
            (n, value, axis)
            for value, result in results
            if isinstance(value, Value) and isinstance(result, torch.Tensor)
            for axis, n in enumerate(result.shape)
            if self.extents.is_new(n)
        ]
        if new:
            self.graph.infer_again(made)  # what inference calls them follows names of nodes, which were others
        for n, value, axis in new:
            if self.extents.is_new(n):
                self.extents.count(n, value, axis)

    def _number(self, node: torch.fx.Node, held: Any) -> Any:
        """Return the one element of a tensor: an extent, or, if it can be none, a value."""
        value = self._read(node)
        extent = self.extents.element(held, value) if isinstance(held, torch.SymInt) else None
        return value if extent is None else extent

    def _by_table(self, node: torch.fx.Node, results: Sequence[Any]) -> Any:
        name = overload(node)
        if bodies.reads(node.target):
            operands = _arguments(node.args, self.made)
            if isinstance(operands[0], torch.SymBool):
                compare, *extents = self.extents.compared(operands[0])
                call = Call(self.graph, self.extents, results)
                truth = getattr(ops, compare.removeprefix("not_"))(*(call.number(n, "int64") for n in extents))
                operands[0] = ops.logical_not(truth) if compare.startswith("not_") else truth
            return bodies.results(name, operands)
        given, named = (_arguments(a, self.made) for a in (node.args, node.kwargs))
        is_of_pairs = pairs.are_among((given, named)) or any(map(pairs.is_complex, results))
        if name not in (table := PAIRS if is_of_pairs else TABLE):
            if (tensor := tensor_of_nothing(node)) is not None:
                return self.graph.constant(array_of(tensor), node.name)
            what = f"{name} of complex numbers" if is_of_pairs else name
            raise UnsupportedOp(f"renorm does not read {what}", do="leave it to PyTorch, or write it otherwise")
        parts: list[Any] = [u.args[1] for u in node.users if overload(u) == "getitem" and u.users]
        read = [n.meta.get("val") for n in node.all_input_nodes]
        call = Call(self.graph, self.extents, [pairs.half(r) for r in results], frozenset(parts), read)
        return table[name](call, *given, **named)

    def _by_parts(self, node: torch.fx.Node, refused: Exception) -> Any:
        """Return what a call gives that PyTorch itself makes of others, all of which are read. Raises `refused`."""
        instead = calls_instead(node) if self._decomposes else None
        if instead is None:
            raise refused
        given = iter([self.made[n] for n in tensors_of(node)])
        found, parts = self._inside(instead, given)
        if not parts.problems:
            return found
        lacking = ", ".join(sorted({overload(n) for n in parts.refused}))
        if overload(node) in TABLE or not lacking or not isinstance(refused, RenormError):
            raise refused
        raise UnsupportedOp(f"{refused.headline}, which PyTorch makes of {lacking}", do=refused.do)

    def _inside(self, body: torch.fx.GraphModule, given: Iterator[Any], decomposes: bool = False) -> tuple[Any, Reader]:
        """Read a graph into this one. given: what its placeholders are. Return its results, where nothing is wrong, and
        who read it."""
        inner = Reader(self.graph.name, body.graph, self.extents, self)
        inner._decomposes = decomposes
        for n in body.graph.nodes:
            if n.op == "placeholder":
                inner.made[n] = next(given)
            elif n.op == "get_attr":
                inner.attribute(n, getattr(body, str(n.target)))
        before = len(self.extents.counts)
        with self.extents.inside():
            for n in inner._nodes:
                inner._call(n)
            inner.is_counted = len(self.extents.counts) > before
        return None if inner.problems else _arguments(body.graph.output_node().args[0], inner.made), inner

    def attribute(self, node: torch.fx.Node, held: Any) -> None:
        """Make a node what it names: a constant, or a graph, which is a function of operands."""
        if isinstance(held, torch.fx.GraphModule):
            self.made[node] = bodies.Body(held, self._body)
        elif isinstance(held, torch.Tensor):
            with unset_fake_temporarily():  # where PyTorch traces: it has elements
                self.constant(node, node.name, held)

    def _body(self, body: torch.fx.GraphModule, operands: Sequence[Any]) -> list[Any]:
        found, inner = self._inside(body, iter(operands), self._decomposes)
        if inner.problems:
            raise together(inner.problems, self.graph.name)
        if inner.is_counted:  # extents that may be others in the next round
            raise UnsupportedOp("data decide extents in it")
        if len(self.graph.nodes) > bodies.MOST:
            raise UnsupportedOp(f"bodies make more than {bodies.MOST:,} nodes")
        return [*found]

    def _name(self, node: torch.fx.Node, made: Sequence[Node]) -> None:
        path = where(node)
        name = path if self._calls[path] == 1 else f"{path}.{node.name}" if path else node.name
        for n in made:  # a module may be called as an op in it
            self.graph.rename_node(n, "", exact=False)
        for n in made:
            wanted = name if n is made[-1] else f"{name}.{n.op.name}"
            self._names[wanted] += 1
            wanted += f"_{self._names[wanted]}" if self._names[wanted] > 1 else ""
            self.graph.rename_node(n, wanted, exact=False)
            n.origin = (n.name,)

    def _check(self, value: Any, result: Any) -> None:
        """Raise UnsupportedOp where what was made has another type than PyTorch says."""
        if not isinstance(value, Value) or not isinstance(result, (torch.Tensor, pairs.Half)):
            return
        dtype, shape = dtype_name(result.dtype), self.extents.shape(result.shape)
        extents = zip(value.shape, shape)
        is_other = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in extents)
        if value.dtype != dtype or value.rank != len(shape) or is_other:
            raise UnsupportedOp(f"its result would be {value.type}, and PyTorch's is {dtype}{list(shape)}")


def _arguments(given: Any, made: Mapping[torch.fx.Node, Any]) -> Any:
    """Return arguments with what nodes have made in their place."""
    if isinstance(given, torch.fx.Node):
        return made[given]
    if isinstance(given, (list, tuple)):
        return [_arguments(g, made) for g in given]
    if isinstance(given, Mapping):
        return {k: _arguments(v, made) for k, v in given.items()}
    return given


def overload(node: torch.fx.Node) -> str:
    """Return what a node calls: add.Tensor of ATen's; with its library for others. Inputs, whatever their name, call
    nothing: ""."""
    target = node.target if node.op != "placeholder" else ""
    if isinstance(target, torch._ops.OpOverload):
        return str(target).removeprefix("aten.")
    return getattr(target, "__name__", str(target))


def _is_readable(node: torch.fx.Node) -> bool:
    """Return whether a call may have a reader, or parts that have."""
    is_of_tensors = isinstance(node.meta.get("val"), (torch.Tensor, list, tuple))
    is_read = overload(node) in TABLE or overload(node) in PAIRS or bodies.reads(node.target)
    return is_read or (is_of_tensors and (is_made_of_others(node) or not node.all_input_nodes))


def _is_only_checked(node: torch.fx.Node) -> bool:
    """Return whether nothing but calls without a result reads a number."""
    return all(
        u.op == "call_function" and not isinstance(u.meta.get("val"), torch.Tensor) and _is_only_checked(u)
        for u in node.users
    )


def where(node: torch.fx.Node) -> str:
    """Return the path of the innermost module that a node stands in; "" outside of any."""
    paths = [str(path) for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    if not paths or "_empty_nn_module" in paths[-1]:
        return ""
    path = re.sub(r"\[['\"]?(\w+)['\"]?\]", r".\1", paths[-1].removeprefix("L['self']")).replace("_modules.", "")
    return path.strip(".").removeprefix("L.self.").removeprefix("self.")


def stated(node: torch.fx.Node) -> str:
    """Return what a node calls, and the line of the caller's source that does."""
    lines = _LINE.findall(str(node.meta.get("stack_trace", "")))  # of a damaged file it may be anything
    lines = [line for line in lines if not line[0].startswith("<")]  # of a graph that PyTorch has made
    own = [line for line in lines if f"{torch.__name__}/" not in line[0]] or lines
    return f"{overload(node)}, {own[-1][0]}:{own[-1][1]}" if own else overload(node)


def array_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Return the elements of a tensor, where they lie. Raises UnsupportedOp for a dtype that there are no kernels
    for."""
    own, name = tensor.detach().cpu(), dtype_name(tensor.dtype)
    if name == "bfloat16":
        return own.view(torch.int16).numpy().view(dtypes.numpy_dtype(name))
    return own.numpy()
