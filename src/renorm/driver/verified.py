"""Compiled code held against the interpreter: what passes annotate, no interpreter of graphs can see.

Layouts, places in memory and fusion change no node; whether kernels keep to them shows when they run. Where results
differ these passes are left out, one more each time, until they do not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from renorm.core import dtypes
from renorm.core.errors import VerificationError
from renorm.driver.module import CompiledModule
from renorm.graph.ir import Graph
from renorm.passes.probe import budget, distance, drawn

Array = np.ndarray[Any, Any]

UNSEEN = ("ChooseLayouts", "place", "Fuse")  # in the order in which they are left out
MARGIN = 100  # budgets of one rewrite: ten times what a network may cost, for those that magnify rounding


def verified(source: Graph, make: Callable[[tuple[str, ...]], CompiledModule]) -> CompiledModule:
    """What `make` compiles without the passes that it is given: as few as give the results of `source`, which has fixed
    shapes. Those that were left out stand among the report's refusals. Integers that are computed from floating values
    are not compared: rounding may decide them. Nor is what external code takes part in, which may have a number format
    of its own.

    Raises VerificationError where the results of every one differ.
    """
    inputs, values = drawn(source)
    expected = [values[v] for v in source.outputs]
    first, without = "", tuple[str, ...]()
    while True:
        module = make(without)
        if module.program.externals:
            return module
        reason = _difference(module.evaluate([*inputs.values()]), expected, source)
        if reason is None:
            break
        first = first or reason
        if len(without) == len(UNSEEN):
            raise VerificationError(
                f"{source.name}: compiled, it gives other results than the interpreter",
                [first, f"also without {', '.join(UNSEEN)}"],
                "report this with the model; `renorm check MODEL` names the first node that differs",
            )
        without = UNSEEN[: len(without) + 1]
    if without:
        report = module.program.report
        told = (without[-1], source.name, f"reverted: compiled, {first}")
        module.program = replace(module.program, report=replace(report, refusals=(*report.refusals, told)))
    return module


def _difference(found: Sequence[Array], expected: Sequence[Array], source: Graph) -> str | None:
    for v, ours, theirs in zip(source.outputs, found, expected, strict=True):
        error = distance(ours, theirs, v.dtype) if dtypes.is_float(v.dtype) else 0.0
        if error > MARGIN * budget(v.dtype):
            return f"on random inputs output {v.name!r} differs by {error:.2g} of its largest element"
    return None
