"""A pair that is declared in place gives the same numbers in one array; a pair that would not is not declared."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from renorm import te
from renorm.codegen import llvm
from renorm.codegen.in_place import in_place
from renorm.codegen.llvm.requirements import requirements
from renorm.codegen.llvm.walk import compile_walker
from renorm.core.dims import static
from renorm.core.target import Target
from renorm.runtime import Argument, Code, Module, Program, Step, TensorSpec
from renorm.runtime.program import align
from renorm.tir import parse


def elementwise(shape: tuple[int, ...], schedule: Any) -> Any:
    """The kernel of relu(x + w) * z, scheduled."""
    x, z = (te.placeholder(shape, "float32", name=n) for n in "xz")
    w = te.placeholder(shape[-1:], "float32", name="w")
    y = te.compute(shape, lambda *i: te.max(x[i] + w[i[-1]], te.const(0, "float32")) * z[i], name="y")
    s = te.create_schedule([y.op])
    schedule(s, y)
    return te.lower(s, [x, w, z, y], name="k")


def tiled(s: Any, y: Any) -> None:
    a, b = s[y].op.axis
    outer, inner = s[y].split(a, 8)
    bo, bi = s[y].split(b, 16)
    s[y].reorder(outer, bo, inner, bi)
    s[y].parallel(outer)
    s[y].unroll(inner)
    s[y].vectorize(bi)


def fused(s: Any, y: Any) -> None:
    f = s[y].fuse(*s[y].op.axis)
    o, i = s[y].split(f, 24)
    s[y].parallel(o)
    s[y].vectorize(i)


def permuted(s: Any, y: Any) -> None:
    a, b, c = s[y].op.axis
    co, ci = s[y].split(c, 4)
    s[y].reorder(a, co, b, ci)
    s[y].parallel(s[y].fuse(a, co, b))
    s[y].vectorize(ci)


def run(kernel: Any, arrays: dict[str, np.ndarray[Any, Any]], over: str, threads: int) -> np.ndarray[Any, Any]:
    """The result, written over the operand `over` in the arena: a copy of it is made there by a kernel first."""
    target = Target()
    shape = arrays[over].shape
    source = te.placeholder(shape, "float32", name="source")
    copy = te.compute(shape, lambda *i: source[i], name="copy")
    compiled = [
        llvm.compile_kernel(te.lower(te.create_schedule([c.op]), [s, c], name="copy"), target)
        for s, c in [(source, copy)]
    ]
    compiled.append(llvm.compile_kernel(kernel, target))
    names = [p.name for p in kernel.params]
    given = [n for n in names if n in arrays]
    place = Argument("arena", 0)
    steps = (
        Step("in", 0, (Argument("input", given.index(over)), place)),
        Step("k", 1, tuple(place if n in (over, "y") else Argument("input", given.index(n)) for n in names)),
        Step("out", 0, (place, Argument("output", 0))),
    )
    program = Program(
        requirements(target),
        tuple(TensorSpec(n, "float32", arrays[n].shape) for n in given),
        (TensorSpec("y", "float32", shape),),
        tuple(Code(i, static(c.phases), align(*static([c.scratch]))) for i, c in enumerate(compiled)),
        steps,
        arena_bytes=align(arrays[over].nbytes),
    )
    m = Module(program, [c.object for c in compiled], b"", compile_walker(target), threads)
    return m.run(*(arrays[n] for n in given))[0]


@pytest.mark.parametrize("schedule", [lambda s, y: None, tiled, fused], ids=["plain", "tiled", "fused"])
@pytest.mark.parametrize("shape", [(37, 53), (16, 64), (5, 3)])
def test_elementwise(schedule: Any, shape: tuple[int, int]) -> None:
    kernel = elementwise(shape, schedule)
    names = [p.name for p in kernel.params]
    assert in_place(kernel) == ((names.index("y"), names.index("x")), (names.index("y"), names.index("z")))
    rng = np.random.default_rng(shape)
    arrays = {"x": rng.standard_normal(shape), "w": rng.standard_normal(shape[-1:]), "z": rng.standard_normal(shape)}
    arrays = {n: a.astype(np.float32) for n, a in arrays.items()}
    expected = np.maximum(arrays["x"] + arrays["w"], 0) * arrays["z"]
    for over in "xz":
        for threads in (1, 3):
            np.testing.assert_array_equal(run(kernel, arrays, over, threads), expected)


def pairs(outs: Any, params: list[Any]) -> list[tuple[str, str]]:
    s = te.create_schedule([t.op for t in outs])
    kernel = te.lower(s, [*params, *outs], name="k")
    names = [p.name for p in kernel.params]
    return [(names[a], names[b]) for a, b in in_place(kernel)]


def test_what_is_read_elsewhere_too_is_refused() -> None:
    x, z = (te.placeholder((8, 8), "float32", name=n) for n in "xz")

    def of(f: Any) -> list[tuple[str, str]]:
        return pairs([te.compute((8, 8), f, name="y")], [x, z])

    assert of(lambda i, j: x[i, j] + z[i, j]) == [("y", "x"), ("y", "z")]
    assert of(lambda i, j: x[i, j] + z[j, i]) == [("y", "x")]
    assert of(lambda i, j: x[i, j] + x[j, i] + z[i, j]) == [("y", "z")]
    assert of(lambda i, j: x[i, 0] + z[7 - i, j]) == []
    k = te.reduce_axis((0, 8), name="k")
    total = te.compute((8,), lambda i: te.sum(x[i, k], axis=k), name="total")
    assert pairs([te.compute((8, 8), lambda i, j: x[i, j] - total[i] + z[i, j], name="y")], [x, z]) == [("y", "z")]
    # a sum is stored many times
    assert pairs([te.compute((8, 8), lambda i, j: te.sum(x[i, k] * z[k, j], axis=k), name="y")], [x, z]) == []


def test_another_type_or_size_is_refused() -> None:
    x = te.placeholder((8, 8), "float32", name="x")
    assert pairs([te.compute((8, 8), lambda i, j: x[i, j].astype("int32"), name="y")], [x]) == []
    assert pairs([te.compute((8, 4), lambda i, j: x[i, j], name="y")], [x]) == []


def test_two_results_of_one_operand_are_refused() -> None:
    x = te.placeholder((8,), "float32", name="x")
    a = te.compute((8,), lambda i: x[i] + te.const(1, "float32"), name="a")
    b = te.compute((8,), lambda i: x[i] * te.const(2, "float32"), name="b")
    assert pairs([a, b], [x]) == []


def test_a_product_with_a_residual_operand() -> None:
    """y = a b + r, where the schedule sums in a tile of its own: r may become y."""
    a, b, r = (te.placeholder((12, 12), "float32", name=n) for n in "abr")
    k = te.reduce_axis((0, 12), name="k")
    product = te.compute((12, 12), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="product")
    y = te.compute((12, 12), lambda i, j: product[i, j] + r[i, j], name="y")
    s = te.create_schedule([y.op])
    io, _ = s[y].split(s[y].op.axis[0], 5)
    s[y].parallel(io)
    s[product].compute_at(s[y], io)
    kernel = te.lower(s, [a, b, r, y], name="k")
    assert in_place(kernel) == ((3, 2),)
    rng = np.random.default_rng(0)
    arrays = {n: rng.standard_normal((12, 12)).astype(np.float32) for n in "abr"}
    found = run(kernel, arrays, "r", 2)
    np.testing.assert_allclose(found, arrays["a"].astype(float) @ arrays["b"] + arrays["r"], rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("index", "is_once"),
    [
        ("i*7 + j", True),
        ("i*6 + j", False),  # 6 = 0*6 + 6 = 1*6 + 0
        ("i + j*5", True),
        ("i", False),  # j stores the same element again
        ("i // 2 * 20 + i % 2 * 7 + j", True),
        ("i // 2 * 20 + i % 2 * 6 + j", False),
        ("i // 2 * 20 + i % 3 * 7 + j", False),
        ("i // 2 * 20 + j", False),
    ],
)
def test_an_element_that_is_stored_twice_is_refused(index: str, is_once: bool) -> None:
    text = f"""
kernel k(x: float32[99], y: float32[99]) -> (y) {{
  for (i, 0, 5) {{
    for (j, 0, 7) {{
      y[{index}] = x[{index}]
    }}
  }}
}}
"""
    assert bool(in_place(parse.parse(text))) == is_once


def test_all_digits_of_a_fused_loop_tell_its_round() -> None:
    kernel = elementwise((2, 5, 12), permuted)
    names = [p.name for p in kernel.params]
    assert "% 3" in str(kernel)  # a digit between two others
    assert in_place(kernel) == ((names.index("y"), names.index("x")), (names.index("y"), names.index("z")))
