"""The recipe of a TensorFlow Lite or Circle file: an entry of its metadata."""

from __future__ import annotations

import os
from typing import Any

from renorm.core.errors import InvalidInput
from renorm.core.limits import Limits
from renorm.frontends import recipe
from renorm.frontends.tflite import writer
from renorm.frontends.tflite.flatbuffer import decode
from renorm.frontends.tflite.listing import assemble, fragment, listing, metadata_of
from renorm.frontends.tflite.reader import content
from renorm.graph.ir import Graph


def write(graph: Graph, path: str | os.PathLike[str], before: Any, limits: Limits) -> None:
    """Writes a graph with the recipe that leads back to `before`, the file it was made of."""
    source, label = content(before, False, limits)
    identifier, model = decode(source, label)
    written = memoryview(writer.write(graph, identifier=identifier))
    if writer.identifier_of(path) not in (None, identifier):
        raise InvalidInput(f"{path}: a recipe leads back to a file of the same format", do="keep the source's suffix")
    _, made = decode(written, label)
    old, new = listing(source, label), listing(written, label)
    change = recipe.changes(old, new)
    order = tuple((next(iter(o.results), ""), "") for o in old.operators)
    held = metadata_of(model).get(recipe.KEY, b"")
    parts = fragment(identifier, model, change.operators, old, label)
    packed = recipe.Recipe(parts, change.regions, change.constants, order, held).pack()
    metadata = {**metadata_of(made), recipe.KEY: packed}
    writer.save(assemble(identifier, made, new, label, metadata), path)


def unfold(source: Any, path: str | os.PathLike[str], *, partial: bool, limits: Limits) -> recipe.Undone:
    """See `renorm.unfold`."""
    what = os.path.basename(os.fspath(source)) if isinstance(source, (str, os.PathLike)) else "the model"
    with recipe.unfolding(what):
        data, label = content(source, False, limits)
        identifier, model = decode(data, label)
        limits.check(label, [("nodes", len(model.items("subgraphs")[0].items("operators")), "")])
        metadata = metadata_of(model)
        if recipe.KEY not in metadata:
            raise recipe.missing(label)
        found = recipe.Recipe.unpack(metadata[recipe.KEY], label)
        back, undone, further = recipe.undo(listing(data, label), found, listing(memoryview(found.fragment), label))
        if undone.left and not partial:
            raise recipe.refusal(label, undone)
        del metadata[recipe.KEY]
        metadata |= {recipe.KEY: further} if further else {}
        writer.save(assemble(identifier, model, back, label, metadata), path)
        return undone
