"""TensorFlow Lite and Circle to Graph.

Values have the names of tensors; a node is called by its operator and its place in the file: `CONV_2D_3`. Whatever
cannot be read is collected, so that one error names all of it.

Quantized networks are read as arithmetic over the real numbers that their integers stand for, with what is between
operators rounded to its integers (`quantized`); inputs and outputs keep the integers of the file.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.dims import Dim, Sym, substitute_shape
from renorm.core.errors import InvalidModel, RenormError, UnsupportedOp
from renorm.core.inputs import element_symbols
from renorm.core.limits import DEFAULT, Limits
from renorm.core.stated import STATED, Declared, Stated, Undecided, stated
from renorm.frontends import BUFFERS
from renorm.frontends.diagnosis import ASSUMPTIONS, diagnose
from renorm.frontends.files import called, content
from renorm.frontends.hosting import deciding
from renorm.frontends.outline import Types
from renorm.frontends.problems import Problem, together
from renorm.frontends.tflite import hosting, quantized
from renorm.frontends.tflite.flatbuffer import Table
from renorm.frontends.tflite.model import KEY, Model, Section
from renorm.frontends.tflite.scope import Scope
from renorm.frontends.tflite.tensors import Array, Tensor, Variable, scale_of
from renorm.graph.deciding import BRANCHING, inputs_of, settle
from renorm.graph.ir import Graph, Value
from renorm.ops.identity import Identity


def read(
    source: Any,
    *,
    shapes: Mapping[str, Sequence[Stated]] | None = None,
    inputs: Mapping[str, Any] | None = None,
    is_mapped: bool = False,
    limits: Limits = DEFAULT,
) -> Graph:
    """Return the graph of a .tflite or .circle file: a path or bytes. See `renorm.frontends.read`."""
    model = load(source, limits, is_mapped)
    graph = Reader(model, shapes or {}, inputs or {}, limits).read()
    diagnose(graph)
    return graph


def load(source: Any, limits: Limits, is_mapped: bool = False) -> Model:
    """Return what a path or bytes hold. Raises InvalidModel, LimitExceeded."""
    is_path = isinstance(source, (str, os.PathLike))
    held = memoryview(content(source, limits, is_mapped) if is_path else source).cast("B")
    model = Model(held, called(source, "bytes"))
    count = sum(len(table.items("operators")) for table in model.subgraphs)
    limits.check(model.label, [("nodes", count, "")])
    return model


class Reader:
    """section: what is read, the first subgraph or a piece. types: of inputs that others compute: no graph is read for
    each of their elements. named: how many nodes of the graph have the names of their operators. hosted: by
    problems of loops and branches, places of operators of the section; top: of the one that is read."""

    def __init__(
        self,
        model: Model,
        shapes: Mapping[str, Sequence[Stated]],
        values: Mapping[str, Any],
        limits: Limits,
        section: Section | None = None,
        types: Types | None = None,
    ):
        self.model, self.label, self.limits = model, model.label, limits
        self.shapes, self.values, self.computed = shapes, values, types
        self.section = section or model.main
        self.table = self.section.table
        self.graph = Graph(self.table["name"] or os.path.splitext(model.label)[0] or "main")
        self.graph.metadata[KEY] = model
        self.types = model.schema.names("TensorType")
        self.problems = list[Problem]()
        self.graph.reserve(self.section.names)
        self.declared: Sequence[Declared] = ()
        self.branching = set[Value]()  # inputs of which is taken to be so what decides a branch
        self.variables = dict[object, Variable]()
        self.started, self.is_starting = set[int](), False  # subgraphs that initialize; whether one is read
        self.assigned: set[Any] | None = None  # variables that operators change, once somebody asked
        self.named = self.expansions = self.top = 0
        self.hosted = dict[int, int]()
        self.main = Scope(self, self.section)

    def read(self) -> Graph:
        self._inputs()
        self.main.read()
        for i in self._ends("outputs"):
            try:
                if i not in self.main.unread:
                    self.graph.outputs.append(self._output(i))
            except RenormError as error:
                self._fault(error)
        self._raise_undecided()
        if self.problems:  # what renorm does not define first
            self.problems.sort(key=lambda p: not isinstance(p.error, UnsupportedOp))
            raise together(self.problems, self.label)
        self._hold_variables()
        for tensor in self.main.tensors:
            for v, is_first in tensor.forms():
                whole = quantized.held(v)
                self.model.forms.update((u.name, (tensor.name, is_first)) for u in (v, whole) if u is not None)
        self.graph.discard_constants()  # weights are held in the graph's order only
        settle(self.graph, self.branching)
        self.graph.metadata[BRANCHING] = tuple(v.name for v in self.branching)
        return self.graph

    def _fault(self, error: RenormError) -> None:
        """Note what is wrong with no operator."""
        self.problems.append(Problem(error))

    def _ends(self, side: str) -> list[int]:
        """Places of the model's inputs, or outputs; those that there are not are noted."""
        try:
            return self.main.places(self.table[side], f"{side} of the model")
        except RenormError as error:
            self._fault(error)
            return []

    def _raise_undecided(self) -> None:
        """Raise Undecided where nothing is wrong but that elements of inputs are not known."""
        by = deciding(self.graph, self.problems, self.hosted, self.computed is not None)
        if by is None:
            return
        if by:
            told = together(self.problems, self.label)
            names = tuple(v.name for v in self.graph.inputs if v in by)
            raise Undecided(told.headline, told.facts, told.do, self.declared, names, self.graph.name) from told
        hosting.require(self)

    def decided_by(self, value: Value) -> None:
        """Note that the network is read for what the elements of inputs are as extents."""
        self.branching |= inputs_of(value)

    def expand(self, operators: int, depth: int, where: str) -> None:
        """Count operators of a subgraph that is read in the place of one. Raises LimitExceeded."""
        self.expansions += operators
        self.limits.check(self.label, [("expansions", self.expansions, where), ("nesting", depth, where)])

    # --- inputs and outputs -------------------------------------------------------------------------------------------

    def _inputs(self) -> None:
        """Add inputs, of extents and elements as users state them."""
        found, unread = dict[int, Declared](), self.main.unread
        for i in self._ends("inputs"):
            tensor = self.main.tensors[i]
            try:
                if i in found:
                    raise InvalidModel(f"{self.label}: input {tensor.name!r} is listed twice")
                dtype = self.main.dtype(i)
                tensor.scale = scale_of(self.main.tables[i], dtype, self.section.called(i))
                found[i] = (self.computed or {}).get(tensor.name) or Declared(
                    tensor.name, dtype, tuple(self._shape(self.main.tables[i], tensor.name))
                )
            except RenormError as error:
                self._fault(error)
                unread.update({i} if i not in found else ())
        symbols = element_symbols(found.values())
        found = {i: replace(one, deciding=symbols.get(one.name, ())) for i, one in found.items()}
        self.declared = [*found.values()]
        asked = (None, None) if self.problems else (self.shapes, self.values)
        extents, values = stated(self.declared, *asked, self.graph.name)
        self.graph.metadata[STATED] = extents
        for i, one in found.items():
            if one.name in values:
                held = self.graph.constant(values[one.name], one.name, "input given when compiled", exact=True)
            else:
                held = self.graph.input(one.name, one.dtype, substitute_shape(one.shape, extents))
                held.deciding = substitute_shape(one.deciding, extents)
            self.main.tensors[i].make(self._real(self.main.tensors[i], held))

    def _real(self, tensor: Tensor, value: Value) -> Value:
        """Return the real numbers that the integers of an input stand for."""
        if tensor.scale is None:
            return value
        if value.data is not None:
            tensor.integers = value.data
            return self.graph.constant(tensor.scale.real(value.data), f"{tensor.name}.real", value.source)
        return quantized.real(value, tensor.scale, tensor.scale.axis)

    def _output(self, i: int) -> Value:
        tensor, table = self.main.tensors[i], self.main.tables[i]
        found = self.main.operand(i)
        if not found.is_made:
            assert found.variable is not None
            found.make(self.read_variable(found.variable))
        value, dtype = found.stored(), self.main.dtype(i)
        scale = scale_of(table, dtype, self.section.called(i))
        if scale is not None and found.integers is not None:
            if value.name != tensor.name:  # listed twice
                return self.graph.constants[tensor.name]
            self.graph.rename(value, f"{tensor.name}.real", exact=False)
            return self.graph.constant(found.integers, tensor.name, value.source, exact=True)
        if scale is not None:
            real, value = value, quantized.integers(value, scale, dtype, scale.axis)
            if real.name == tensor.name:
                self.graph.swap_names(real, value)
        if value.name == tensor.name:
            return value
        return self.graph.apply(Identity(), [value], name=f"Identity_{tensor.name}", outputs=[tensor.name])

    def _shape(self, table: Table, name: str) -> list[Dim]:
        """Return extents; what the signature of the shape leaves open is symbolic."""
        shape = [int(d) for d in table.items("shape")]
        signature = [int(d) for d in table.items("shape_signature")] or shape
        if len(signature) != len(shape):
            raise InvalidModel(f"{self.label}: {name!r} has shape {shape} and signature {signature}")
        return [d if s >= 0 and d >= 0 else Sym(f"?{name}.{axis}") for axis, (d, s) in enumerate(zip(shape, signature))]

    # --- variables ----------------------------------------------------------------------------------------------------

    def variable(self, key: object, name: str, called: str, shape: tuple[int, ...] | None, changes: bool) -> Variable:
        """Return what a tensor holds from run to run, the same one for each reading. See `Variable`."""
        return self.variables.setdefault(key, Variable(name, called, shape, changes))

    def resource(self, options: Table | None) -> Variable:
        """Return the variable that a VAR_HANDLE is of."""
        container, name = ("", "") if options is None else (options[o] or "" for o in ("container", "shared_name"))
        if self.assigned is None:
            self.assigned = self.model.assigned()
        changes = (container, name) in self.assigned or None in self.assigned
        return self.variable(("resource", container, name), name or "variable", f"variable {name!r}", None, changes)

    def read_variable(self, variable: Variable, is_held: bool = True) -> Value:
        """Return what a variable is at this point of the network. is_held: runs go on where the one before ended;
        otherwise each begins with zeros."""
        if variable.now is not None:
            return variable.now
        if is_held:
            return self.first(variable)
        self.assume(f"{variable.called} is a variable of another shape: each run begins with zeros")
        return self.graph.constant(self._initial(variable), f"{variable.name}.zeros")

    def first(self, variable: Variable) -> Value:
        """Return what a variable is when a run begins."""
        if variable.first is None:
            initial, name = self._initial(variable), variable.name
            if not variable.changes:
                variable.now = self.graph.constant(initial, name, variable.called)
                return variable.now
            while not self.graph.is_free(name):
                name += "_"
            variable.first = self.graph.input(name, dtypes.from_numpy(initial.dtype), initial.shape)
        return variable.first

    def _initial(self, variable: Variable) -> Array:
        if variable.initial is None:
            if variable.shape is None:
                raise InvalidModel(f"{self.label}: {variable.called} is read before anything is assigned to it")
            count, what = math.prod(variable.shape), variable.called
            self.limits.check(self.label, [("elements", count, what), ("bytes", 4 * count, what)])
            try:
                variable.initial = np.zeros(variable.shape, np.float32)
            except ValueError as error:
                raise InvalidModel(f"{self.label}: {what} is float32{list(variable.shape)}", [str(error)]) from error
        return variable.initial

    def assume(self, said: str) -> None:
        self.graph.metadata[ASSUMPTIONS] = tuple(dict.fromkeys((*self.graph.metadata.get(ASSUMPTIONS, ()), said)))

    def _hold_variables(self) -> None:
        """Hold what runs hand on: last inputs, and as many last outputs. What no operator changes is a constant."""
        held = dict[str, Any]()
        for variable in self.variables.values():
            first, now = variable.first, variable.now
            if first is None:
                continue
            initial = self._initial(variable)
            if now is None or now is first:
                self.graph.inputs.remove(first)
                self.graph.replace(first, self.graph.constant(initial, f"{first.name}.initial", variable.called))
                continue
            if now.type != first.type:
                raise UnsupportedOp(f"{self.label}: {variable.called} becomes {now.type}, and was {first.type}")
            held[first.name] = initial
            self.graph.outputs.append(self.graph.apply(Identity(), [now], name=f"{first.name}.next"))
        if held:
            self.graph.metadata[BUFFERS] = held
