"""The recipe of an ONNX model: in its metadata_props, as text."""

from __future__ import annotations

import os
from base64 import b64decode, b64encode
from typing import Any

import onnx
from onnx import ModelProto

from renorm.core.errors import InvalidModel
from renorm.core.limits import Limits
from renorm.frontends import recipe
from renorm.frontends.files import called
from renorm.frontends.onnx import writer
from renorm.frontends.onnx.listing import assemble, fragment, listing, load
from renorm.frontends.onnx.model import standard_domain
from renorm.graph.ir import Graph


def write(graph: Graph, path: str | os.PathLike[str], before: Any, limits: Limits) -> None:
    """Write a graph with the recipe that leads back to `before`, the model it was made of."""
    writer.write(graph, path, attach=lambda model: attach(model, before, limits))


def attach(model: ModelProto, before: Any, limits: Limits) -> None:
    """Put the recipe that leads back from `model` to `before`, of which it was made, into its metadata."""
    source = load(before, limits)
    old, new = listing(source, limits), listing(model, limits)
    change = recipe.changes(old, new)
    order = tuple((next(iter(o.results), ""), o.name) for o in old.operators)
    made = recipe.Recipe(
        fragment(change.operators, old, source), change.regions, change.constants, order, _held(source, "source")
    )
    _hold(model, made.pack())


def unfold(source: Any, path: str | os.PathLike[str], *, partial: bool, limits: Limits) -> recipe.Undone:
    """See `renorm.unfold`."""
    model = load(source, limits)
    label = called(source, model.graph.name)
    found = recipe.Recipe.unpack(_held(model, label), label)
    parts = ModelProto()
    parts.ParseFromString(found.fragment)
    _check_versions(parts, model, label)
    parsed = listing(model, limits), found, listing(parts, limits)
    back, undone, further = recipe.undo(*parsed, label, partial=partial)
    names = {made: name for made, name in found.order if made}
    made = assemble(model, back)
    for node in made.graph.node:
        if node.output and node.output[0] in names:
            node.name = names[node.output[0]]
    _hold(made, further)
    writer.save(made, path)
    return undone


def _check_versions(parts: ModelProto, model: ModelProto, label: str) -> None:
    """InvalidModel where a file was converted since to a version that defines an original operator otherwise."""
    then, now = ({standard_domain(o.domain): o.version for o in m.opset_import} for m in (parts, model))
    for node in parts.graph.node:
        domain = standard_domain(node.domain)
        old, new = (_since(node.op_type, v.get(domain), domain) for v in (then, now))
        if domain in then and old != new:
            raise InvalidModel(
                f"{label}: it follows version {now.get(domain)} of {domain or 'ai.onnx'}, and what it was made of "
                f"version {then[domain]}, where {node.op_type} is defined otherwise",
                do="convert it back, or unfold the file as renorm optimize wrote it",
            )


def _since(op_type: str, version: int | None, domain: str) -> int | None:
    """Return the version that brought the definition which an op has at a version; the version itself where ONNX has
    none."""
    if version is None or not onnx.defs.has(op_type, version, domain):
        return version
    return onnx.defs.get_schema(op_type, version, domain).since_version


def _held(model: ModelProto, label: str) -> bytes:
    text = next((p.value for p in model.metadata_props if p.key == recipe.KEY), "")
    try:
        return b64decode(text, validate=True)
    except ValueError as error:
        raise InvalidModel(f"{label}: its recipe is damaged", [str(error)]) from error


def _hold(model: ModelProto, content: bytes) -> None:
    others = [p for p in model.metadata_props if p.key != recipe.KEY]
    del model.metadata_props[:]
    model.metadata_props.extend(others)
    if content:
        model.metadata_props.add(key=recipe.KEY, value=b64encode(content).decode())
