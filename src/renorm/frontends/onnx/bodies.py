"""Bodies that ONNX states for ops: a node of an op that renorm does not define is read as the nodes of its body.

A body may depend on the types of operands, which are known where a node is read. The onnx package, where it is
installed, has the bodies.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from renorm.core.dtypes import lookup
from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.frontends.onnx.library import is_installed
from renorm.frontends.onnx.messages import ELEMENT_TYPES, NodeProto
from renorm.graph.ir import Value

_ELEMENTS = {"float32": "FLOAT", "float64": "DOUBLE"}  # dtypes that ONNX calls otherwise


class Body:
    """The nodes in the place of a node. Names are the body's own, behind the node's. inputs, outputs: the names of
    its parameters and results; versions: by domain, of the ops that it applies."""

    def __init__(self, function: Any, call: Any, schema: Any, name: str):
        self.versions = {o.domain: o.version for o in function.opset_import}
        given = [bool(i) for i in call.input] + [False] * (len(function.input) - len(call.input))
        absent = {formal for formal, is_given in zip(function.input, given) if not is_given}

        def renamed(inner: str) -> str:
            return f"{name}.{inner}" if inner and inner not in absent else ""

        self.inputs = [renamed(formal) for formal in function.input]
        self.outputs = [renamed(formal) for formal in function.output]
        stated = {a.name: a for a in call.attribute}
        for attribute in (*function.attribute_proto, *(a.default_value for a in schema.attributes.values())):
            if attribute.type:
                stated.setdefault(attribute.name, attribute)
        self.nodes: list[Any] = []
        for place, node in enumerate(function.node):
            own = type(node)()
            own.CopyFrom(node)
            own.name = f"{name}.{node.name or f'{node.op_type}_{place}'}"
            _bind(own, stated)
            _rename(own, renamed)
            self.nodes.append(own)

    @property
    def read_names(self) -> set[str]:
        """Return the names that something reads."""
        return {*_read(self.nodes), *self.outputs}


def has_body(node: NodeProto, domain: str, version: int) -> bool:
    """Return whether ONNX states a body for the op of a node."""
    schema = _schema(node, domain, version)
    return schema is not None and _stated_at(schema, version) is not None


def body_of(node: NodeProto, domain: str, version: int, operands: Sequence[Value | None], name: str) -> Body:
    """Return the body of a node with these operands, of an op that has one. name: the node's."""
    import onnx

    schema = _schema(node, domain, version)
    call: Any = onnx.NodeProto.FromString(node.SerializeToString())
    stated = _stated_at(schema, version)
    if schema.has_function:
        function = onnx.FunctionProto.FromString(schema.get_function_with_opset_version(stated))
    else:
        types = [onnx.TypeProto() if v is None else _type(onnx, v) for v in operands]
        try:
            made = schema.get_context_dependent_function_with_opset_version(
                stated, call.SerializeToString(), [t.SerializeToString() for t in types]
            )
        except Exception as error:  # of the C++ library, whatever it takes offence at
            raise InvalidModel(f"the onnx package makes no body of {node.op_type}: {error}") from error
        function = onnx.FunctionProto.FromString(made)
    if not function.node:
        types = ", ".join("-" if v is None else str(v.type) for v in operands)
        raise UnsupportedOp(f"the onnx package makes no body of {node.op_type} for operands {types}")
    return Body(function, call, schema, name)


def _stated_at(schema: Any, version: int) -> int | None:
    """Return the newest version in whose ops a body is stated, which is what those are read by."""
    versions = (
        schema.function_opset_versions if schema.has_function else schema.context_dependent_function_opset_versions
    )
    return max((v for v in versions if v <= version), default=None)


def _schema(node: NodeProto, domain: str, version: int) -> Any:
    if not is_installed():
        return None
    import onnx

    has = 0 < version < 1 << 31 and onnx.defs.has(node.op_type, version, domain)
    return onnx.defs.get_schema(node.op_type, version, domain) if has else None


def _type(onnx: Any, value: Value) -> Any:
    name = _ELEMENTS.get(value.dtype, lookup(value.dtype).name.upper())
    shape = [d if isinstance(d, int) else str(d) for d in value.shape]
    return onnx.helper.make_tensor_type_proto(ELEMENT_TYPES.index(name), shape)


def _bind(node: Any, stated: dict[str, Any]) -> None:
    """Put the attributes of a call in the place of references to them; one that has no value is left out."""
    bound = list[Any]()
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                _bind(inner, stated)
        referred = attribute.ref_attr_name
        if not referred:
            bound.append(attribute)
        elif referred in stated:
            own = type(attribute)()
            own.CopyFrom(stated[referred])
            own.name = attribute.name
            bound.append(own)
    bound = [type(a).FromString(a.SerializeToString()) for a in bound]
    del node.attribute[:]
    node.attribute.extend(bound)


def _rename(node: Any, renamed: Callable[[str], str]) -> None:
    """Rename all values of a node, and of the graphs nested in it."""
    for names in (node.input, node.output):
        names[:] = [renamed(name) for name in names]
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for named in (*graph.input, *graph.output, *graph.initializer):
                named.name = renamed(named.name)
            for place, inner in enumerate(graph.node):
                inner.name = renamed(inner.name or f"{inner.op_type}_{place}")
                _rename(inner, renamed)


def _read(nodes: Sequence[Any]) -> set[str]:
    found = {name for n in nodes for name in n.input}
    for graph in (g for n in nodes for a in n.attribute for g in (a.g, *a.graphs)):
        found |= _read(graph.node) | {o.name for o in graph.output}
    return found
