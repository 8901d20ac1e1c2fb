"""Take one file of a network through renorm, and compare it with ONNX Runtime on fresh random inputs."""

# onnxruntime has no stubs
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import torch

import renorm
from benchmarks.coverage.export import export, quantized
from benchmarks.coverage.network import Array, Built, Row, tensors, trained
from benchmarks.coverage.page import is_right
from benchmarks.outcome import TOLERANCE, Outcome
from renorm.core.errors import RenormError

NAME = r"'[^']*'|\S*/\S*"  # of a node


@dataclass
class Case(Outcome):
    """Hold how one file fared. said: why it is refused or wrong, or why it could not be made, as stage says. ort: the
    largest difference of ONNX Runtime from PyTorch in float64, where renorm departs from ONNX Runtime; own: renorm's.
    ops: of the file. reasons: of norms that are not folded, why, how many each. steps: the largest difference of an
    output of 8 bits, in its steps."""

    task: str = ""
    exporter: str = ""
    form: str = "float"
    opens: tuple[str, ...] = ()
    stage: str = "build"
    ort: float = float("nan")
    own: float = float("nan")
    steps: float = float("nan")
    nodes: int = 0
    ops: list[str] = field(default_factory=list[str])
    reasons: dict[str, int] = field(default_factory=dict[str, int])

    @property
    def is_right(self) -> bool:
        return is_right(asdict(self))


def measured(package: str, row: Row, form: str, build: Any, folder: Path) -> Case:
    """Return what became of a network in a form; never raises."""
    case = Case(package, row.name, task=row.task, exporter=row.exporter, form=form, opens=row.opens)
    try:
        torch.manual_seed(0)
        built: Built = build(row)
        trained(built)
        draws = built.fresh(row.opens)
        case.stage = "export"
        path = folder / "float.onnx"
        export(row, built, path)
        if form != "float":
            case.stage = "quantize"
            source, path = path, folder / "form.onnx"
            quantized(form, source, draws, path)
        _taken(case, path, built, draws)
    except RenormError as error:
        case.said = str(error)
    except Exception as error:  # of the package, an exporter or ONNX Runtime
        case.said = f"{type(error).__name__}: {error}"[:1500]
    return case


def _taken(case: Case, path: Path, built: Built, draws: Sequence[dict[str, Array]]) -> None:
    graph = onnx.load(path).graph
    nodes = graph.node
    case.nodes, case.ops = len(nodes), sorted({n.op_type for n in nodes})
    case.stage = "ONNX Runtime"
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    if case.form != "float":  # what the file says, node by node
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    kept = {i.name for i in session.get_inputs()}
    draws = [{name: x for name, x in draw.items() if name in kept} for draw in draws]
    wanted: list[Any] = [session.run(None, draw) for draw in draws]
    case.stage = "compile"
    t0 = time.perf_counter()
    m: Any = renorm.compile(path, threads=1)
    stages = {stage: round(s, 2) for stage, s in m.report.seconds.items()}
    case.seconds = {"compile": round(time.perf_counter() - t0, 2), **stages}
    case.compiled(m.report)
    case.reasons = dict(
        Counter(f"{n.kind}: {re.sub(NAME, '…', n.reason)}" for n in m.report.norms if n.fate != "folded")
    )
    case.stage = "run"
    found = [m.run(**draw) if all(n.isidentifier() for n in draw) else m.run(*draw.values()) for draw in draws]
    case.stage = "compare"
    case.error = max(largest(f, w) for f, w in zip(found, wanted))
    case.steps = max((_steps(graph, f, w) for f, w in zip(found, wanted)), default=float("nan"))
    if case.form == "float" and not case.error <= TOLERANCE:
        case.ort, case.own = _from_float64(built, draws, wanted, found)
    case.stage = "done"


def largest(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    """Return the largest difference, of the largest output; infinity where shapes differ."""
    worst = 0.0
    for a, b in zip(found, wanted, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        if a.shape != b.shape:
            return float("inf")
        if not b.size:
            continue
        a, b = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(b)
        if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            return float("inf")
        if finite.any():
            error = float(np.abs(a[finite] - b[finite]).max() / max(np.abs(b[finite]).max(), 1e-30))
            worst = max(worst, error if error == error else float("inf"))
    return worst


def _steps(graph: onnx.GraphProto, found: Sequence[Any], wanted: Sequence[Any]) -> float:
    """Return the largest difference of the outputs that are of 8 bits, in steps; not a number where none is."""
    held = {t.name: onnx.numpy_helper.to_array(t) for t in graph.initializer}
    made = {n.output[0]: n for n in graph.node if n.op_type == "DequantizeLinear"}
    steps = [
        np.abs(np.asarray(a, np.float64) - b).max() / float(held[made[o.name].input[1]].min())
        for o, a, b in zip(graph.output, found, wanted)
        if o.name in made and b.size and np.shape(a) == b.shape
    ]
    return float(max(steps, default=float("nan")))


def _from_float64(
    built: Built, draws: Sequence[dict[str, Array]], wanted: list[Any], found: list[Any]
) -> tuple[float, float]:
    """Return the largest differences of ONNX Runtime and of renorm from PyTorch in float64."""
    net, ort_error, own_error = built.module.double(), 0.0, 0.0
    for draw, theirs, ours in zip(draws, wanted, found):
        given = [torch.from_numpy(draw[g.name]) for g in built.given]
        with torch.no_grad():
            exact = [t.numpy() for t in tensors(net(*(x.double() if x.is_floating_point() else x for x in given)))]
        ort_error, own_error = max(ort_error, largest(theirs, exact)), max(own_error, largest(ours, exact))
    return ort_error, own_error
