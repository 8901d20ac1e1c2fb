"""Small TensorFlow Lite and Circle files, written with the format's own tables, and what LiteRT makes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from renorm.frontends.tflite.flatbuffer import Table, encode
from renorm.frontends.tflite.schema import schema
from renorm.frontends.tflite.tensors import DTYPES


@dataclass
class File:
    """A file in the making: tensors by name, operators in order."""

    identifier: bytes = b"TFL3"
    tables: dict[str, Table] = field(default_factory=dict)
    buffers: list[Table] = field(default_factory=list)
    operators: list[Table] = field(default_factory=list)
    codes: dict[tuple[int, int], Table] = field(default_factory=dict)

    def table(self, kind: str, /, **fields: Any) -> Table:
        return Table(kind, schema(self.identifier), {k: v for k, v in fields.items() if v is not None})

    def tensor(
        self, name: str, shape: Sequence[int], dtype: str = "float32", data: Any = None, scale: Any = None
    ) -> str:
        """scale: (scales, zero points, axis) of a quantized tensor. Extents of -1 are open."""
        number = {v: self.table("Model").schema.enums["TensorType"][k] for k, v in DTYPES.items()}[dtype]
        if not self.buffers:
            self.buffers.append(self.table("Buffer"))
        quantization = None
        if scale is not None:
            scales, zeros, axis = scale
            quantization = self.table(
                "QuantizationParameters",
                scale=np.asarray(scales, np.float32), zero_point=np.asarray(zeros, np.int64), quantized_dimension=axis,
            )  # fmt: skip
        signature = list(shape) if any(d < 0 for d in shape) else None
        self.tables[name] = self.table(
            "Tensor", name=name, shape=np.asarray([abs(d) for d in shape], np.int32), type=number,
            shape_signature=None if signature is None else np.asarray(signature, np.int32),
            buffer=0 if data is None else len(self.buffers), quantization=quantization,
        )  # fmt: skip
        if data is not None:
            raw = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
            self.buffers.append(self.table("Buffer", data=raw))
        return name

    def constant(self, name: str, data: Any, scale: Any = None) -> str:
        array = np.asarray(data)
        return self.tensor(name, array.shape, array.dtype.name, array, scale)

    def operator(
        self, kind: str, inputs: Sequence[str | None], outputs: Sequence[str], options: str = "", version: int = 1,
        **fields: Any,
    ) -> None:  # fmt: skip
        number, names = self.table("Model").schema.enums["BuiltinOperator"][kind], [*self.tables]
        code = self.codes.setdefault(
            (number, version),
            self.table("OperatorCode", builtin_code=number, deprecated_builtin_code=min(number, 127), version=version),
        )
        found = self.table(
            "Operator", opcode_index=[*self.codes.values()].index(code),
            inputs=np.asarray([-1 if i is None else names.index(i) for i in inputs], np.int32),
            outputs=np.asarray([names.index(o) for o in outputs], np.int32),
        )  # fmt: skip
        if options:
            unions = found.schema.unions["BuiltinOptions"]
            found["builtin_options_type"] = next(n for n, name in unions.items() if name == options)
            found["builtin_options"] = self.table(options, **fields)
        self.operators.append(found)

    def model(self, inputs: Sequence[str], outputs: Sequence[str]) -> Table:
        names = [*self.tables]
        main = self.table(
            "SubGraph", tensors=[*self.tables.values()], operators=self.operators, name="main",
            inputs=np.asarray([names.index(i) for i in inputs], np.int32),
            outputs=np.asarray([names.index(o) for o in outputs], np.int32),
        )  # fmt: skip
        return self.table(
            "Model", version=3 if self.identifier == b"TFL3" else 0, operator_codes=[*self.codes.values()],
            subgraphs=[main], buffers=self.buffers, description="test",
        )  # fmt: skip

    def written(self, inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
        return encode(self.identifier, self.model(inputs, outputs), "test")


def litert(content: bytes, *xs: Any) -> list[Any]:
    """What LiteRT computes, without its fast paths."""
    runtime = pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")
    plain = runtime.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    made = runtime.Interpreter(model_content=content, experimental_op_resolver_type=plain)
    details = made.get_input_details()
    for d, x in zip(details, xs, strict=True):
        made.resize_tensor_input(d["index"], x.shape)
    made.allocate_tensors()
    for d, x in zip(details, xs, strict=True):
        made.set_tensor(d["index"], x)
    made.invoke()
    return [made.get_tensor(o["index"]) for o in made.get_output_details()]
