"""The conformance cases that the onnx package ships: one model, inputs and outputs each."""

from __future__ import annotations

import os
import pickle
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test import loader

import renorm.ops  # noqa: F401 (fills the registry)
from renorm.core.errors import UnsupportedOp
from renorm.frontends.onnx.bodies import has_body
from renorm.frontends.onnx.model import is_newer, op_key, standard_domain
from renorm.frontends.onnx.tensors import dtype_name
from renorm.graph import registry


@dataclass(frozen=True)
class Case:
    name: str
    kind: str  # "node": a case of one op
    model: onnx.ModelProto
    sets: list[tuple[list[Any], list[Any]]]
    rtol: float
    atol: float


_KEPT = (  # by whatever they, or the form that they are kept in, depend on
    Path(__file__).parents[2]
    / ".pytest_cache"
    / f"onnx-cases-{onnx.__version__}-{np.__version__}-{ml_dtypes.__version__}-{Path(__file__).stat().st_mtime_ns}"
)


def collect() -> list[Case]:
    """Every case, of single nodes and of small exported networks.

    The package computes them anew in 8 s each time that it is asked; they are kept.
    """
    with suppress(OSError, EOFError, pickle.UnpicklingError):
        found: list[Case] = pickle.loads(_KEPT.read_bytes())
        return found
    made = _computed()
    _KEPT.parent.mkdir(exist_ok=True)
    aside = _KEPT.with_name(f"{_KEPT.name}.{os.getpid()}")
    aside.write_bytes(pickle.dumps(made))
    aside.replace(_KEPT)
    return made


def _computed() -> list[Case]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the package computes its own Inf and NaN cases
        found = [
            c
            for kind in ("node", "simple", "pytorch-operator", "pytorch-converted")
            for c in loader.load_model_tests(kind=kind)
        ]
    return [_loaded(c) for c in found]


def told(case: Case, inputs: list[Any], result: Any) -> Any:
    """Return where ONNX says what a result is: not where a cast makes a narrow integer of a float outside of its range,
    of which ml_dtypes cuts bits off before 0.7, and makes 0 since."""
    result = np.asarray(result)
    if not case.name.startswith("test_cast") or "INT" not in case.name.partition("_to_")[2]:
        return np.ones(result.shape, bool)
    limits, x = ml_dtypes.iinfo(result.dtype), np.trunc(np.asarray(inputs[0]).astype(np.float64))
    return (x >= int(limits.min)) & (x <= int(limits.max))


def is_defined(model: onnx.ModelProto) -> bool:
    """Whether renorm has an op for every node of the model, or ONNX a body, and inputs and outputs are tensors of its
    dtypes."""
    opsets = {standard_domain(o.domain): o.version for o in model.opset_import}
    values = (*model.graph.input, *model.graph.output)
    nodes: list[Any] = [*model.graph.node]  # onnx's nodes have the fields of renorm's
    return all(_is_tensor(v.type) for v in values) and all(
        n.op_type == "Constant" or _is_read(n, standard_domain(n.domain), opsets) for n in nodes
    )


def _is_read(node: Any, domain: str, opsets: dict[str, int]) -> bool:
    opset = opsets.get(domain, 1)
    is_known = registry.find_onnx(op_key(domain, node.op_type), opset) is not None and not is_newer(node, opset)
    return is_known or has_body(node, domain, opset)


def _is_tensor(kind: onnx.TypeProto) -> bool:
    if kind.WhichOneof("value") != "tensor_type":
        return False
    try:
        dtype_name(kind.tensor_type.elem_type, "it")
    except UnsupportedOp:
        return False
    return True


def _is_list(array: Any) -> bool:
    """Whether it is a list of integers, or a switch."""
    return isinstance(array, np.ndarray) and (
        (array.dtype == np.int64 and array.ndim <= 1) or (array.dtype == bool and array.ndim == 0)
    )


_OF_NUMBERS = {"MelWeightMatrix"}  # ops that are read where all operands are known


def with_constants(case: Case, inputs: list[Any]) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """The model with initializers for what an op needs when it is compiled, and the inputs that are left.

    That is what the op's signature marks so, and every list of integers behind the first operand: axes, shapes, pads.
    The cases give them as inputs, which exported networks do not.
    """
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    opset = {standard_domain(o.domain): o.version for o in model.opset_import}.get("", 1)
    given = dict(zip((i.name for i in model.graph.input), inputs))
    static: set[str] = set()
    for n in model.graph.node:
        op = registry.find_onnx(n.op_type, opset)
        if op is not None and hasattr(op, "signature"):
            static |= {name for name, p in zip(n.input, op.parsed.operands) if p.is_static}
        static |= {name for name in n.input[1:] if _is_list(given.get(name))}
        static |= {name for name in n.input if n.op_type in _OF_NUMBERS}
    for name in static & set(given):
        model.graph.initializer.append(numpy_helper.from_array(np.asarray(given.pop(name)), name))
    return model, given


def _loaded(case: Any) -> Case:
    if case.model is not None:
        sets = [([_array(a) for a in given], [_array(a) for a in expected]) for given, expected in case.data_sets]
        return Case(case.name, case.kind, case.model, sets, case.rtol, case.atol)
    directory = Path(case.model_dir)
    model = onnx.load(directory / "model.onnx")
    sets: list[tuple[list[Any], list[Any]]] = []
    for data in sorted(directory.glob("test_data_set_*")):
        sets.append((_arrays(data, "input", model.graph.input), _arrays(data, "output", model.graph.output)))
    return Case(case.name, case.kind, model, sets, case.rtol, case.atol)


def _array(value: Any) -> Any:
    """bfloat16 and its like come as tensors of onnx."""
    return numpy_helper.to_array(value) if isinstance(value, onnx.TensorProto) else value


def _arrays(directory: Path, kind: str, declared: Any) -> list[Any]:
    """The numbered tensors of one kind; of other kinds of values (sequences), nothing."""
    arrays: list[Any] = []
    for i in range(len(list(directory.glob(f"{kind}_*.pb")))):
        if declared[i].type.WhichOneof("value") != "tensor_type":
            return []
        tensor = onnx.TensorProto()
        tensor.ParseFromString((directory / f"{kind}_{i}.pb").read_bytes())
        arrays.append(numpy_helper.to_array(tensor))
    return arrays
