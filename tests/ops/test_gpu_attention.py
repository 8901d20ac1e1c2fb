"""Attention on GPUs: three launches give what NumPy gives, run as CUDA C on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.gpu.host_assembler import needs_compiler
from tests.gpu.host_device import run
from tests.ops.one_node import OneNode

from renorm import te
from renorm.codegen.cuda import source
from renorm.core.target import parse
from renorm.graph.op import Sample
from renorm.graph.types import bf16, boolean, f16, f32
from renorm.ops.attention import PANELS, Attention
from renorm.ops.schedules import gpu_attention, gpu_products, gpu_stages
from renorm.ops.schedules.gpu_tiles import Tile
from renorm.tir.nodes import Kernel

TARGET = parse("cuda -arch=sm_90")
pytestmark = needs_compiler


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention of any size takes three launches."""
    monkeypatch.setattr(gpu_stages, "LEAST_WORK", 0)


SAMPLES = [
    Sample(f32[2, 3, 70, 20], f32[2, 3, 45, 20], f32[2, 3, 45, 33], scale=0.25),
    Sample(f32[1, 4, 64, 32], f32[1, 2, 64, 32], f32[1, 2, 64, 32], f32[1, 1, 64, 64], scale=0.2),
    Sample(f32[2, 3, 2, 20], f32[2, 3, 129, 20], f32[2, 3, 129, 33], f32[3, 1, 129]),
    Sample(f32[1, 2, 1, 64], f32[1, 2, 200, 64], f32[1, 2, 200, 64], scale=0.125),
    Sample(f32[5, 3, 8], f32[1, 7, 8], f32[1, 7, 8], boolean[5, 3, 7], masked=-1e9),
    Sample(f32[1, 2, 9, 4], f32[1, 2, 3, 4], f32[1, 2, 3, 6], boolean[9, 3], scale=0.5, empty_is_zero=True),
    Sample(f32[2, 6, 4], f32[2, 3, 4], f32[2, 3, 6], boolean[2, 6, 3], nan_is_zero=True),
    Sample(f32[33, 4], f32[3, 4], f32[3, 6], f32[3].of([-np.inf, 0, -np.inf])),
    Sample(f16[2, 9, 30], f16[2, 40, 30], f16[2, 40, 30], f16[9, 40], scale=0.2),
    Sample(bf16[2, 5, 30], bf16[2, 40, 30], bf16[2, 40, 30]),
]


def lowered(case: OneNode) -> Kernel:
    """Return the loops of an attention as GPUs schedule it."""
    given, outs = case.tensors()
    s = te.create_schedule([t.op for t in outs])
    gpu_attention.schedule(s, outs, TARGET)
    return te.lower(s, [*given.values(), *outs])


@pytest.mark.parametrize("sample", SAMPLES, ids=range(len(SAMPLES)))
def test_three_launches(sample: Sample) -> None:
    case = OneNode(Attention, sample)
    kernel = lowered(case)
    assert len(source.generate(kernel, TARGET).launches) == 3
    case.agrees(case.run(kernel, run), case.reference())


ROUNDED = [
    Sample(f16[2, 3, 70, 24], f16[2, 3, 45, 24], f16[2, 3, 45, 33], scale=0.25, multiplied_as="float16"),
    Sample(bf16[1, 4, 19, 32], bf16[1, 2, 37, 32], bf16[1, 2, 37, 40], bf16[19, 37], multiplied_as="bfloat16"),
    Sample(
        f32[2, 50, 20],
        f32[2, 61, 20],
        f32[2, 61, 17],
        boolean[2, 50, 61],
        scale=0.3,
        multiplied_as="tf32",
        tolerance=1e-3,
    ),
]


@pytest.mark.parametrize("sample", ROUNDED, ids=range(len(ROUNDED)))
def test_both_products_run_on_tensor_cores(sample: Sample) -> None:
    """Tensor cores multiply powers of scores, too, which are rounded before they are added up."""
    case = OneNode(Attention, sample)
    kernel = lowered(case)
    launches = source.generate(kernel, TARGET).source.split("__global__")[1:]
    assert ["renorm_mma" in text for text in launches] == [True, False, True]
    case.agrees(case.run(kernel, run), case.reference())


@pytest.mark.parametrize("tile", [Tile(4, 4, 8, 8), Tile(4, 4, 2, 4, parts=2)], ids=["whole", "parts"])
@pytest.mark.parametrize("order", ["rows", "heads", "turned"])
@pytest.mark.parametrize("rows", [3, 21])
def test_what_stands_around_attention(rows: int, order: str, tile: Tile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads that lie side by side in rows are cut out before and joined after it, by the same launches."""
    monkeypatch.setattr(gpu_products, "choose", lambda *_: tile)
    heads, held, keys = 3, 8, 40
    q, k, v = (te.placeholder((2, n, heads * held), name=x) for n, x in ((rows, "q"), (keys, "k"), (keys, "v")))

    def cut(t: te.Tensor) -> te.Tensor:
        shape = (2, heads, t.shape[1], held)
        return te.compute(shape, lambda b, h, i, d: t[b, i, h * held + d], name=f"{t.name}_heads")

    values = {"scale": 0.3, "weight": 1.0, "masked": 0.0, "nan_is_zero": False, "empty_is_zero": False}
    y = Attention(**values).compute(cut(q), cut(k), cut(v), None)
    formulas: dict[str, Any] = {
        "rows": ((2, rows, heads * held), lambda b, i, c: te.max(y[b, c // held, i, c % held], 0.0)),
        "heads": ((2, rows, heads, held), lambda b, i, h, d: te.max(y[b, h, i, d], 0.0)),
        "turned": ((2, heads, held, rows), lambda b, h, d, i: te.max(y[b, h, i, d], 0.0)),
    }
    z = te.compute(*formulas[order], name="z")
    s = te.create_schedule(z.op)
    gpu_attention.schedule(s, [z], TARGET)
    kernel = te.lower(s, [q, k, v, z])
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(t.shape).astype(np.float32) for t in (q, k, v, z)]
    run(kernel, arrays)
    a, b, c = (x.astype(np.float64).reshape(2, -1, heads, held).swapaxes(1, 2) for x in arrays[:3])
    scores = np.exp(0.3 * a @ b.swapaxes(-1, -2))
    mixed = np.maximum(scores / scores.sum(-1, keepdims=True) @ c, 0)
    by_rows = mixed.swapaxes(1, 2)
    expected = {"rows": by_rows.reshape(2, rows, -1), "heads": by_rows, "turned": mixed.swapaxes(2, 3)}[order]
    np.testing.assert_allclose(arrays[3], expected, rtol=1e-5, atol=1e-6)
    assert order == "turned" or tile.parts > 1 or len(source.generate(kernel, TARGET).launches) == 3


def test_other_stages_have_launches_of_their_own() -> None:
    """No keys, and pairs of numbers that are multiplied by matrix units."""
    for sample in (
        Sample(f32[2, 5, 3], f32[2, 0, 3], f32[2, 0, 3]),
        Sample(bf16[1, 4, 19, 32], bf16[1, 2, 37, 32], bf16[1, 2, 37, 40], **PANELS),
    ):
        case = OneNode(Attention, sample)
        case.agrees(case.run(lowered(case), run), case.reference())
