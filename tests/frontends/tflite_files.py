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
    """A file in the making: tensors by name, operators in order. others: further subgraphs, with their inputs and
    outputs."""

    identifier: bytes = b"TFL3"
    tables: dict[str, Table] = field(default_factory=dict)
    buffers: list[Table] = field(default_factory=list)
    operators: list[Table] = field(default_factory=list)
    codes: dict[tuple[int, int, str], Table] = field(default_factory=dict)
    others: list[tuple[File, Sequence[str], Sequence[str]]] = field(default_factory=list)

    def subgraph(self) -> File:
        """One more subgraph of the same file, to be added by `call`."""
        return File(self.identifier, {}, self.buffers, [], self.codes, self.others)

    def call(self, other: File, inputs: Sequence[str], outputs: Sequence[str]) -> int:
        """Add a subgraph; its number."""
        self.others.append((other, inputs, outputs))
        return len(self.others)

    def table(self, kind: str, /, **fields: Any) -> Table:
        return Table(kind, schema(self.identifier), {k: v for k, v in fields.items() if v is not None})

    def tensor(
        self, name: str, shape: Sequence[int], dtype: str = "float32", data: Any = None, scale: Any = None,
        **more: Any,
    ) -> str:  # fmt: skip
        """dtype: renorm's name, or that of the format. scale: (scales, zero points, axis) of a quantized tensor.
        Extents of -1 are open. more: fields of its table."""
        types = self.table("Model").schema.enums["TensorType"]
        number = types[{v: k for k, v in DTYPES.items()}.get(dtype, dtype)]
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
            buffer=0 if data is None else len(self.buffers), quantization=quantization, **more,
        )  # fmt: skip
        if data is not None:
            raw = np.ascontiguousarray(data).view(np.uint8).reshape(-1)
            self.buffers.append(self.table("Buffer", data=raw))
        return name

    def constant(self, name: str, data: Any, scale: Any = None) -> str:
        array = np.asarray(data)
        return self.tensor(name, array.shape, array.dtype.name, array, scale)

    def operator(
        self, kind: str, inputs: Sequence[str | None], outputs: Sequence[str], options: str = "", version: Any = 1,
        custom: Any = b"", **fields: Any,
    ) -> None:  # fmt: skip
        """kind: a name of the format, or that of a custom operator, whose options are `custom`."""
        known, names = self.table("Model").schema.enums["BuiltinOperator"], [*self.tables]
        number = known.get(kind, known["CUSTOM"])
        code = self.codes.setdefault(
            (number, version, kind),
            self.table(
                "OperatorCode", builtin_code=number, deprecated_builtin_code=min(number, 127), version=version,
                custom_code=None if kind in known else kind,
            ),
        )  # fmt: skip
        found = self.table(
            "Operator", opcode_index=[*self.codes.values()].index(code),
            inputs=np.asarray([-1 if i is None else names.index(i) for i in inputs], np.int32),
            outputs=np.asarray([names.index(o) for o in outputs], np.int32),
        )  # fmt: skip
        if custom:
            found["custom_options"] = np.frombuffer(custom, np.uint8)
        for union, place in (("BuiltinOptions", "builtin_options"), ("BuiltinOptions2", "builtin_options2")):
            number = next((n for n, name in found.schema.unions[union].items() if name == options), 0)
            if number:
                found[f"{place}_type"], found[place] = number, self.table(options, **fields)
        self.operators.append(found)

    def model(self, inputs: Sequence[str], outputs: Sequence[str]) -> Table:
        every = [(self, inputs, outputs), *self.others]
        named = [f"part{k}" if k else "main" for k in range(len(every))]
        subgraphs = [file.section(ins, outs, name) for name, (file, ins, outs) in zip(named, every)]
        return self.table(
            "Model", version=3 if self.identifier == b"TFL3" else 0, operator_codes=[*self.codes.values()],
            subgraphs=subgraphs, buffers=self.buffers or [self.table("Buffer")], description="test",
        )  # fmt: skip

    def section(self, inputs: Sequence[str], outputs: Sequence[str], name: str) -> Table:
        names = [*self.tables]
        return self.table(
            "SubGraph", tensors=[*self.tables.values()], operators=self.operators, name=name,
            inputs=np.asarray([names.index(i) for i in inputs], np.int32),
            outputs=np.asarray([names.index(o) for o in outputs], np.int32),
        )  # fmt: skip

    def written(self, inputs: Sequence[str], outputs: Sequence[str]) -> bytes:
        return encode(self.identifier, self.model(inputs, outputs), "test")


def litert(content: bytes, *xs: Any) -> list[Any]:
    """What LiteRT computes, without its fast paths."""
    return litert_runs(content, xs)[0]


def litert_runs(content: bytes, *runs: Sequence[Any]) -> list[list[Any]]:
    """What LiteRT computes in runs that follow each other, all of the same shapes."""
    runtime = pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")
    plain = runtime.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    made = runtime.Interpreter(model_content=content, experimental_op_resolver_type=plain)
    details, found = made.get_input_details(), list[list[Any]]()
    for d, x in zip(details, runs[0], strict=True):
        made.resize_tensor_input(d["index"], x.shape)
    made.allocate_tensors()
    for xs in runs:
        for d, x in zip(details, xs, strict=True):
            made.set_tensor(d["index"], x)
        made.invoke()
        found.append([made.get_tensor(o["index"]) for o in made.get_output_details()])
    return found
