"""From bytes to a checked onnx.ModelProto: what every later step may rely on.

Promises: the bytes parse, the model has a graph, opset versions are stated and known, functions are inlined.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import onnx
import onnx.inliner
from google.protobuf.message import DecodeError
from onnx import ModelProto

from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.frontends.onnx import wire
from renorm.graph import registry

NEWEST_OPSET = 26  # definitions of ai.onnx up to this one have been compared with the ops that claim them


@dataclass(frozen=True)
class Source:
    """A model and where it came from. label: how errors call it. directory: of its external data, None in memory.
    lifted: elements of initializers of the graph that the model is without, see wire."""

    model: ModelProto
    label: str
    directory: Path | None
    lifted: dict[str, wire.Array] = field(default_factory=dict[str, wire.Array])

    @property
    def opsets(self) -> dict[str, int]:
        """Version by domain; the domain ai.onnx is written ""."""
        stated = {standard_domain(o.domain): o.version for o in self.model.opset_import}
        return {"": 1, **stated} if self.model.ir_version < 3 else stated


def standard_domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def op_key(domain: str, op_type: str) -> str:
    """The name under which the registry knows an ONNX op: `Conv`, `com.acme::Foo`."""
    domain = standard_domain(domain)
    return f"{domain}::{op_type}" if domain else op_type


def is_newer(node: onnx.NodeProto, opset: int) -> bool:
    """Whether a node follows a definition that is newer than those renorm's ops were compared with."""
    if standard_domain(node.domain) or opset <= NEWEST_OPSET or not onnx.defs.has(node.op_type, opset):
        return False
    return onnx.defs.get_schema(node.op_type, opset).since_version > NEWEST_OPSET


def load(source: Any) -> Source:
    """Reads a path, bytes, or a ModelProto. Raises InvalidModel for what is not an ONNX model."""
    directory, lifted = None, dict[str, wire.Array]()
    if isinstance(source, ModelProto):
        model, label = source, source.graph.name or "onnx.ModelProto"
    else:
        if isinstance(source, (str, os.PathLike)):
            path = Path(os.fspath(source))
            label, directory = path.name, path.parent
            try:
                model, lifted = _parse_file(path, label)
            except OSError as error:
                near = sorted(p.name for p in directory.glob("*.onnx"))[:5] if directory.is_dir() else []
                raise InvalidModel(
                    f"{source}: {error.strerror or error}", [f"in that directory: {', '.join(near)}"] if near else []
                ) from error
        else:
            label = "bytes"
            model = _parse(bytes(source), label)
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise InvalidModel(
            f"{label}: this is not an ONNX model",
            ["it has no graph"],
            "check that the file is complete, and not the pointer of a large-file store",
        )
    _check_text(model, label)
    found = Source(model, label, directory, lifted)
    _check_opsets(found)
    return replace(found, model=_inline(found))


def _parse_file(path: Path, label: str) -> tuple[ModelProto, dict[str, wire.Array]]:
    """The model of a file, and elements of initializers that it is without."""
    data, lifted = wire.read(path)
    if lifted:
        model = ModelProto()
        with suppress(DecodeError):
            model.ParseFromString(data)
            names = [t.name for t in model.graph.initializer]
            if len(set(names)) == len(names) and not model.functions:  # the inliner is given models that are complete
                return model, lifted
        data = path.read_bytes()
    return _parse(data, label), {}


def _parse(data: bytes, label: str) -> ModelProto:
    model = ModelProto()
    try:
        model.ParseFromString(data)
    except DecodeError as error:
        raise InvalidModel(
            f"{label}: this is not an ONNX model, or a damaged one",
            [f"{len(data)} bytes, beginning with {data[:16]!r}", f"protobuf: {error}"],
            "check that the file is complete, and not the pointer of a large-file store",
        ) from error
    return model


def graphs(proto: onnx.GraphProto) -> list[onnx.GraphProto]:
    """A graph and the graphs nested in it."""
    found = [proto]
    for n in proto.node:
        for a in n.attribute:
            for g in (a.g,) if a.type == onnx.AttributeProto.GRAPH else a.graphs:
                found.extend(graphs(g))
    return found


def value_names(proto: onnx.GraphProto) -> set[str]:
    """Names of all values of a graph and the graphs nested in it."""
    names: set[str] = set()
    for g in graphs(proto):
        names.update(v.name for v in (*g.input, *g.output))
        names.update(t.name for t in g.initializer)
        names.update(t.values.name for t in g.sparse_initializer)
        names.update(out for n in g.node for out in n.output if out)
    return names


def _check_text(model: ModelProto, label: str) -> None:
    """Protobuf gives text that is not UTF-8 as bytes; everything after this may rely on names being text."""
    texts: list[Any] = [model.graph.name, *value_names(model.graph), *(o.domain for o in model.opset_import)]
    for g in graphs(model.graph):
        for n in g.node:
            texts += (n.name, n.op_type, n.domain, *n.input, *(a.name for a in n.attribute))
        texts += (d.dim_param for v in g.input for d in v.type.tensor_type.shape.dim)
    damaged = [t for t in texts if not isinstance(t, str)]
    if damaged:
        raise InvalidModel(f"{label}: a name in the model is not text: {damaged[0]!r}")


def _check_opsets(source: Source) -> None:
    opsets = source.opsets
    if "" not in opsets and any(not standard_domain(n.domain) for n in source.model.graph.node):
        raise InvalidModel(f"{source.label}: the model uses ops of ai.onnx but states no version of it")
    newest = max(NEWEST_OPSET, onnx.defs.onnx_opset_version())
    if not 1 <= opsets.get("", 1) <= newest:
        raise InvalidModel(
            f"{source.label}: ai.onnx {opsets['']} is not a version that this onnx package knows",
            [f"known: 1 to {newest}"],
            "export at an older opset, or install a newer onnx",
        )


def _inline(source: Source) -> ModelProto:
    """Puts function bodies in the place of calls: of the model's own functions, and of ops that renorm does not define
    but for which ONNX states a body."""
    opsets, model = source.opsets, source.model
    local = {(f.domain, f.name) for f in model.functions}
    wanted: list[tuple[str, str]] = []
    for n in model.graph.node:
        version = opsets.get(standard_domain(n.domain))
        if (n.domain, n.op_type) in local or version is None:
            continue
        if registry.find_onnx(op_key(n.domain, n.op_type), version) is None and _has_body(n, version):
            wanted.append((n.domain, n.op_type))
    try:
        if local:
            model = onnx.inliner.inline_local_functions(model, convert_version=True)
        if wanted:
            wanted = list(dict.fromkeys(wanted))
            model = onnx.inliner.inline_selected_functions(model, wanted, inline_schema_functions=True)
    except Exception as error:  # the inliner is C++ and raises RuntimeError and protobuf's own errors
        if local:
            names = ", ".join(f"{d}::{f}" for d, f in sorted(local))
            raise UnsupportedOp(
                f"{source.label}: the model's own functions cannot be inlined",
                [f"functions: {names}", f"onnx: {error}"],
                "inline them when exporting",
            ) from error
    return model


def _has_body(node: onnx.NodeProto, version: int) -> bool:
    try:
        schema = onnx.defs.get_schema(node.op_type, version, standard_domain(node.domain))
    except onnx.defs.SchemaError:
        return False
    return bool(getattr(schema, "has_function", False))
