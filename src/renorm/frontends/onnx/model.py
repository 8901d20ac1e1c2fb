"""From a file to a checked ModelProto: what every later step may rely on.

Promises: the bytes parse, the model has a graph, opset versions are known or assumed, functions are inlined. The onnx
package, where it is installed, is loaded for what it alone knows: bodies of functions, and definitions newer than
renorm's.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from renorm.core.errors import InvalidModel, UnsupportedOp
from renorm.core.limits import DEFAULT, Limits
from renorm.frontends.files import Buffer, content
from renorm.frontends.onnx import bounds, wire
from renorm.frontends.onnx.library import INSTALL, required
from renorm.frontends.onnx.messages import GraphProto, ModelProto, NodeProto, graphs, inner_graphs, topological
from renorm.graph import registry

NEWEST_OPSET = 28  # definitions of ai.onnx up to this one have been compared with the ops that claim them
BUILT_IN = frozenset(  # ops of ai.onnx that the reader itself understands
    {
        *("Constant", "If", "Loop", "Scan", "ConcatFromSequence", "SplitToSequence"),
        *("Optional", "OptionalGetElement", "OptionalHasElement", "SequenceAt", "SequenceConstruct", "SequenceEmpty"),
        *("SequenceErase", "SequenceInsert", "SequenceLength", "SequenceMap"),
    }
)


@dataclass(frozen=True)
class Source:
    """A model and where it came from: an onnx.ModelProto, or one of ours, which has its fields. label: how errors call
    it. file: it was read from, None in memory. content: what the model was read from, None where it was given
    as an object. unstated: versions of domains that nodes use and the model does not state."""

    model: ModelProto
    label: str
    file: Path | None
    content: Buffer | None
    unstated: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def opsets(self) -> dict[str, int]:
        """Version by domain, stated or assumed; the domain ai.onnx is written ""."""
        stated = {standard_domain(o.domain): o.version for o in self.model.opset_import}
        return self.unstated | ({"": 1, **stated} if self.model.ir_version < 3 else stated)

    @property
    def assumed(self) -> list[str]:
        """Return a sentence for each version that is assumed."""
        return [
            f"the model states no version of {domain or 'ai.onnx'}: {version} is assumed, the newest that renorm knows"
            for domain, version in self.unstated.items()
        ]

    def proto(self) -> Any:
        """Return the model as an onnx.ModelProto. Raises what protobuf raises."""
        import onnx

        is_ours = isinstance(self.model, ModelProto)
        if not is_ours and not self.unstated:
            return self.model
        held = self.model.SerializeToString() if not is_ours else b"" if self.content is None else self.content[:]
        proto = onnx.ModelProto.FromString(held)
        for domain, version in self.unstated.items():
            proto.opset_import.add(domain=domain, version=version)
        return proto


def standard_domain(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def op_key(domain: str, op_type: str) -> str:
    """Return the name under which the registry knows an ONNX op: `Conv`, `com.acme::Foo`."""
    domain = standard_domain(domain)
    return f"{domain}::{op_type}" if domain else op_type


def is_newer(node: NodeProto, opset: int) -> bool:
    """Return whether a node follows a definition that is newer than those renorm's ops were compared with."""
    if standard_domain(node.domain) or opset <= NEWEST_OPSET:
        return False
    import onnx

    if not onnx.defs.has(node.op_type, opset):
        return False
    return onnx.defs.get_schema(node.op_type, opset).since_version > NEWEST_OPSET


def load(source: Any, limits: Limits = DEFAULT) -> Source:
    """Read a path, bytes, or an onnx.ModelProto. Raises InvalidModel for what is not an ONNX model, LimitExceeded."""
    found = _source(source, limits)
    model, label = found.model, found.label
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise InvalidModel(
            f"{label}: this is not an ONNX model",
            ["it has no graph"],
            "check that the file is complete, and not the pointer of a large-file store",
        )
    bounds.check(model, label, limits)
    _check_text(model, label)
    found = _with_versions(found)
    _check_opsets(found)
    return _inlined(found)


def _source(source: Any, limits: Limits) -> Source:
    if isinstance(source, (str, os.PathLike)):
        path = Path(os.fspath(source))
        return _parsed(content(path, limits), path.name, path)
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _parsed(bytes(source), "bytes", None)
    return Source(source, source.graph.name or "onnx.ModelProto", None, None)


def _parsed(content: Buffer, label: str, file: Path | None) -> Source:
    try:
        return Source(ModelProto.read(content), label, file, content)
    except wire.DamagedError as error:
        raise InvalidModel(
            f"{label}: this is not an ONNX model, or a damaged one",
            [f"{len(content)} bytes, beginning with {content[:16]!r}", str(error)],
            "check that the file is complete, and not the pointer of a large-file store",
        ) from error


