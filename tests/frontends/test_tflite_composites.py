"""Composites of TensorFlow Lite files: their subgraphs are read, and passes make one node of a norm or an attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.frontends.test_tflite_detection import packed
from tests.frontends.tflite_files import File, litert
from tests.random_numbers import RNG

import renorm


def f(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


class Part:
    """A subgraph in the making, whose tensors are named by number."""

    def __init__(self, file: File):
        self.file = file.subgraph()

    def constant(self, data: Any) -> str:
        return self.file.constant(f"c{len(self.file.tables)}", data)

    def op(self, kind: str, shape: tuple[int, ...], *xs: str, options: str = "", **fields: Any) -> str:
        made = self.file.tensor(f"t{len(self.file.tables)}", shape)
        self.file.operator(kind, xs, [made], options or f"{kind.title().replace('_', '')}Options", **fields)
        return made

    def mean(self, x: str, shape: tuple[int, ...], axes: tuple[int, ...]) -> str:
        held = self.constant(np.asarray(axes, np.int32))
        return self.op("MEAN", shape, x, held, options="ReducerOptions", keep_dims=True)

    def scaled(self, x: str, shape: tuple[int, ...], by: float, kind: str = "MUL") -> str:
        return self.op(kind, shape, x, self.constant(np.asarray([by], np.float32)))

    def reshaped(self, x: str, shape: tuple[int, ...]) -> str:
        held = self.constant(np.asarray(shape, np.int32))
        return self.op("RESHAPE", shape, x, held, new_shape=np.asarray(shape, np.int32))


def called(name: str, number: int) -> dict[str, Any]:
    attributes = np.frombuffer(packed({"epsilon": 1e-5}), np.uint8)
    return {"name": name, "decomposition_subgraph_index": number, "composite_attributes": attributes}


def composite(
    name: str, shapes: dict[str, tuple[int, ...]], shape: tuple[int, ...], body: Callable[[Part], str], **given: Any
) -> bytes:
    """A file of one composite over inputs of these shapes, and constants."""
    file = File()
    part = Part(file)
    for each, held in shapes.items():
        file.tensor(each, held)
        part.file.tensor(each, held)
    for each, data in given.items():
        file.constant(each, data)
        part.file.tensor(each, data.shape)
    file.tensor("y", shape)
    names = [*shapes, *given]
    file.operator(
        "STABLEHLO_COMPOSITE",
        names,
        ["y"],
        "StableHLOCompositeOptions",
        **called(name, file.call(part.file, names, [body(part)])),
    )
    return file.written([*shapes], ["y"])


def check(content: bytes, *xs: Any) -> Any:
    module = renorm.compile(content)
    np.testing.assert_allclose(module.run(*xs)[0], litert(content, *xs)[0], rtol=1e-4, atol=1e-5)
    return module


@pytest.mark.parametrize("written", ["MUL", "SQUARE", "POW"])
def test_rms_norm(written: str) -> None:
    shape = (2, 5, 12)

    def body(p: Part) -> str:
        if written == "POW":
            square = p.scaled("x", shape, 2.0, "POW")
        else:
            square = p.op(written, shape, *["x"] * (2 if written == "MUL" else 1))
        mean = p.mean(square, (2, 5, 1), (-1,))
        root = p.op("RSQRT", (2, 5, 1), p.scaled(mean, (2, 5, 1), 1e-5, "ADD"))
        return p.op("MUL", shape, p.op("MUL", shape, "x", root), "scale")

    module = check(composite("odml.rms_norm", {"x": shape}, shape, body, scale=f(12)), f(*shape))
    assert [n.op.name for n in module.graph.nodes] == ["rms_norm"]


def test_layer_norm() -> None:
    """As aten.native_layer_norm is decomposed."""
    shape, kept = (2, 5, 12), (2, 5, 1)

    def body(p: Part) -> str:
        mean = p.mean("x", kept, (2,))
        apart = p.op("SUB", shape, "x", mean)
        variance = p.mean(p.op("MUL", shape, apart, apart), kept, (2,))
        root = p.op("RSQRT", kept, p.scaled(variance, kept, 1e-5, "ADD"))
        return p.op("ADD", shape, p.op("MUL", shape, p.op("MUL", shape, apart, root), "scale"), "bias")

    content = composite("aten.native_layer_norm.default", {"x": shape}, shape, body, scale=f(12), bias=f(12))
    assert [n.op.name for n in check(content, f(*shape)).graph.nodes] == ["layer_norm"]


def test_group_norm() -> None:
    """With channels last around it and first inside, as converters of PyTorch write it."""
    n, h, w, c, groups = 2, 3, 5, 12, 4
    shape, first, split, kept = (n, h, w, c), (n, c, h, w), (n, groups, h * w * c // groups), (n, groups, 1)

    def body(p: Part) -> str:
        x = p.op("TRANSPOSE", first, "x", p.constant(np.asarray([0, 3, 1, 2], np.int32)))
        x = p.reshaped(x, split)
        mean = p.mean(x, kept, (2,))
        apart = p.op("SUB", split, x, mean)
        variance = p.mean(p.op("MUL", split, apart, apart), kept, (2,))
        root = p.op("RSQRT", kept, p.scaled(variance, kept, 1e-5, "ADD"))
        y = p.reshaped(p.op("MUL", split, apart, root), first)
        y = p.op("ADD", first, p.op("MUL", first, y, p.reshaped("scale", (c, 1, 1))), p.reshaped("bias", (c, 1, 1)))
        return p.op("TRANSPOSE", shape, y, p.constant(np.asarray([0, 2, 3, 1], np.int32)))

    content = composite("odml.group_norm", {"x": shape}, shape, body, scale=f(c), bias=f(c))
    module = check(content, f(*shape))
    assert [n.op.name for n in module.graph.nodes if n.op.name != "transpose"] == ["group_norm"]
    assert len(module.report.norms) == 1


def test_attention() -> None:
    b, t, s, heads, width = 2, 5, 7, 3, 4
    q, k, mask = (b, heads, t, width), (b, heads, s, width), (b, 1, t, s)
    weights = (b, heads, t, s)

    def body(p: Part) -> str:
        scores = p.op("BATCH_MATMUL", weights, "q", "k", options="BatchMatMulOptions", adjoint_rhs=True)
        masked = p.op("ADD", weights, p.scaled(scores, weights, width**-0.5), "mask")
        return p.op("BATCH_MATMUL", q, p.op("SOFTMAX", weights, masked, beta=1.0), "v", options="BatchMatMulOptions")

    shapes = {"q": q, "k": k, "v": k, "mask": mask}
    module = check(composite("odml.scaled_dot_product_attention", shapes, q, body), f(*q), f(*k), f(*k), f(*mask))
    assert [n.op.name for n in module.graph.nodes] == ["attention"]


def test_a_composite_inside_of_another() -> None:
    shape, file = (2, 3), File()
    inner, outer = Part(file), Part(file)
    for part in (inner, outer):
        part.file.tensor("x", shape)
    number = file.call(inner.file, ["x"], [inner.op("EXP", shape, "x")])
    made = outer.op("STABLEHLO_COMPOSITE", shape, "x", options="StableHLOCompositeOptions", **called("a", number))
    number = file.call(outer.file, ["x"], [outer.op("NEG", shape, made)])
    file.tensor("x", shape)
    file.tensor("y", shape)
    file.operator("STABLEHLO_COMPOSITE", ["x"], ["y"], "StableHLOCompositeOptions", **called("b", number))
    check(file.written(["x"], ["y"]), f(*shape))
