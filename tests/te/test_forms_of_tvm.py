"""Programs in the forms of TVM 0.6 to 0.8: devices, targets, timing, custom reductions, A[i][j], and what is absent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.random_numbers import RNG

import renorm as tvm
from renorm import te, topi
from renorm.core.absent_names import ABSENT
from renorm.errors import AbsentName, InvalidExpression, InvalidInput, InvalidSchedule, InvalidTarget, RenormError
from renorm.te.schedule import Schedule
from renorm.te.stage import Stage


def draw(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype("float32")


def test_a_program_on_a_device() -> None:
    target, dev = tvm.target.Target("llvm"), tvm.device("llvm", 0)
    a = te.placeholder((24, 32), "float", "a")
    b = te.compute((24, 32), lambda i, j: te.tanh(a[i][j]) * tvm.const(2.0, "float32"), "b")
    s = te.create_schedule([b.op]).normalize()
    f = tvm.build(s, [a, b], target, name="twice")
    x = draw(24, 32)
    given, out = tvm.nd.array(x, dev), tvm.nd.empty((24, 32), "float32", dev)
    f(given, out)
    tvm.testing.assert_allclose(out.asnumpy(), np.tanh(x) * 2, rtol=1e-5)
    assert (f.entry_name, given.device, dev.exist, tvm.cuda(99).exist) == ("twice", tvm.cpu(0), True, False)
    timings = f.time_evaluator(f.entry_name, dev, number=3, repeat=4)(given, out)
    assert len(timings.results) == 4
    assert 0 < timings.min <= timings.median <= timings.max
    kept = tvm.nd.empty((24, 32))
    assert out.copyto(kept) is kept
    np.testing.assert_array_equal(kept.numpy(), out.copyto(tvm.cpu()).numpy())
    for wrong in (np.zeros((24, 33)), np.zeros(24 * 32, "float32")):
        with pytest.raises(tvm.TVMError):
            f(wrong, out)


def test_a_function_is_written_and_read(tmp_path: Path) -> None:
    a = te.placeholder((7,), name="a")
    b = te.compute((7,), lambda i: a[i] + i)
    tvm.build(te.create_schedule(b.op), [b, a]).export_library(tmp_path / "f.tar")
    x, out = draw(7), np.zeros(7, "float32")
    for load in (tvm.runtime.load_module, tvm.module.load):
        out[:] = 0
        load(tmp_path / "f.tar")(out, x)
        np.testing.assert_allclose(out, x + np.arange(7), rtol=1e-6)
    with pytest.raises(InvalidInput, match="float32"):
        tvm.module.load(tmp_path / "f.tar")(out, draw(8))


@pytest.mark.parametrize(
    ("combine", "start", "numpy"),
    [
        (lambda x, y: x * y, lambda t: te.const(1, t), np.prod),
        (lambda x, y: y + x, lambda t: te.const(0, t), np.sum),
        (te.maximum, te.min_value, np.max),
        (lambda x, y: te.min(x, y), te.max_value, np.min),
        (lambda x, y: x + y, lambda t: te.const(3, t), lambda x, axis: 3 + np.sum(x, axis)),
    ],
)
def test_reductions_by_how_they_combine(combine: Any, start: Any, numpy: Any) -> None:
    a = te.placeholder((5, 6), name="a")
    k = te.reduce_axis((0, 6), "k")
    reduced = te.comm_reducer(combine, start, "own")
    b = te.compute((5,), lambda i: reduced(a[i, k], axis=k))
    x, out = draw(5, 6), np.zeros(5, "float32")
    tvm.build(te.create_schedule(b.op), [a, b])(x, out)
    np.testing.assert_allclose(out, numpy(x, axis=1), rtol=1e-5)


def test_other_reductions_are_refused() -> None:
    k = te.reduce_axis((0, 6))
    a = te.placeholder((6,), name="a")
    with pytest.raises(InvalidExpression, match=r"combines x and y to \(x - y\)"):
        te.comm_reducer(lambda x, y: x - y, lambda t: te.const(0, t))(a[k], axis=k)
    with pytest.raises(InvalidExpression, match=r"topi\.argmax"):
        te.comm_reducer(lambda x, y: x, lambda t, u: (t, u))((k, a[k]), axis=k)
    with pytest.raises(InvalidExpression, match="reductions of tuples are absent"):
        te.comm_reducer(lambda x, y: (x[0], y[1]), lambda t: 0)(a[k], axis=k)


def test_an_inlined_argument_is_left_alone() -> None:
    a = te.placeholder((4,), name="a")
    b = te.compute((4,), lambda i: a[i] * 2, name="b")
    c = te.compute((4,), lambda i: b[i] + 1, name="c")
    s = te.create_schedule(c.op)
    s[b].compute_inline()
    x, untouched, out = draw(4), np.full(4, 7, "float32"), np.zeros(4, "float32")
    tvm.build(s, [a, b, c])(x, untouched, out)
    np.testing.assert_array_equal(out, x * 2 + 1)
    assert (untouched == 7).all()


def test_stages_that_only_move_and_map_are_inlined() -> None:
    a = te.placeholder((4, 4), name="a")
    k = te.reduce_axis((0, 4), "k")
    total = te.compute((4,), lambda i: te.sum((a + 1)[i, k], axis=k), name="total")
    out = topi.exp(total) * 2
    s = te.create_schedule(out.op)
    te.schedule.AutoInlineInjective(s)
    assert [stage.name for stage in s.stages if not stage.is_inline] == ["total", out.op.name]


def test_extents_and_dtypes_of_any_origin() -> None:
    n = 8
    assert te.placeholder((n / 2, np.int64(3), te.const(5))).shape == (4, 3, 5)
    for dtype, name in (("float", "float32"), ("int", "int32"), (np.float64, "float64"), (np.dtype("int8"), "int8")):
        assert te.placeholder((2,), dtype).dtype == name
    assert [e.dtype for e in te.convert([1, 2.0])] == ["int32", "float32"]


def test_scalar_functions_of_tir() -> None:
    a = te.placeholder((6,), name="a")
    b = te.compute(
        (6,), lambda i: tvm.tir.if_then_else(tvm.tir.all(i > 1, i < 4), tvm.tir.exp(a[i]), tvm.tir.max(a[i], 0))
    )
    c = te.compute((6,), lambda i: b[tvm.tir.floordiv(i, 2)] * tvm.tir.const(2, "float32"))
    x, out = draw(6), np.zeros(6, "float32")
    tvm.build(te.create_schedule(c.op), [a, c])(x, out)
    inner = np.arange(6)
    y = np.where((inner > 1) & (inner < 4), np.exp(x), np.maximum(x, 0))
    np.testing.assert_allclose(out, 2 * y[inner // 2], rtol=1e-5)


def test_every_absent_name_says_what_to_do() -> None:
    a = te.placeholder((4,))
    b = te.compute((4,), lambda i: a[i])
    s = te.create_schedule(b.op)
    owners = {
        "te": te,
        "te.schedule": te.schedule,
        "topi": topi,
        "topi.nn": topi.nn,
        "renorm": tvm,
        "tir": tvm.tir,
        "s": s,
        "s[T]": s[b],
    }
    for name, instead in ABSENT.items():
        if name.endswith(")"):
            continue  # an argument
        owner, _, last = name.rpartition(".")
        assert not hasattr(owners[owner], last)
        with pytest.raises(AbsentName) as refused:
            getattr(owners[owner], last)
        assert name in str(refused.value)
        assert instead in str(refused.value)
    for owner in owners.values():
        with pytest.raises(AttributeError) as unknown:
            owner.no_such_name  # noqa: B018, the read itself raises
        assert not isinstance(unknown.value, RenormError)
    assert not hasattr(Stage, "rolling_buffer")
    assert not hasattr(Schedule, "create_group")


@pytest.mark.parametrize(
    ("mistake", "error", "message"),
    [
        (lambda: tvm.device("gpux"), InvalidTarget, "'gpux' is not a kind of device"),
        (lambda: tvm.device(3), InvalidTarget, "3 is not a kind of device"),  # pyright: ignore[reportArgumentType]
        (lambda: tvm.cpu(-1), InvalidTarget, "-1 is not the number"),
        (lambda: tvm.nd.array(np.zeros(3), tvm.cuda(0)), InvalidTarget, "no arrays on cuda(0)"),
        (lambda: tvm.nd.array(np.zeros(3), "int8"), InvalidInput, "'int8' is not a device"),  # pyright: ignore[reportArgumentType]
        (lambda: tvm.nd.array([[1], [2, 3]]), InvalidInput, "is no array"),
        (lambda: tvm.nd.empty((-1,)), InvalidInput, "is not a shape"),
        (lambda: tvm.target.Target("avr"), InvalidTarget, "'avr' is not a target"),
        (lambda: tvm.target.Target(3), InvalidTarget, "int 3 is not a target"),  # pyright: ignore[reportArgumentType]
        (lambda: tvm.build(3, []), InvalidSchedule, "inputs is int 3"),  # pyright: ignore[reportArgumentType]
        (lambda: tvm.lower(None, []), InvalidSchedule, "inputs is NoneType"),  # pyright: ignore[reportArgumentType]
        (lambda: te.create_schedule([3]), InvalidExpression, "expected tensors or operations"),  # pyright: ignore[reportArgumentType]
        (lambda: te.placeholder((2,), "handle"), InvalidExpression, "'handle' is not a dtype"),
        (lambda: te.placeholder((2,), ["f4"]), InvalidExpression, "is not a dtype"),
        (lambda: te.placeholder((2,), "float32", 7), InvalidExpression, "name is int 7"),  # pyright: ignore[reportArgumentType]
        (lambda: te.compute((2,), 7), InvalidExpression, "expected a function"),  # pyright: ignore[reportArgumentType]
    ],
)  # fmt: skip
def test_what_does_not_fit(mistake: Any, error: type[RenormError], message: str) -> None:
    with pytest.raises(error) as refused:
        mistake()
    assert message in str(refused.value)


def test_devices_load_no_compiler() -> None:
    program = "import renorm, sys; renorm.cpu(0); renorm.nd.empty((2,)); assert 'llvmlite' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
