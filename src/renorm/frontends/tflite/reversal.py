"""The recipe of a TensorFlow Lite or Circle file: an entry of its metadata."""

from __future__ import annotations

import os
from typing import Any

from renorm.core.errors import InvalidInput
from renorm.core.limits import Limits
from renorm.frontends import recipe
from renorm.frontends.tflite import writer
from renorm.frontends.tflite.listing import fragment, listing, written
from renorm.frontends.tflite.model import Model
from renorm.frontends.tflite.reader import load
from renorm.graph.ir import Graph


def write(graph: Graph, path: str | os.PathLike[str], before: Any, limits: Limits) -> None:
    """Write a graph with the recipe that leads back to `before`, the file it was made of."""
    source = load(before, limits)
    if writer.identifier_of(path) not in (None, source.identifier):
        raise InvalidInput(f"{path}: a recipe leads back to a file of the same format", do="keep the source's suffix")
    if beyond := len(source.subgraphs) - 1:
        raise InvalidInput(f"{source.label}: it has {beyond} more subgraphs, which a recipe does not hold")
    made = Model(memoryview(writer.write(graph, identifier=source.identifier)), source.label)
    old, new = listing(source), listing(made)
    change = recipe.changes(old, new)
    order = tuple((next(iter(o.results), ""), "") for o in old.operators)
    held = dict(source.metadata).get(recipe.KEY, b"")
    parts = fragment(change.operators, old, source)
    packed = recipe.Recipe(parts, change.regions, change.constants, order, held).pack()
    writer.save(written(new, made, [*_others(made), (recipe.KEY, packed)]), path)


def unfold(source: Any, path: str | os.PathLike[str], *, partial: bool, limits: Limits) -> recipe.Undone:
    """See `renorm.unfold`."""
    model = load(source, limits)
    found = recipe.Recipe.unpack(dict(model.metadata).get(recipe.KEY, b""), model.label)
    parts = Model(memoryview(found.fragment), model.label)
    back, undone, further = recipe.undo(listing(model), found, listing(parts), model.label, partial=partial)
    entries = [(recipe.KEY, further)] if further else []
    writer.save(written(back, model, [*_others(model), *entries]), path)
    return undone


def _others(model: Model) -> list[tuple[str | None, bytes]]:
    """Entries of metadata but for the recipe."""
    return [(name, raw) for name, raw in model.metadata if name != recipe.KEY]
