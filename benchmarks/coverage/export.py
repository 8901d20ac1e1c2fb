"""Write a network as an ONNX file by one of PyTorch's exporters, and its quantized forms by ONNX Runtime's tools."""

# onnxruntime's tools have no stubs
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import torch

from benchmarks.coverage.network import Array, Built, Row, Tensors


def export(row: Row, built: Built, path: Path) -> None:
    """Write the file, with norms in it: nothing is folded by the exporter that writes them."""
    given = built.traced()
    opens = {*row.opens, *(("reach",) if "past" in row.opens else ())}
    opened = {g.name: {i: d for i, d in enumerate(g.shape) if d in opens} for g in built.given}
    names = [g.name for g in built.given]
    torch.backends.mha.set_fastpath_enabled(False)  # an operator that ONNX has not
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        if row.exporter == "script":
            preserved = torch.onnx.TrainingMode.PRESERVE
            torch.onnx.export(
                built.module, given, path, input_names=names, opset_version=row.opset, dynamo=False,
                do_constant_folding=False, training=preserved, dynamic_axes=dict(opened),
            )  # fmt: skip
            return
        dims: dict[str, Any] = {name: torch.export.Dim(name) for name in row.opens}
        dims |= {"reach": dims["past"] + 1} if "past" in dims else {}
        shapes = tuple({i: dims[str(d)] for i, d in axes.items()} for axes in opened.values())
        torch.onnx.export(
            Tensors(built.module), given, path, input_names=names, opset_version=row.opset, dynamo=True, verbose=False,
            external_data=False, dynamic_shapes=(shapes,),
        )  # fmt: skip


def quantized(form: str, source: Path, draws: list[dict[str, Array]], path: Path) -> None:
    """Write a quantized form of a file. draws: inputs that ranges of values are taken from."""
    from onnxruntime import quantization as tools
    from onnxruntime.quantization import shape_inference

    if form == "dynamic int8":
        tools.quantize_dynamic(source, path, weight_type=tools.QuantType.QInt8)
        return
    if form == "4-bit weights":
        from onnxruntime.quantization import matmul_nbits_quantizer  # needs onnx_ir, which comes with onnxscript

        four: Any = matmul_nbits_quantizer.MatMulNBitsQuantizer(onnx.load(source), block_size=16, is_symmetric=True)
        four.process()
        onnx.save(four.model.model, path)
        return
    prepared = path.with_suffix(".prepared.onnx")
    shape_inference.quant_pre_process(source, prepared, skip_symbolic_shape=True)
    reader: Any = _Draws(draws)
    qdq = form == "static QDQ"
    tools.quantize_static(
        prepared, path, reader, per_channel=qdq,
        quant_format=tools.QuantFormat.QDQ if qdq else tools.QuantFormat.QOperator,
        activation_type=tools.QuantType.QUInt8, weight_type=tools.QuantType.QInt8,
    )  # fmt: skip


class _Draws:
    """Inputs one after the other, as onnxruntime.quantization wants them."""

    def __init__(self, draws: list[dict[str, Array]]):
        self.left: Iterator[dict[str, Array]] = iter(draws)

    def get_next(self) -> dict[str, Array] | None:
        return next(self.left, None)
