"""What renorm makes of a case: numbers beside float64, norms that are gone, and reasons for those that are not."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto
from tests.passes.folding.cases import Case
from tests.passes.folding.network import Network
from tests.passes.folding.verdict import Bound

import renorm
from renorm.core.errors import RenormError
from renorm.frontends import read
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.passes.pipeline import optimize
from renorm.runtime.report import Report

# relative to the largest number (see Network.largest); constants are rounded to the dtype of the network once
TOLERANCE = {"float64": 1e-9, "float32": 1e-5, "float16": 2e-2}
SCALES, SHIFTS = ("batch_norm", "mul", "div"), ("add", "sub")
Array = np.ndarray[Any, Any]


@dataclass
class Found:
    """What became of a case. error: relative; problems: sentences, by kind: wrong, unsupported, missed, silent.
    norms, due: of the case; nodes: that scale or shift, before and after; fates, reasons: of report.norms, and why
    arithmetic stays."""

    error: float = 0.0
    problems: dict[str, str] = field(default_factory=dict[str, str])
    norms: int = 0
    due: int = 0
    nodes: tuple[int, int] = (0, 0)
    fates: Counter[str] = field(default_factory=Counter[str])
    reasons: Counter[str] = field(default_factory=Counter[str])


def check(case: Case, compiles: bool = False) -> Found:
    """Optimizes a case; where asked, compiles it, at a level from 1 to 3 by its seed, and verifies each rewrite."""
    net, most = case.build()
    found = Found(norms=most.norms, due=most.due)
    try:
        model = net.model()
        source = read(model)
        graph, report = optimize(source.copy(), level=2, for_export=True)
        found.nodes = arithmetic(source), arithmetic(graph)
        results = in_float64(graph, net.inputs)
        remaining(graph, report, most, found)
        compare(net, results, found)
        if compiles:
            compare(net, compiled(net, model, level=1 + case.seed % 3), found)
            if not any(said.get("scale") == "denormal" for _, said in case.steps):  # whose rounding is no small part
                verified(model, found)
    except RenormError as error:
        found.problems["unsupported"] = str(error)
    return found


def arithmetic(graph: Graph) -> int:
    """Nodes that scale or shift."""
    return sum(n.op.name in (*SCALES, *SHIFTS) for n in graph.nodes)


def in_float64(graph: Graph, inputs: dict[str, Array]) -> list[Array]:
    """The outputs before they are rounded to their dtype."""
    values = interpret.evaluate(graph, inputs)
    return [values[v] for v in graph.outputs]


def compiled(net: Network, model: ModelProto, level: int) -> list[Array]:
    return renorm.compile(model, opt_level=level).run(**net.inputs)


def verified(model: ModelProto, found: Found) -> None:
    """A rewrite that is taken back has changed numbers."""
    _, report = optimize(read(model).copy(), level=3, verify=True)
    taken_back = [reason for _, _, reason in report.refusals if reason.startswith("reverted")]
    if taken_back:
        found.problems["wrong"] = taken_back[0]


def compare(net: Network, results: list[Array], found: Found) -> None:
    floor = float(np.finfo(net.dtype).tiny) / TOLERANCE[net.dtype]  # below, a number has no such digits by itself
    for name, expected, result in zip(net.outputs, net.expected(), results, strict=True):
        error = np.abs(result.astype(np.float64) - expected).max(initial=0.0) / max(net.largest(name), floor)
        found.error = max(found.error, float(error))
        if not error <= TOLERANCE[net.dtype]:
            found.problems["wrong"] = f"{name}: relative error {error:.2g}"


def remaining(graph: Graph, report: Report, most: Bound, found: Found) -> None:
    """Counts what is left of norms."""
    scales = [n for n in graph.nodes if n.op.name in SCALES]
    shifts = [n for n in graph.nodes if n.op.name in SHIFTS]
    left = Counter(r.fate for r in report.norms)
    found.fates += left
    if len(scales) > most.scales or len(shifts) > most.adds:
        reasons = [r.reason for r in report.norms if r.fate != "folded"] + [reason for _, _, reason in report.refusals]
        found.problems["missed"] = (
            f"{', '.join(f'{n.op.name} {n.name!r}' for n in (*scales, *shifts))} remain, at most {most.scales} "
            f"multiplications and {most.adds} additions should: {'; '.join(dict.fromkeys(reasons))}"
        )
    for r in report.norms:
        if r.fate != "folded":
            found.reasons[general(r.reason)] += 1
            if not r.reason:
                found.problems["silent"] = f"norm {r.name!r} is {r.fate} without a reason"
    said = {node: reason for _, node, reason in report.refusals}
    for n in scales:
        if n.op.name != "batch_norm" and n.name in said:
            found.reasons[general(said[n.name])] += 1


def general(reason: str) -> str:
    """A reason without names and numbers."""
    return re.sub(r"\d[\d.e+-]*", "#", re.sub(r"'[^']*'", "..", reason))
