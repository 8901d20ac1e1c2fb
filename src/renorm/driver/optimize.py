"""renorm.optimize: the graph passes alone, from a file to a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from renorm.core.target import Target
from renorm.driver.compile import keep_names
from renorm.frontends import read, write
from renorm.passes import pipeline
from renorm.runtime.report import Report


def optimize(
    model: Any, path: str | os.PathLike[str], *, opt_level: int = 2, keep: Sequence[str] = (), verify: bool = False
) -> Report:
    """Writes `model` with its norms folded to `path`, and gives the report.

    The suffix of `path` names its format: .onnx, .tflite, .circle. Opset, IR version, and the names of inputs and
    outputs stay; constants become initializers; symbolic extents stay symbolic. keep, verify: as in `compile`. Raises
    as `compile` does; a file is written whole or not at all.
    """
    graph = read(model).copy()
    graph, report = pipeline.optimize(
        graph, level=opt_level, keep=keep_names(keep), target=Target(), verify=verify, for_export=True
    )
    write(graph, path)
    return report
