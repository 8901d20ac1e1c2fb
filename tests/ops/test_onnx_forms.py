"""Every op in ONNX's terms: written at several opsets, read back, and run by ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
from tests.frontends import onnx_runtime
from tests.ops.one_node import OneNode

import renorm.ops  # noqa: F401  registers every op
from renorm import frontends
from renorm.core import dtypes
from renorm.core.conversion import limits
from renorm.core.errors import UnsupportedOp
from renorm.frontends.onnx.provenance import KEY, Provenance
from renorm.frontends.onnx.writer import write
from renorm.graph import interpret, registry
from renorm.graph.op import OpDef, Sample

# ONNX defines it by other nodes, and its own shape inference does not get through those for all types and ranks
UNCHECKED = {"mean_variance_norm"}
OPS = [
    op for op in registry.all_ops() if op.__module__.startswith("renorm.ops") and op.onnx and op.name not in UNCHECKED
]
CASES = [pytest.param(op, s, id=f"{op.name}-{i}") for op in OPS for i, s in enumerate(op.samples)]
OPSETS = (7, 9, 11, 13, 18, 21)
NEWEST_OF_RUNTIME = 21


def has_nan(case: OneNode) -> bool:
    return any(np.isnan(a).any() for a in case.arrays if a.dtype.kind == "f")


def is_ill_conditioned(case: OneNode) -> bool:
    """Values far from zero, beside which their variance is small; one value per slice; or few digits."""
    is_single = case.op.name == "instance_norm" and case.arrays[0][0, 0].size == 1 if case.arrays[0].size else False
    return is_single or any(a.dtype == np.float16 or np.abs(a).max(initial=0.0) > 50 for a in case.arrays)


def is_double(case: OneNode) -> bool:
    return any(a.dtype == np.float64 for a in case.arrays)


def is_beyond_integers(case: OneNode) -> bool:
    (a,), (v,) = case.arrays, case.graph.outputs
    if a.dtype.kind not in "fV" or not dtypes.is_int(v.dtype):
        return False
    low, high = limits(v.dtype)
    wide = a.astype(np.float64)
    return not bool(((wide >= low) & (wide < high)).all())


def is_power_beyond_integers(case: OneNode) -> bool:
    a, b = case.arrays
    if any(x.dtype.kind not in "iu" for x in (a, b)):
        return False
    with np.errstate(all="ignore"):
        wide = np.abs(a.astype(np.float64)) ** b.astype(np.float64)
    return bool((wide > limits(case.graph.outputs[0].dtype)[1]).any())


def is_resize_of_integers(case: OneNode) -> bool:
    """Means of integers, and a number that stands outside."""
    values = case.graph.nodes[0].op.values
    is_made = values["mode"] != "nearest" or values["coordinate_transformation_mode"] == "tf_crop_and_resize"
    return is_made and case.arrays[0].dtype.kind in "iu"


def is_of_both_signs(case: OneNode) -> bool:
    return onnx_runtime.SATURATES and {np.dtype(np.uint8), np.dtype(np.int8)} <= {a.dtype for a in case.arrays}


def has_a_sequence_of_no_steps(case: OneNode) -> bool:
    return any(a.dtype.kind == "i" and not a.all() for a in case.arrays)


MAXIMA = {"arg_max", "arg_min", "global_max_pool", "max_pool", "reduce_max", "reduce_min"}
NORMS = {"batch_norm", "instance_norm", "layer_norm", "group_norm", "rms_norm"}
INTEGER = {"conv_integer", "matmul_integer", "qlinear_conv", "qlinear_matmul"}
# ops, for which of their samples, and in what ONNX Runtime differs
DIFFERENT: list[tuple[set[str], Callable[[OneNode], bool], str]] = [
    (
        MAXIMA | {"hardmax", "scatter_elements", "scatter_nd", "thresholded_relu"},
        has_nan,
        "gives a number where an operand is NaN",
    ),
    (NORMS, is_ill_conditioned, "loses the digits of a small variance"),
    ({"shrink"}, is_double, "computes with float32"),
    ({"reduce_mean"}, lambda case: any(a.size == 0 for a in case.arrays), "gives 0 for the mean of nothing"),
    ({"gru", "lstm", "rnn"}, lambda case: any(a.size == 0 for a in case.arrays), "ends the process"),
    ({"gru", "lstm", "rnn"}, has_a_sequence_of_no_steps, "gives 0, not the state that it begins with"),
    ({"random_normal_like", "random_uniform_like"}, lambda case: True, "draws others"),
    ({"cast"}, lambda case: dtypes.is_stored(case.graph.outputs[0].dtype), "hands out bytes"),
    ({"resize"}, is_resize_of_integers, "drops fractions of integers, and wraps what stands outside"),
    (INTEGER, is_of_both_signs, "cuts sums of two products to 16 bits where the CPU has no VNNI"),
    ({"pow"}, is_power_beyond_integers, "gives what the processor does of floats, where integers wrap"),
    ({"cast"}, is_beyond_integers, "gives what the processor does of floats that no integer of the dtype is near"),
]


def written(op: type[OpDef], sample: Sample, opset: int) -> tuple[OneNode, Any]:
    """The sample as a model; None where ONNX cannot say it at this opset."""
    case = OneNode(op, sample)
    if sample.attributes.get("ceil_mode"):
        return (
            case,
            None,
        )  # until opset 22 ONNX's shape inference counts windows that begin in the padding; nobody computes them
    case.graph.metadata[KEY] = Provenance(8, {"": opset}, "graph")
    try:
        return case, write(case.graph)
    except UnsupportedOp:
        return case, None


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_every_opset_reads_back_as_it_was_written(op: type[OpDef], sample: Sample) -> None:
    expected = OneNode(op, sample).reference()
    for opset in OPSETS:
        case, model = written(op, sample, opset)
        if model is None:
            continue
        again = frontends.read(model)
        given = dict(zip((v.name for v in case.graph.inputs), case.arrays))
        results = interpret.run(again, {v.name: given[v.name] for v in again.inputs})
        case.agrees(results, expected)


@pytest.mark.slow
@pytest.mark.parametrize(("op", "sample"), CASES)
def test_reference_agrees_with_onnx_runtime(op: type[OpDef], sample: Sample) -> None:
    case, model = written(op, sample, NEWEST_OF_RUNTIME)
    if model is None:
        pytest.skip(f"ONNX {NEWEST_OF_RUNTIME} does not say this")
    reason = next((why for names, applies, why in DIFFERENT if op.name in names and applies(case)), None)
    if reason:
        pytest.skip(reason)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        results = session.run(None, {v.name: a for v, a in zip(case.graph.inputs, case.arrays)})
    except Exception as error:  # its exceptions have no base of their own; the model itself passed ONNX's checker
        pytest.skip(f"ONNX Runtime refuses it: {str(error)[:80]}")
    case.agrees([np.asarray(r) for r in results], case.reference(), is_ours=False)
