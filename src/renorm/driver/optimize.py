"""renorm.optimize: the graph passes alone, from a file to a file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from renorm.core.errors import InvalidInput
from renorm.core.floating import standard_environment
from renorm.core.limits import DEFAULT, Limits
from renorm.core.stated import Stated
from renorm.core.target import Target
from renorm.driver import bounds
from renorm.driver.options import keep_names
from renorm.frontends import read, vocabulary, write, write_reversibly
from renorm.passes import pipeline, selection
from renorm.runtime.report import Report


@standard_environment()
def optimize(
    model: Any,
    path: str | os.PathLike[str],
    *,
    opt_level: int = 2,
    keep: Sequence[str] = (),
    verify: bool = False,
    passes: Sequence[str] = (),
    reversible: bool = False,
    watch: pipeline.Watch | None = None,
    shapes: Mapping[str, Sequence[Stated]] | None = None,
    inputs: Mapping[str, Any] | None = None,
    limits: Limits = DEFAULT,
) -> Report:
    """Write `model` with its norms folded to `path`, and return the report.

    The suffix of `path` names its format: .onnx, .tflite, .circle. Opset, IR version, and the names of inputs and
    outputs stay; constants become initializers; symbolic extents stay symbolic. keep, verify, limits: as in `compile`.
    passes: names of those to run, in order, instead of those of the level (`renorm optimize --list-passes`). watch:
    called after each pass with its name and the texts of the graph before and after. reversible: keeps in the file's
    metadata what `unfold` needs to restore the model. shapes, inputs: as in `compile`; what they decide is
    decided in the file. Raises as `compile` does; a file is written whole or not at
    all.
    """
    if reversible and inputs:
        raise InvalidInput(
            "a file whose inputs became constants does not lead back", do="leave out reversible, or inputs"
        )
    graph = read(model, shapes=shapes, inputs=inputs, limits=limits).copy()
    bounds.check(graph, limits)
    graph, report = pipeline.optimize(
        graph,
        level=opt_level,
        keep=keep_names(keep),
        target=Target(),
        verify=verify,
        for_export=True,
        passes=passes,
        watch=watch,
        admits=vocabulary(graph, path),
    )
    if reversible:
        write_reversibly(graph, path, model, limits)
    else:
        write(graph, path)
    return report


def passes() -> dict[str, str]:
    """Return what `optimize(passes=)` takes: names, and what each does. A rule that exists once per op stands there
    once."""
    found: dict[str, str] = {}
    for name, one in selection.named([one for _, one in pipeline.MODEL]).items():
        found.setdefault(name.partition("(")[0], selection.algebra(one))
    return found
