"""Kernels that the code generator made, as a network: workspaces in the arena, scratch, weights, several phases."""

from __future__ import annotations

import numpy as np
import pytest

from renorm.codegen.llvm import compile_kernel
from renorm.codegen.llvm.walk import compile_walker
from renorm.core.dims import static
from renorm.core.target import Target
from renorm.runtime import Argument, Code, Machine, Module, Program, Step, TensorSpec, load
from renorm.runtime.program import align
from renorm.tir.parse import parse

N, C = 97, 48

# every row minus its mean; the mean of all rows is a workspace that a serial loop between two parallel ones fills
CENTRE = f"""
kernel centre(X: float32[{N * C}], Y: float32[{N * C}]) -> (Y) {{
  allocate rows[float32 * {N}]
  allocate total[float32 * 1]
  parallel (i, 0, {N}) {{
    rows[i] = 0f
    for (j, 0, {C}) {{
      rows[i] = (rows[i] + X[((i*{C}) + j)])
    }}
  }}
  total[0] = 0f
  for (i, 0, {N}) {{
    total[0] = (total[0] + rows[i])
  }}
  parallel (i, 0, {N}) {{
    for (j, 0, {C}) {{
      Y[((i*{C}) + j)] = (X[((i*{C}) + j)] - (total[0]*{1 / (N * C)!r}f))
    }}
  }}
}}
"""
# rows reversed, times a weight; a large buffer inside the parallel loop goes to scratch
TURN = f"""
kernel turn(X: float32[{N * C}], W: float32[{C}], Y: float32[{N * C}]) -> (Y) {{
  parallel (i, 0, {N}) {{
    allocate kept[float32 * 2048]
    for (j, 0, {C}) {{
      kept[j] = X[((({N - 1} - i)*{C}) + j)]
    }}
    for (j, 0, {C}) {{
      Y[((i*{C}) + j)] = (kept[({C - 1} - j)]*W[j])
    }}
  }}
}}
"""


@pytest.fixture(scope="module")
def network():
    """threads -> a module that centres and turns x three times; and its weights."""
    target = Target()
    kernels = [compile_kernel(parse(text), target) for text in (CENTRE, TURN)]
    centre, turn = kernels
    assert centre.phases == (N, 1, N)
    assert turn.phases == (N,)
    assert static([turn.scratch])[0] >= 8192
    weights = np.random.default_rng(0).random(C, np.float32)
    room = 4 * N * C
    assert room % 64 == 0
    spaces, end = [], 2 * room
    for size in static(centre.workspace):
        spaces.append(Argument("arena", end))
        end += align(size)
    steps, x = [], Argument("input", 0)
    for k in range(3):
        middle, y = Argument("arena", 0), Argument("arena", room) if k < 2 else Argument("output", 0)
        steps.append(Step("centre", 0, (x, middle, *spaces)))
        steps.append(Step("turn", 1, (middle, Argument("weight", 0), y)))
        x = y
    program = Program(
        Machine(target.machine),
        (TensorSpec("x", "float32", (N, C)),),
        (TensorSpec("y", "float32", (N, C)),),
        tuple(Code(i, static(k.phases), static([k.scratch])[0]) for i, k in enumerate(kernels)),
        tuple(steps),
        arena_bytes=end,
        weight_bytes=weights.nbytes,
    )
    walker = compile_walker(target)
    return lambda threads: Module(program, [k.object for k in kernels], weights.tobytes(), walker, threads), weights


def expected(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    y = x.astype(np.float64)
    for _ in range(3):
        y = (y - y.mean())[::-1, ::-1] * w
    return y


def test_results(network):
    make, weights = network
    x = np.random.default_rng(1).random((N, C), np.float32)
    (y,) = make(1).run(x)
    np.testing.assert_allclose(y, expected(x, weights), rtol=0, atol=1e-6)


def test_any_number_of_threads_gives_the_same_bits(network, tmp_path):
    make, _ = network
    rng = np.random.default_rng(2)
    modules = [make(t) for t in (1, 2, 3, 4, 7)]
    modules[1].save(tmp_path / "m.renorm")
    modules += [load(tmp_path / "m.renorm", threads=t) for t in (1, 2)]
    for _ in range(20):
        x = rng.random((N, C), np.float32)
        first, *others = (m.run(x)[0] for m in modules)
        for y in others:
            np.testing.assert_array_equal(y, first)


@pytest.mark.slow
def test_ten_thousand_runs(network):
    make, _ = network
    x = np.random.default_rng(3).random((N, C), np.float32)
    (first,) = make(1).run(x)
    for threads in (2, 4):
        m, y = make(threads), np.empty_like(x)
        for _ in range(10_000):
            m.run(x, out=[y])
            assert np.array_equal(y, first)
