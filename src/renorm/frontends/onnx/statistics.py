"""Where an ONNX file holds the statistics of its batch norms, and the same file with others in their place.

Nothing else of the file changes. A statistic that is read elsewhere too, in another role or by another norm, gets a
name of its own; one that nodes compute from constants (Identity, Cast, ...) becomes an initializer of the same name.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from renorm.core import dtypes
from renorm.core.errors import InvalidInput, suggest
from renorm.core.limits import Limits
from renorm.frontends.onnx import listing, tensors, writer
from renorm.frontends.onnx.messages import graphs
from renorm.frontends.onnx.model import standard_domain
from renorm.graph.ir import Node
from renorm.graph.names import Names

Array = np.ndarray[Any, Any]


class File:
    """An ONNX model whose constants can be given other elements. model: nobody else's, with all of its data; functions
    are inlined, so that each norm has statistics of its own."""

    def __init__(self, source: Any, limits: Limits):
        model = listing.load(source, limits, is_slim=True)
        self._is_external = any(t.data_location == TensorProto.EXTERNAL for t in model.graph.initializer)
        if self._is_external:
            model = listing.load(source, limits)
        self.model = listing.inlined(model, limits)
        if self.model is model:
            self.model = ModelProto()
            self.model.CopyFrom(model)
        self._graphs = cast(list[GraphProto], graphs(cast(Any, self.model.graph)))
        self._tensors = {t.name: t for g in self._graphs for t in g.initializer}
        self._makers = {o: (g, n) for g in self._graphs for n in g.node for o in n.output if o}
        self._outputs = {o.name for g in self._graphs for o in g.output}
        self._readers = dict[str, list[tuple[NodeProto, int]]]()
        self._names = Names({i.name for g in self._graphs for i in g.input} | {*self._tensors, *self._makers})
        self._by_name = dict[str, NodeProto | None]()  # None: two nodes have that name
        for g in self._graphs:
            for place, n in enumerate(g.node):
                name = n.name or f"{n.op_type}_{place}"  # as the reader calls it
                self._by_name[name] = None if name in self._by_name else n
                for i, read in enumerate(n.input):
                    self._readers.setdefault(read, []).append((n, i))

    def norm(self, node: Node) -> NodeProto | None:
        """Return the BatchNormalization that a node of the graph read from this file was made of."""
        _, by_result = self._makers.get(node.output.name, (None, None))
        found = (by_result, self._by_name.get(node.name))
        return next((n for n in found if n is not None and _is_norm(n)), None)

    def put(self, norms: Sequence[NodeProto], place: int, array: Array) -> str:
        """Make `array` (one element per channel, of the dtype that norms read) what these norms read as their mean, or
        var; gives the name that holds it. They read the same name."""
        return self._give(norms[0].input[place], [(n, place) for n in norms], array)

    def replace(self, arrays: Mapping[str, Array]) -> None:
        """Other elements for constants, by name: initializers, and what nodes make of constants. One that norms read as
        their mean or var changes for them; whoever reads it in another role has what it was. Raises InvalidInput that
        lists each name that is no constant, and each array of another size."""
        problems = list[str]()
        for name, array in arrays.items():
            held, shape = self._tensor(name), self._handed_on(name)
            if held is None and not self._is_computed(name):
                problems.append(f"no constant is called {name!r}; nearest: {suggest(name, self._tensors)}")
            elif shape not in ((), array.shape):
                problems.append(f"{name!r} is {list(shape)}, not {list(array.shape)}")
            elif not problems:
                readers = self._readers.get(name, [])
                self._give(name, [(n, i) for n, i in readers if _is_norm(n) and i in (3, 4)] or readers, array)
        if problems:
            raise InvalidInput(f"{self.model.graph.name}: its constants are others", problems)

    def _give(self, name: str, own: Sequence[tuple[NodeProto, int]], array: Array) -> str:
        """Make `array` what the readers `own` of a constant read, each a node and a place; give the name that they
        read it by."""
        places = {(id(n), i) for n, i in own}
        is_shared = own and (name in self._outputs or any((id(n), i) not in places for n, i in self._readers[name]))
        held = self._tensor(name)
        if held is not None and not is_shared:
            _fill(held, array)
            return name
        shaped = array.reshape(self._handed_on(name) or array.shape)
        if is_shared:
            first, place = own[0]
            name = self._names.fresh(f"{first.output[0]}.{'mean' if place == 3 else 'var'}")
            for n, i in own:
                n.input[i] = name
        else:
            self._unmake(name)
        self._add(name, shaped)
        return name

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write the model, whole or not at all; beside it a file of its data where the source has such files."""
        limit = 0 if self._is_external else writer.INLINE_LIMIT
        writer.save(self.model, path, limit, is_ours=False)

    def _tensor(self, name: str) -> TensorProto | None:
        """Return the tensor that holds a constant: an initializer, or the attribute of a Constant node."""
        _, maker = self._makers.get(name, (None, None))
        if maker is not None and maker.op_type == "Constant" and not standard_domain(maker.domain):
            return _value_of(maker)
        return self._tensors.get(name)

    def _handed_on(self, name: str) -> tuple[int, ...]:
        """Return extents of a constant, also of one that Identity nodes hand on; empty where something else computes
        it."""
        seen = set[str]()
        while (held := self._tensor(name)) is None:
            _, maker = self._makers.get(name, (None, None))
            if maker is None or maker.op_type != "Identity" or name in seen:
                return ()
            seen.add(name)
            name = maker.input[0]
        return tuple(held.dims)

    def _is_computed(self, name: str) -> bool:
        """Return whether nodes make it of nothing but constants."""
        seen, waiting = {name}, [name]
        while waiting:
            _, maker = self._makers.get(waiting.pop(), (None, None))
            if maker is None or not maker.input:
                return False
            further = {i for i in maker.input if i and self._tensor(i) is None} - seen
            seen |= further
            waiting += further
        return True

    def _unmake(self, name: str) -> None:
        """Take away what computes `name`: its node, or one of the results of that."""
        if name in self._makers:
            g, n = self._makers.pop(name)
            if len([o for o in n.output if o]) == 1:
                g.node.remove(n)
            else:
                n.output[list(n.output).index(name)] = self._names.fresh(f"{name}.unused")
        for g in self._graphs:
            for sparse in [s for s in g.sparse_initializer if s.values.name == name]:
                g.sparse_initializer.remove(sparse)

    def _add(self, name: str, array: Array) -> None:
        made = writer.to_tensor(array, name)
        self.model.graph.initializer.append(made)
        self._tensors[name] = self.model.graph.initializer[-1]
        writer.list_as_inputs(self.model, [made])


def _is_norm(node: NodeProto) -> bool:
    return node.op_type == "BatchNormalization" and not standard_domain(node.domain)


def _value_of(node: NodeProto) -> TensorProto:
    """Return the tensor that a Constant node holds, in whichever form it stood there."""
    given = node.attribute[0]
    if given.type != AttributeProto.TENSOR:
        array = (
            tensors.from_sparse(cast(Any, given.sparse_tensor), node.output[0])
            if given.type == AttributeProto.SPARSE_TENSOR
            else np.asarray(given.floats if given.type == AttributeProto.FLOATS else given.f, np.float32)
        )
        given.CopyFrom(AttributeProto(name="value", type=AttributeProto.TENSOR, t=writer.to_tensor(array, "")))
    return given.t


def _fill(held: TensorProto, array: Array) -> None:
    """Other elements, of the same shape and dtype, under the same name."""
    dtype = dtypes.numpy_dtype(tensors.dtype_name(held.data_type, held.name))
    with np.errstate(over="ignore"):
        made = writer.to_tensor(array.astype(dtype).reshape(held.dims), held.name)
    made.doc_string = held.doc_string
    held.CopyFrom(made)
