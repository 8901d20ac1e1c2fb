"""Random graphs of linear ops and norms, optimized by renorm and by other graph optimizers: how many each gets right,
and how many of the nodes that scale or shift it takes away.

Cases are those of scripts/fuzz_folds, in float32. A result is right where every output is within 1e-4 of float64,
relative to the largest number: optimized models are evaluated in float64 by renorm's interpreter, ONNX Runtime's by
itself.
"""

# the optimizers are installed for this alone
# pyright: reportMissingImports=false

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto
from tests.passes.folding.cases import numbered
from tests.passes.folding.network import Network

from benchmarks.machine import commit, now
from renorm.frontends import read, write
from renorm.graph import interpret
from renorm.graph.ir import Graph
from renorm.passes.pipeline import optimize

TOLERANCE = 1e-4
NORMS = ("BatchNormalization", "InstanceNormalization", "Mul", "Div", "Add", "Sub")
Outputs = list[np.ndarray[Any, Any]]


@dataclass
class Score:
    """The score of an optimizer over cases. nodes: that scale or shift, in cases that it got right; removed: of
    these."""

    name: str
    version: str = ""
    right: int = 0
    wrong: int = 0
    unsupported: int = 0
    nodes: int = 0
    removed: int = 0
    bigger: int = 0


def interpreted(model: ModelProto | Graph, net: Network) -> Outputs:
    graph = read(model)
    values = interpret.evaluate(graph, net.inputs)
    return [values[v] for v in graph.outputs]


def by_renorm(net: Network, model: ModelProto) -> tuple[ModelProto, Outputs]:
    graph, _ = optimize(read(model).copy(), level=2, for_export=True)
    return written(graph), interpreted(graph, net)


def written(graph: Graph) -> ModelProto:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "optimized.onnx"
        write(graph, path)
        return onnx.load(path)


def by_onnxruntime(net: Network, model: ModelProto) -> tuple[ModelProto, Outputs]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    with tempfile.TemporaryDirectory() as folder:
        options.optimized_model_filepath = f"{folder}/optimized.onnx"
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return onnx.load(options.optimized_model_filepath), [
            np.asarray(a) for a in session.run(net.outputs, net.inputs)
        ]


def by_onnxscript(net: Network, model: ModelProto) -> tuple[ModelProto, Outputs]:
    import onnxscript.optimizer
    from onnxscript import rewriter

    made = rewriter.rewrite(onnxscript.optimizer.optimize(model))
    return made, interpreted(made, net)


def by_onnxslim(net: Network, model: ModelProto) -> tuple[ModelProto, Outputs]:
    import onnxslim

    made = onnxslim.slim(model)
    return made, interpreted(made, net)


def by_onnxsim(net: Network, model: ModelProto) -> tuple[ModelProto, Outputs]:
    import onnxsim

    made, _ = onnxsim.simplify(model)
    return made, interpreted(made, net)


def by_openvino(net: Network, model: ModelProto) -> tuple[ModelProto, Outputs]:
    import openvino

    core = openvino.Core()
    exact = {"INFERENCE_PRECISION_HINT": "f32"}
    made = core.compile_model(core.read_model(model.SerializeToString()), "CPU", exact)
    outputs = made(net.inputs)
    apart = set[str]()  # nodes that a kernel other than of a linear op computes
    for step in made.get_runtime_model().get_ops():
        told = step.get_rt_info()
        if told["layerType"].astype(str) not in ("Convolution", "Deconvolution", "FullyConnected", "MatMul", "Const"):
            apart |= set(told["originalLayersNames"].astype(str).split(","))
    left = ModelProto()
    left.CopyFrom(model)
    kept = [n for n in model.graph.node if apart & {n.name, *n.output}]
    del left.graph.node[:]
    left.graph.node.extend(kept)
    return left, [outputs[name] for name in net.outputs]


OPTIMIZERS: dict[str, Callable[[Network, ModelProto], tuple[ModelProto, Outputs]]] = {
    "renorm": by_renorm,
    "onnxruntime": by_onnxruntime,
    "openvino": by_openvino,
    "onnxscript": by_onnxscript,
    "onnxslim": by_onnxslim,
    "onnxsim": by_onnxsim,
}


def norms(model: ModelProto) -> int:
    return sum(n.op_type in NORMS for n in model.graph.node)


def is_close(result: Any, expected: Any, largest: float) -> bool:
    if np.shape(result) != np.shape(expected):
        return False
    return bool(np.abs(np.asarray(result, np.float64) - expected).max(initial=0.0) <= TOLERANCE * max(largest, 1e-30))


def judge(name: str, number: int) -> dict[str, int]:
    """Return the score of one case, to be added."""
    net, _ = numbered(number).build()
    model = net.model()
    before = norms(model)
    try:
        made, outputs = OPTIMIZERS[name](net, model)
    except ModuleNotFoundError:
        raise
    except Exception:  # whatever it raises, it gives no result
        return {"unsupported": 1}
    if not all(map(is_close, outputs, net.expected(), map(net.largest, net.outputs))):
        return {"wrong": 1}
    after = norms(made)
    return {"right": 1, "nodes": before, "removed": max(0, before - after), "bigger": int(after > before)}


def measure(name: str, numbers: list[int]) -> Score:
    """One optimizer over cases, in a process of its own, which may die."""
    score, pool = Score(name, "" if name == "renorm" else version(name)), ProcessPoolExecutor(1)
    for number in numbers:
        try:
            found = pool.submit(judge, name, number).result()
        except BrokenProcessPool:
            found, pool = {"unsupported": 1}, ProcessPoolExecutor(1)
        for key, value in found.items():
            setattr(score, key, getattr(score, key) + value)
    pool.shutdown()
    return score


def run(cases: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Scores of all optimizers that are installed, as they are kept in a file of results."""
    numbers = list(islice((n for n in count() if numbered(n).dtype == "float32"), cases))
    scores = list[dict[str, Any]]()
    for name in OPTIMIZERS:
        try:
            score = measure(name, numbers)
        except (ModuleNotFoundError, PackageNotFoundError):
            say(f"{name} is left out: it is not installed")
            continue
        scores.append(asdict(score))
        say(f"{name}: right {score.right}, wrong {score.wrong}, unsupported {score.unsupported}, "
            f"{score.removed} of {score.nodes} nodes that scale or shift are gone")  # fmt: skip
    return {"when": now(), "commit": commit(), "cases": cases, "folds": scores}


def save(found: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(found, indent=1) + "\n")
