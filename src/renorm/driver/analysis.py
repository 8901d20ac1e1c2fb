"""Compiling without generating code: the graph after the passes, and the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from renorm import targets
from renorm.core.dims import fixed_extents
from renorm.core.limits import DEFAULT, Limits
from renorm.core.target import Target
from renorm.driver.compile import Options, keep_names, optimized
from renorm.frontends import read
from renorm.graph.ir import Graph
from renorm.runtime.report import Report


def analyze(
    model: Any,
    *,
    target: str | Target = "llvm",
    opt_level: int = 3,
    shapes: Mapping[str, Sequence[int]] | None = None,
    keep: Sequence[str] = (),
    verify: bool = False,
    precision: str = "fast",
    limits: Limits = DEFAULT,
) -> tuple[Graph, Report]:
    """The graph after the passes, cut into kernels, and the report as `compile` gives it but for memory and times.

    Extents that `shapes` does not fix stay symbolic. Arguments and errors are those of `compile`.
    """
    source = read(model, limits=limits)
    options = Options(targets.find(target), opt_level, keep_names(keep), verify, precision=precision, limits=limits)
    return optimized(source, fixed_extents(source.inputs, shapes or {}, source.name), options)