def value_names(proto: GraphProto) -> set[str]:
    """Return names of all values of a graph and the graphs nested in it."""
    names: set[str] = set()
    for g in graphs(proto):
        names.update(v.name for v in (*g.input, *g.output))
        names.update(t.name for t in g.initializer)
        names.update(t.values.name for t in g.sparse_initializer)
        names.update(out for n in g.node for out in n.output if out)
    return names


def _check_text(model: ModelProto, label: str) -> None:
    """Text that is not UTF-8 comes as bytes; everything after this may rely on names being text."""
    texts: list[Any] = [model.graph.name, *value_names(model.graph), *(o.domain for o in model.opset_import)]
    for g in graphs(model.graph):
        for n in g.node:
            texts += (n.name, n.op_type, n.domain, *n.input, *(a.name for a in n.attribute))
        texts += (d.dim_param for v in g.input for d in v.type.tensor_type.shape.dim)
    damaged = [t for t in texts if not isinstance(t, str)]
    if damaged:
        raise InvalidModel(f"{label}: a name in the model is not text: {damaged[0]!r}")


def _with_versions(source: Source) -> Source:
    """Return a model with the newest version of each domain that it uses and does not state, as ONNX Runtime has it."""
    used = dict.fromkeys(standard_domain(n.domain) for g in graphs(source.model.graph) for n in g.node)
    stated = source.opsets
    newest = {d: registry.newest_onnx(d) if d else NEWEST_OPSET for d in used if d not in stated}
    return replace(source, unstated=source.unstated | newest)


def _check_opsets(source: Source) -> None:
    opsets = source.opsets
    if 1 <= opsets.get("", 1) <= NEWEST_OPSET:
        return
    newest, does = NEWEST_OPSET, INSTALL
    with suppress(ModuleNotFoundError):
        import onnx

        newest, does = max(NEWEST_OPSET, onnx.defs.onnx_opset_version()), "install a newer onnx"
    if not 1 <= opsets[""] <= newest:
        raise InvalidModel(
            f"{source.label}: ai.onnx {opsets['']} is not a version that renorm, or the onnx package, knows",
            [f"known: 1 to {newest}"],
            f"export at an older opset, or {does}",
        )


def _inlined(source: Source) -> Source:
    """Put bodies of the model's own functions in the place of calls."""
    local = {(f.domain, f.name) for f in source.model.functions}
    if not local:
        return source
    with required(f"{source.label}: a model with functions of its own"):
        import onnx.inliner

    try:
        model = _with_defaults(_with_sorted_bodies(source.proto()))
        model = onnx.inliner.inline_local_functions(model, convert_version=True)
    except Exception as error:  # the inliner is C++ and raises RuntimeError and protobuf's own errors
        names = ", ".join(sorted(f"{d}::{f}" for d, f in local))  # some of which are bytes, which are no text
        raise UnsupportedOp(
            f"{source.label}: the model's own functions cannot be inlined",
            [f"functions: {names}", f"onnx: {error}"],
            "inline them when exporting",
        ) from error
    return _with_versions(replace(source, model=model))


def _with_sorted_bodies(model: Any) -> Any:
    """Return a model with bodies of functions in an order in which they can be computed, as the inliner needs them."""
    orders = [topological(f.node)[0] for f in model.functions]
    if all(order == sorted(order) for order in orders):
        return model
    copied = type(model)()
    copied.CopyFrom(model)
    for own, f, order in zip(copied.functions, model.functions, orders):
        del own.node[:]
        own.node.extend(f.node[place] for place in order)
    return copied


def _with_defaults(model: Any) -> Any:
    """Return a model whose calls of its functions state all attributes that have a default, which the inliner drops."""
    defaults = {_called(f, f.name): f.attribute_proto for f in model.functions if f.attribute_proto}
    if not defaults:
        return model
    copied = type(model)()
    copied.CopyFrom(model)
    for nodes in (copied.graph.node, *(f.node for f in copied.functions)):
        within: list[Any] = [g.node for n in nodes for a in n.attribute for top in inner_graphs(a) for g in graphs(top)]
        for n in (n for held in (nodes, *within) for n in held):
            stated = {a.name for a in n.attribute}
            n.attribute.extend(a for a in defaults.get(_called(n, n.op_type), ()) if a.name not in stated)
    return copied


def _called(named: Any, name: str) -> tuple[str, str, str]:
    return standard_domain(named.domain), name, named.overload
