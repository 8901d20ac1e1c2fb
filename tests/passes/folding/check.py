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
from renorm.core.difference import judge
from renorm.core.errors import RenormError
from renorm.core.tolerance import Movements, tolerance
from renorm.frontends import read
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.passes.pipeline import optimize
from renorm.passes.sensitivity import Sensitivity
from renorm.passes.weight_folding import VANISH
from renorm.runtime.report import Report

LAYERS = 16  # one behind the other, at most
SCALES, SHIFTS = ("batch_norm", "mul", "div"), ("add", "sub")
Array = np.ndarray[Any, Any]


@dataclass
class Found:
    """What became of a case. error: relative; sensitive: an output is off by more than its dtype allows, and so is that
    of the network itself when it is rounded; problems: sentences, by kind: wrong, unsupported, missed, silent.
    norms, due: of the case; nodes: that scale or shift, before and after; fates, reasons: of report.norms, and why
    arithmetic stays."""

    error: float = 0.0
    sensitive: bool = False
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
        tiny = sum(said.get("scale") == "denormal" for _, said in case.steps)
        # where such a factor would leave the range of numbers that have their digits, it is not folded; of parts, the
        # reason is that of the part which could not take it
        vanish = tiny > 1 or any(VANISH in reason for _, _, reason in report.refusals)
        vanish |= case.dtype == "float16" or any(kind in ("apart", "part") for kind, _ in case.steps)
        remaining(graph, report, most, found, is_due=not (tiny and vanish))
        compare(net, source, results, found)
        if compiles:
            compare(net, source, compiled(net, model, level=1 + case.seed % 3), found)
            if not tiny:  # whose rounding is no small part
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
    return renorm.compile(model, opt_level=level).run(*net.inputs.values())


def verified(model: ModelProto, found: Found) -> None:
    """A rewrite that is taken back has changed numbers."""
    _, report = optimize(read(model).copy(), level=3, verify=True)
    taken_back = [reason for _, _, reason in report.refusals if reason.startswith("reverted")]
    if taken_back:
        found.problems["wrong"] = taken_back[0]


def compare(net: Network, source: Graph, results: list[Array], found: Found) -> None:
    """Per channel, as `core.tolerance` says of the dtype, or else of the network's own sensitivity; where that is
    infinite it excuses nothing."""
    sensitivity = Sensitivity.of(source, net.inputs)
    for i, (name, expected, result) in enumerate(zip(net.outputs, net.expected(), results, strict=True)):
        expected, movements = expected.astype(result.dtype), sensitivity.movements(i)
        judged = judge(result, expected, tolerance(net.dtype, LAYERS))
        if not judged.agrees:
            found.sensitive = True
            judged = judge(result, expected, tolerance(net.dtype, LAYERS), finite(movements))
        if not judged.agrees:
            found.problems["wrong"] = f"{name}: relative error {judged.error:.2g} at {judged.worst}"
        if not found.sensitive or found.problems:
            found.error = max(found.error, judged.error)


def finite(movements: Movements) -> Movements:
    return lambda count: [np.where(np.isfinite(m), m, 0.0) for m in movements(count)]


def remaining(graph: Graph, report: Report, most: Bound, found: Found, is_due: bool) -> None:
    """Counts what is left of norms, which is to be no more than `most` where `is_due`."""
    scales = [n for n in graph.nodes if n.op.name in SCALES]
    shifts = [n for n in graph.nodes if n.op.name in SHIFTS]
    left = Counter(r.fate for r in report.norms)
    found.fates += left
    if is_due and (len(scales) > most.scales or len(shifts) > most.adds):
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
