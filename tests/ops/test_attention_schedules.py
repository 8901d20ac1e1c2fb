"""Attention kernels of any size, held against PyTorch's in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.ops.one_node import OneNode
from tests.random_numbers import RNG

import renorm
from renorm import ops, targets, te
from renorm.codegen.llvm import assembly, compile_kernel
from renorm.core.target import Target
from renorm.graph.ir import Graph
from renorm.graph.op import Sample
from renorm.graph.types import f32
from renorm.ops.attention import Attention
from renorm.ops.schedules import attention_axes, attention_blocks, cpu_attention, structure
from renorm.ops.shared.tags import MIXED
from renorm.tir.nodes import Allocate, walk
from renorm.tir.passes import prepare

pytest.importorskip("torch", reason="PyTorch is not installed")
import torch

TARGETS = ("llvm", "llvm -mcpu=haswell")


def expected(q: Any, k: Any, v: Any, mask: Any, scale: float) -> Any:
    each = q.shape[1] // k.shape[1]
    q, k, v = (torch.from_numpy(t).double() for t in (q, np.repeat(k, each, 1), np.repeat(v, each, 1)))
    held = None if mask is None else torch.from_numpy(mask)
    held = held.double() if held is not None and held.dtype != torch.bool else held
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=held, scale=scale).numpy()


def attended(*arrays: Any, scale: float, target: str = "llvm") -> Any:
    g = Graph("attention")
    values = [g.input(f"x{i}", a.dtype.name, a.shape) for i, a in enumerate(arrays)]
    g.outputs = [ops.attention(*values, scale=scale)]
    return renorm.compile(g, target=target).run(*arrays)[0]


def normal(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


LENGTHS = st.one_of(st.integers(1, 9), st.integers(10, 140))


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Any], float, str]:
    groups, each = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    b, h, rows, keys = draw(st.integers(1, 2)), groups * each, draw(LENGTHS), draw(LENGTHS)
    held, width = (draw(st.one_of(st.integers(1, 40), st.sampled_from((32, 64, 80, 128)))) for _ in range(2))
    arrays = [normal(b, h, rows, held), normal(b, groups, keys, held), normal(b, groups, keys, width)]
    shape = tuple(draw(st.sampled_from((1, e))) for e in (b, h, rows, keys))
    kind = draw(st.sampled_from(("none", "added", "infinite", "chosen")))
    if kind == "added":
        arrays.append(normal(*shape))
    if kind == "infinite":  # the first key is taken by all
        arrays.append(np.where((RNG.random(shape) < 0.3) & (np.arange(shape[-1]) > 0), -np.inf, 0).astype(np.float32))
    if kind == "chosen":
        arrays.append((RNG.random(shape) < 0.7) | (np.arange(shape[-1]) == 0))
    return arrays, draw(st.sampled_from((0.125, held**-0.5, -1.0))), draw(st.sampled_from(TARGETS))


@given(case=cases())
@settings(max_examples=25, deadline=None)
def test_any_size(case: tuple[list[Any], float, str]) -> None:
    arrays, scale, target = case
    y = attended(*arrays, scale=scale, target=target)
    q, k, v, mask = (*arrays, None)[:4]
    wanted = expected(q, k, v, mask, scale)
    np.testing.assert_allclose(y, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("keys", [257, 384, 391, 1000])
@pytest.mark.parametrize("held", [24, 64])
def test_sums_in_parts(keys: int, held: int) -> None:
    """Of keys that no parts divide, masked and not, with what is no number in the last part."""
    q, k, v = normal(2, 3, 41, held), normal(2, 1, keys, held), normal(2, 1, keys, held + 8)
    mask = np.where(RNG.random((2, 1, 41, keys)) < 0.5, -np.inf, 0).astype(np.float32)
    v[1, 0, -1, 5] = np.nan
    haswell = targets.find(TARGETS[1]).machine_target
    assert attention_blocks.choose(6, 41, keys, held + 8, haswell.lanes(4), haswell, keys).parts == (
        -(-keys // 128) if keys > 256 else 1
    )
    wanted = expected(q, k, v, mask, 0.2)
    for target in TARGETS:
        y = attended(q, k, v, mask, scale=0.2, target=target)
        np.testing.assert_allclose(y, wanted, rtol=2e-5, atol=2e-5, equal_nan=True)
    assert np.isnan(wanted[1, :, :, 5]).all()
    assert np.isnan(wanted).sum() == 3 * 41


@pytest.mark.parametrize("rows", [1, 33])
def test_a_query_that_takes_no_key_is_no_number(rows: int) -> None:
    q, k, v = normal(1, 2, rows, 8), normal(1, 2, 20, 8), normal(1, 2, 20, 16)
    mask = np.zeros((rows, 20), np.float32)
    mask[0] = -np.inf
    y = attended(q, k, v, mask, scale=1.0)
    assert np.isnan(y[:, :, 0]).all()
    assert not np.isnan(y[:, :, 1:]).any()


@pytest.mark.parametrize("shape", [(33, 20), (1, 33, 20), (1, 1, 33, 20), (33, 1, 20), (1, 33, 1, 1, 20)], ids=str)
@pytest.mark.parametrize("lead", [(), (1,), (1, 1)], ids=str)
def test_axes_of_one_element_of_the_result_may_be_others(lead: tuple[int, ...], shape: tuple[int, ...]) -> None:
    q, k, v = (te.placeholder((*lead, n, e), name=name) for name, n, e in (("q", 33, 8), ("k", 29, 8), ("v", 29, 20)))
    y = Attention(scale=0.3).compute(q, k, v, None)
    at = [axis for axis, extent in enumerate(shape) if extent != 1]
    out = te.compute(shape, lambda *i: y[(*(0,) * len(lead), *(i[axis] for axis in at))] * 2, name="out")
    s = te.create_schedule(out.op)
    axes = attention_axes.of(s, out, next(t for t in structure.stages([out]) if t.op.tag == MIXED))
    assert axes is not None
    assert [a.extent for a in axes] == [*(1,) * len(lead), 33, 20]
    s = te.create_schedule(out.op)
    cpu_attention.schedule(s, [out], Target())
    built = renorm.build(s, [q, k, v, out])
    arrays = [normal(*(int(n) for n in t.shape)) for t in (q, k, v)]
    one, two, three = (a.reshape(1, 1, *a.shape[-2:]) for a in arrays)
    result = np.empty(shape, np.float32)
    built(*arrays, result)
    np.testing.assert_allclose(
        result.reshape(1, 1, 33, 20), 2 * expected(one, two, three, None, 0.3), rtol=1e-5, atol=1e-6
    )


def test_the_table_of_scores_is_never_there() -> None:
    """Of 2 x 1500 x 1500 scores each thread keeps those of one block of queries."""
    shapes = [f32[2, 1500, 32]] * 3
    kernel = OneNode(Attention, Sample(*shapes, scale=0.25)).kernel(targets.find("llvm"))
    kept = sum(s.buffer.size for s in walk(kernel.body) if isinstance(s, Allocate))
    assert 1500 * 16 <= kept < 1500 * 1500 // 4


@pytest.mark.parametrize("cpu", ["haswell", "sapphirerapids"])
@pytest.mark.parametrize("rows", [49, 64, 197])
def test_queries_are_turned_in_registers(cpu: str, rows: int) -> None:
    """Gathers of 197 queries took 11 % of an attention on Zen 5."""
    target = targets.find(f"llvm -mcpu={cpu}")
    kernel = prepare(OneNode(Attention, Sample(*[f32[2, rows, 64]] * 3, scale=0.25)).kernel(target))
    code = assembly(compile_kernel(kernel, target), target)
    assert "gather" not in code
    assert "insertps" not in code


def test_scores_that_differ_by_more_than_exponentials_can_hold() -> None:
    q, k, v = 200 * normal(1, 1, 40, 16), normal(1, 1, 50, 16), normal(1, 1, 50, 16)
    y = attended(q, k, v, scale=1.0)
    np.testing.assert_allclose(y, expected(q, k, v, None, 1.0), rtol=0, atol=2e-4)


@pytest.mark.parametrize("rows", [3, 40])
def test_weights_that_are_nothing_are_zero(rows: int) -> None:
    """Numbers below the normal range, of a mask of -100, made products take 27 times as long."""
    q, k, v = np.zeros((1, 1, rows, 16)), np.zeros((1, 1, 50, 16)), np.zeros((1, 1, 50, 16))
    mask = np.full((rows, 50), -100.0, np.float32)
    mask[:, 0], v[:, :, 1:] = 0, 1e30
    y = attended(q.astype(np.float32), k.astype(np.float32), v.astype(np.float32), mask, scale=1.0)
    np.testing.assert_array_equal(y, 0)
