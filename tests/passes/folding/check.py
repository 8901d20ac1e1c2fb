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
from renorm.core.dtypes import is_float, unit_roundoff
from renorm.core.errors import RenormError
from renorm.frontends import read
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.passes.pipeline import optimize
from renorm.passes.taking import VANISH
from renorm.runtime.report import Report

# relative to the largest number (see Network.largest); constants are rounded to the dtype of the network once
TOLERANCE = {"float64": 1e-9, "float32": 1e-5, "float16": 2e-2}
# Where terms cancel the network itself is as sensitive: what it gives when each of its constants is off by one rounding
# (see sensitivity), a few times over. A fold rounds each number once, but a sum has as many terms as a window.
DRAWS, MARGIN = 4, 8.0
SCALES, SHIFTS = ("batch_norm", "mul", "div"), ("add", "sub")
Array = np.ndarray[Any, Any]


@dataclass
class Found:
    """What became of a case. error: relative; sensitive: an output is off by more, and so is that of the network itself
    when it is rounded; problems: sentences, by kind: wrong, unsupported, missed, silent.
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
    return renorm.compile(model, opt_level=level).run(**net.inputs)


def verified(model: ModelProto, found: Found) -> None:
    """A rewrite that is taken back has changed numbers."""
    _, report = optimize(read(model).copy(), level=3, verify=True)
    taken_back = [reason for _, _, reason in report.refusals if reason.startswith("reverted")]
    if taken_back:
        found.problems["wrong"] = taken_back[0]


def compare(net: Network, source: Graph, results: list[Array], found: Found) -> None:
    for place, (name, expected, result) in enumerate(zip(net.outputs, net.expected(), results, strict=True)):
        far, largest = np.abs(result.astype(np.float64) - expected).max(initial=0.0), net.largest(name)
        error = float(far / largest) if far else 0.0
        if error <= TOLERANCE[net.dtype]:
            found.error = max(found.error, error)
        elif far <= MARGIN * sensitivity(source, net, place):
            found.sensitive = True
        else:
            found.error, found.problems["wrong"] = error, f"{name}: relative error {error:.2g}"


def sensitivity(source: Graph, net: Network, place: int) -> float:
    """How far an output moves when all constants of the source are off by one rounding of their dtype, or when its
    values are rounded to theirs."""
    rng, expected = np.random.default_rng(0), net.expected()[place]
    moved = [interpret.run(source, net.inputs, rounded=True)[place]]
    for _ in range(DRAWS):
        graph = source.copy()
        for v in graph.constants.values():
            if v.data is not None and is_float(v.dtype) and all(n.op.name != "resize" for n in v.users):  # its extents
                off = unit_roundoff(v.dtype) * rng.choice((-1.0, 1.0), v.data.shape)
                v.data = v.data.astype(np.float64) * (1.0 + off)  # which no dtype rounds: only the interpreter reads it
        moved.append(in_float64(graph, net.inputs)[place])
    return max(float(np.abs(m - expected).max(initial=0.0)) for m in moved)


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
