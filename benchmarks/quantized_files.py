"""ONNX files of networks, quantized in each form that ONNX Runtime's quantizer and optimizer write."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import nn

from benchmarks.quantized_networks import Subject

BATCHES = 3  # of random data, by which ranges are found
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.InstanceNorm2d, nn.LayerNorm, nn.GroupNorm)


@dataclass(frozen=True)
class Form:
    """activation, weight: dtypes. rewritten: whether ONNX Runtime's optimizer has been at it, which writes operators of
    its own."""

    format: QuantFormat | None = None
    activation: QuantType = QuantType.QUInt8
    weight: QuantType = QuantType.QInt8
    per_channel: bool = True
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    rewritten: bool = False


SYMMETRIC = {"ActivationSymmetric": True}
FORMS = {
    "QDQ u8 s8": Form(QuantFormat.QDQ),
    "QDQ s8 s8 symmetric": Form(QuantFormat.QDQ, QuantType.QInt8, options=SYMMETRIC),
    "QDQ u8 u8 per tensor": Form(QuantFormat.QDQ, weight=QuantType.QUInt8, per_channel=False),
    "QOperator u8 s8": Form(QuantFormat.QOperator),
    "QOperator s8 s8 per tensor": Form(QuantFormat.QOperator, QuantType.QInt8, per_channel=False),
    "dynamic": Form(),
    "com.microsoft": Form(QuantFormat.QDQ, rewritten=True),
    "com.microsoft dynamic": Form(per_channel=False, rewritten=True),
}


def export(subject: Subject, path: Path) -> None:
    """Write a network as an ONNX file with open extents: norms as training leaves them, then folded by ONNX Runtime as
    its quantizer asks for. Networks that keep some norm have it in the file."""
    torch.manual_seed(0)
    module = subject.build()
    for part in module.modules():
        if isinstance(part, NORMS) and any(True for _ in part.parameters()):
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, 0.0, 0.2)
    if any(isinstance(part, NORMS[:3]) for part in module.modules()):
        module.train()
        with torch.no_grad():
            for _ in range(4):
                module(*subject.drawn({**subject.sizes, "N": 4}).values())
    given = subject.drawn(subject.sizes)
    axes = {i: {a: d for a, d in enumerate(v.shape) if isinstance(d, str)} for i, v in subject.inputs.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module.eval(), tuple(given.values()), path, input_names=list(given), output_names=list(subject.outputs),
            dynamic_axes=axes, opset_version=17, dynamo=False,
        )  # fmt: skip
    quant_pre_process(str(path), str(path), skip_symbolic_shape=True)


class _Drawn(CalibrationDataReader):
    def __init__(self, subject: Subject):
        torch.manual_seed(1)
        drawn = [subject.drawn(subject.sizes) for _ in range(BATCHES)]
        self._drawn: Iterator[Any] = iter([{n: t.numpy() for n, t in given.items()} for given in drawn])

    def get_next(self) -> Any:
        return next(self._drawn, None)


def quantize(subject: Subject, plain: Path, form: Form, path: Path) -> None:
    """Write the network of a file quantized in a form."""
    logging.disable(logging.WARNING)
    if form.format is None:
        quantize_dynamic(plain, path, per_channel=form.per_channel, weight_type=form.weight)
    else:
        quantize_static(
            plain, path, _Drawn(subject), quant_format=form.format, per_channel=form.per_channel,
            activation_type=form.activation, weight_type=form.weight, extra_options=form.options,
        )  # fmt: skip
    logging.disable(logging.NOTSET)
    if form.rewritten:
        settings = onnxruntime.SessionOptions()
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        settings.log_severity_level = 4
        settings.optimized_model_filepath = str(rewritten := path.with_suffix(".rewritten.onnx"))
        onnxruntime.InferenceSession(path, settings, providers=["CPUExecutionProvider"])
        rewritten.replace(path)


MOVED = ("Reshape", "Transpose", "Concat", "Slice", "Flatten", "Squeeze", "Unsqueeze", "DepthToSpace", "Split")


def scale_of(model: onnx.ModelProto, output: str) -> float | None:
    """Return the scale of the steps of an output, the largest where several are joined; None where it is none of
    dequantized integers."""
    held = {i.name: onnx.numpy_helper.to_array(i) for i in model.graph.initializer}
    makers = {name: node for node in model.graph.node for name in node.output}
    node = makers.get(output)
    if node is None or node.op_type not in ("DequantizeLinear", *MOVED):
        return None
    if node.op_type == "DequantizeLinear":
        return float(held[node.input[1]].max()) if node.input[1] in held else None
    parts: Sequence[str] = node.input if node.op_type == "Concat" else node.input[:1]
    found = [scale_of(model, name) for name in parts]
    return None if None in found else max(s for s in found if s is not None)
