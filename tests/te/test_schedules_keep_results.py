"""Random programs under random schedules give NumPy's results, exactly: values are small integers, so sums have no
error."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from renorm import te
from renorm.core.errors import InvalidExpression
from renorm.core.target import parse as parse_target
from renorm.tir.parse import parse as parse_kernel
from renorm.tir.verify import verify

Array = np.ndarray[Any, Any]
EVERY_CHECK: Any = list(HealthCheck)
DTYPES = ("float64", "int64", "float32", "int32")


@dataclass
class Program:
    """Tensors with the arrays that they must have."""

    inputs: list[te.Tensor] = field(default_factory=list)
    computed: list[te.Tensor] = field(default_factory=list)
    arrays: dict[te.Tensor, Array] = field(default_factory=dict)

    def add(self, t: te.Tensor, array: Array) -> te.Tensor:
        assert t.shape == array.shape, (t, array.shape)
        self.computed.append(t)
        self.arrays[t] = array
        return t


def small(array: Array) -> Array:
    """Keeps values small whatever is computed from them: exact in float32."""
    return array - 7 * np.floor_divide(array, 7)


def shrink(x: Any, dtype: str) -> Any:
    return x - 7 * te.floor(x / 7.0) if dtype.startswith("float") else x % 7


def shapes() -> st.SearchStrategy[tuple[int, ...]]:
    return st.integers(1, 3).flatmap(lambda r: st.tuples(*[st.integers(1, 7)] * r))


def input_tensor(draw: Any, p: Program, shape: tuple[int, ...], dtype: str) -> te.Tensor:
    t = te.placeholder(shape, dtype, name=f"in{len(p.inputs)}")
    seed = draw(st.integers(0, 99), label="seed")
    p.inputs.append(t)
    p.arrays[t] = np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)
    return t


def unary(draw: Any, p: Program, x: te.Tensor) -> te.Tensor:
    return p.add(
        te.compute(x.shape, lambda *i: shrink(x(*i) * 2 + 3, x.dtype), name="unary"), small(p.arrays[x] * 2 + 3)
    )


def binary(draw: Any, p: Program, x: te.Tensor) -> te.Tensor:
    y = draw(st.sampled_from([t for t in p.arrays if _broadcasts(t, x)]), label="other")
    op = draw(st.sampled_from(["+", "-", "max"]), label="op")
    a, b = p.arrays[x], p.arrays[y]
    if op == "max":
        return p.add(te.maximum(x, y), np.maximum(a, b))
    return p.add(x + y if op == "+" else x - y, a + b if op == "+" else a - b)


def _broadcasts(t: te.Tensor, x: te.Tensor) -> bool:
    try:
        return te.broadcast_shape("", t.shape, x.shape) == x.shape
    except InvalidExpression:
        return False


def pad(draw: Any, p: Program, x: te.Tensor) -> te.Tensor:
    before = draw(st.integers(0, 2), label="before")
    after = draw(st.integers(0, 2), label="after")
    axis = draw(st.integers(0, x.ndim - 1), label="axis")
    shape = tuple(n + (before + after if d == axis else 0) for d, n in enumerate(x.shape))

    def element(*i: Any) -> Any:
        at = [v - before if d == axis else v for d, v in enumerate(i)]
        inside = te.all(i[axis] >= before, i[axis] < before + x.shape[axis])
        return te.if_then_else(inside, x(*at), 0)

    widths = [(before, after) if d == axis else (0, 0) for d in range(x.ndim)]
    return p.add(te.compute(shape, element, name="pad"), np.pad(p.arrays[x], widths))


def neighbours(draw: Any, p: Program, x: te.Tensor) -> te.Tensor:
    """Differences of elements at two distances along one axis: one stage reads several places of another."""
    axis = draw(st.integers(0, x.ndim - 1), label="axis")
    a, b = (draw(st.integers(0, min(2, x.shape[axis] - 1)), label="distance") for _ in range(2))
    n = x.shape[axis] - max(a, b)

    def at(i: Any, distance: int) -> Any:
        return x(*(v + distance if d == axis else v for d, v in enumerate(i)))

    shape = tuple(n if d == axis else e for d, e in enumerate(x.shape))
    first, second = (np.take(p.arrays[x], range(k, k + n), axis) for k in (a, b))
    return p.add(te.compute(shape, lambda *i: at(i, a) * 2 - at(i, b), name="neighbours"), first * 2 - second)


def transpose(draw: Any, p: Program, x: te.Tensor) -> te.Tensor:
    order = draw(st.permutations(range(x.ndim)), label="order")
    shape = tuple(x.shape[d] for d in order)

    def element(*i: Any) -> Any:
        at: list[Any] = [0] * x.ndim
        for d, v in zip(order, i):
            at[d] = v
        return x(*at)

    return p.add(te.compute(shape, element, name="transpose"), np.transpose(p.arrays[x], order))


def strided(draw: Any, p: Program, x: te.Tensor) -> te.Tensor:
    axis = draw(st.integers(0, x.ndim - 1), label="axis")
    step = draw(st.sampled_from([1, 2, 3, -1]), label="step")
    start = draw(st.integers(0, x.shape[axis] - 1), label="start")
    if step < 0:
        start = x.shape[axis] - 1
    index = [slice(None)] * x.ndim
    index[axis] = slice(start, None, step)
    array = p.arrays[x][tuple(index)]

    def element(*i: Any) -> Any:
        return x(*(start + v * step if d == axis else v for d, v in enumerate(i)))

    return p.add(te.compute(array.shape, element, name="strided"), array)


def reshape(draw: Any, p: Program, x: te.Tensor) -> te.Tensor:
    divisors = [d for d in range(1, x.size + 1) if x.size % d == 0]
    rows = draw(st.sampled_from(divisors), label="rows")
    shape = (rows, x.size // rows)

    def element(i: Any, j: Any) -> Any:
        flat, at = i * shape[1] + j, []
        for n in reversed(x.shape):
            at.append(flat % n)
            flat = flat // n
        return x(*reversed(at))

    return p.add(te.compute(shape, element, name="reshape"), p.arrays[x].reshape(shape))


def reduce(draw: Any, p: Program, x: te.Tensor) -> te.Tensor:
    count = draw(st.integers(1, x.ndim), label="reduced axes")
    reduced = sorted(draw(st.permutations(range(x.ndim)), label="which")[:count])
    combiner = draw(st.sampled_from(["sum", "max", "min"]), label="combiner")
    axes = {d: te.reduce_axis((0, x.shape[d]), name=f"k{d}") for d in reduced}
    of_positive = combiner == "sum" and draw(st.booleans(), label="where")

    def element(*i: Any) -> Any:
        kept = iter(i)
        value = x(*(axes[d] if d in axes else next(kept) for d in range(x.ndim)))
        return getattr(te, combiner)(value, list(axes.values()), where=value > 0 if of_positive else None)

    shape = tuple(n for d, n in enumerate(x.shape) if d not in axes)
    values = np.maximum(p.arrays[x], 0) if of_positive else p.arrays[x]
    array = getattr(np, combiner)(values, axis=tuple(reduced)).astype(x.dtype)
    return p.add(te.compute(shape, element, name=combiner), np.asarray(array))


def window(draw: Any, p: Program, x: te.Tensor) -> te.Tensor:
    """Weighted sums over a window along one axis: a convolution."""
    axis = draw(st.integers(0, x.ndim - 1), label="axis")
    size = draw(st.integers(1, x.shape[axis]), label="size")
    stride = draw(st.integers(1, 2), label="stride")
    k = te.reduce_axis((0, size), name="k")
    n = (x.shape[axis] - size) // stride + 1

    def element(*i: Any) -> Any:
        at = [v * stride + k if d == axis else v for d, v in enumerate(i)]
        return te.sum(x(*at) * (k % 3).astype(x.dtype), axis=k)

    shape = tuple(n if d == axis else e for d, e in enumerate(x.shape))
    windows = np.lib.stride_tricks.sliding_window_view(p.arrays[x], size, axis=axis)
    index = [slice(None)] * x.ndim
    index[axis] = slice(None, None, stride)
    weights = (np.arange(size) % 3).astype(x.dtype)
    array = (windows[tuple(index)] * weights).sum(-1).astype(x.dtype)
    return p.add(te.compute(shape, element, name="window"), array)


def matmul(draw: Any, p: Program, x: te.Tensor) -> te.Tensor:
    columns = draw(st.integers(1, 6), label="columns")
    w = input_tensor(draw, p, (x.shape[-1], columns), x.dtype)
    k = te.reduce_axis((0, x.shape[-1]), name="k")
    t = te.compute((*x.shape[:-1], columns), lambda *i: te.sum(x(*i[:-1], k) * w[k, i[-1]], axis=k), name="matmul")
    return p.add(t, (p.arrays[x] @ p.arrays[w]).astype(x.dtype))


def gather(draw: Any, p: Program, x: te.Tensor) -> te.Tensor:
    """x[index[i], ...] with indices from memory, clamped as the verifier asks."""
    n = draw(st.integers(1, 5), label="picks")
    index = te.placeholder((n,), "int64", name=f"in{len(p.inputs)}")
    p.inputs.append(index)
    p.arrays[index] = np.random.default_rng(n).integers(0, x.shape[0], (n,))
    last = x.shape[0] - 1
    t = te.compute((n, *x.shape[1:]), lambda *i: x(te.min(te.max(index[i[0]], 0), last), *i[1:]), name="gather")
    return p.add(t, p.arrays[x][p.arrays[index]])


STEPS: list[Callable[..., te.Tensor]] = [
    unary, binary, pad, neighbours, transpose, strided, reshape, reduce, window, matmul, gather,
]  # fmt: skip


def draw_program(draw: Any) -> Program:
    p = Program()
    dtype = draw(st.sampled_from(DTYPES), label="dtype")
    x = input_tensor(draw, p, draw(shapes(), label="shape"), dtype)
    for _ in range(draw(st.integers(1, 5), label="steps")):
        candidates = [t for t in p.arrays if t.ndim and t.dtype == dtype]
        x = draw(st.sampled_from([*candidates, candidates[-1], candidates[-1]]), label="operand")
        y = draw(st.sampled_from(STEPS), label="step")(draw, p, x)
        if float(np.abs(p.arrays[y]).max(initial=0)) > 2**20:
            unary(draw, p, y)
    return p


def draw_loops(draw: Any, stage: te.Stage) -> None:
    """A few random primitives on the loops of one stage."""
    for _ in range(draw(st.integers(0, 4), label=f"primitives of {stage.name}")):
        leaves = stage.leaf_iter_vars
        if not leaves:
            return
        axis = draw(st.sampled_from(leaves), label="axis")
        match draw(st.sampled_from(["split", "nparts", "fuse", "reorder", "kind"]), label="primitive"):
            case "split":
                stage.split(axis, factor=draw(st.integers(1, 5), label="factor"))
            case "nparts":
                stage.split(axis, nparts=draw(st.integers(1, 5), label="nparts"))
            case "fuse":
                position = leaves.index(axis)
                if position + 1 < len(leaves) and leaves[position + 1].kind == axis.kind:
                    stage.fuse(axis, leaves[position + 1])
            case "reorder":
                stage.reorder(*draw(st.permutations(leaves), label="order"))
            case _:
                kinds = ["unroll"] if axis.kind == "reduce" else ["unroll", "parallel", "vectorize"]
                if axis.kind == "data" and draw(st.sampled_from([False, False, True]), label="virtual"):
                    stage.bind(axis, te.thread_axis("vthread"))
                elif axis not in stage.threads:
                    getattr(stage, draw(st.sampled_from(kinds), label="kind"))(axis)


THREADS = 8


def bind_root(draw: Any, stage: te.Stage) -> None:
    """Blocks outside; threads anywhere."""
    data = [a for a in stage.leaf_iter_vars if a.kind == "data"]
    if not data:
        data = [stage.fuse()]
    block = draw(st.sampled_from(data), label="block axis")
    stage.reorder(block, *[a for a in stage.leaf_iter_vars if a is not block])
    stage.bind(block, te.thread_axis("blockIdx.x"))
    bind_threads(draw, stage, ("threadIdx.x", "threadIdx.y"))


def bind_threads(draw: Any, stage: te.Stage, names: tuple[str, ...]) -> None:
    for name in names:
        free = [a for a in stage.leaf_iter_vars if a.kind == "data" and a not in stage.kinds and a.extent <= THREADS]
        if free and draw(st.booleans(), label=f"{name} in {stage.name}"):
            stage.bind(draw(st.sampled_from(free), label="thread axis"), te.thread_axis((0, THREADS), name))


def draw_schedule(draw: Any, p: Program, outputs: list[te.Tensor], gpu: bool) -> te.Schedule:
    s = te.create_schedule([t.op for t in outputs])
    for stage in list(s.stages):
        match draw(
            st.sampled_from(["none", "none", "cache_write", "cache_read", "rfactor"]),
            label=f"new stage at {stage.name}",
        ):
            case "cache_write":
                joined = draw(st.integers(1, max(1, len(stage.op.axis))), label="joined")
                scope = draw(st.sampled_from(["register", "local", "global"]), label="scope")
                s.cache_write(stage.tensor, scope, joined)
            case "cache_read" if stage.op.input_tensors:
                source = draw(st.sampled_from(stage.op.input_tensors), label="source")
                readers = [other.tensor for other in s.stages if source in other.op.input_tensors]
                s.cache_read(source, draw(st.sampled_from(["shared", "local", "global"]), label="scope"), readers)
            case "rfactor" if stage.op.reduce_axis:
                axis = stage.op.reduce_axis[0]
                if draw(st.booleans(), label="split first"):
                    axis = draw(st.sampled_from(stage.split(axis, factor=draw(st.integers(1, 4), label="factor"))))
                s.rfactor(stage.tensor, axis, draw(st.integers(0, len(stage.op.axis)), label="factor_axis"))
            case _:
                pass
    for stage in reversed(s.stages):
        draw_loops(draw, stage)
        place(draw, s, stage, outputs, gpu)
        if gpu and stage.attach is not None:
            if stage.scope not in ("local", "register"):
                bind_threads(draw, stage, ("threadIdx.x",))
        elif gpu and not stage.is_inline:
            bind_root(draw, stage)
        draw_prefetch(draw, stage, [*p.inputs, *p.computed])
    draw_storage(draw, s)
    return s


def draw_storage(draw: Any, s: te.Schedule) -> None:
    """Maybe all that is computed in one place a round ahead, and rows further apart."""
    places: dict[Any, list[te.Stage]] = {}
    for stage in s.stages:
        if stage.attach is not None:
            places.setdefault(stage.attach, []).append(stage)
            if stage.op.axis and draw(st.booleans(), label=f"{stage.name} is aligned"):
                axis = draw(st.sampled_from(stage.op.axis), label="aligned axis")
                stage.storage_align(axis, draw(st.integers(1, 8), label="factor"), draw(st.integers(0, 8)))
    for (stage, axis), inside in places.items():
        if draw(st.booleans(), label=f"buffered at {axis.name} of {stage.name}"):
            for other in inside:
                other.double_buffer()


def draw_prefetch(draw: Any, stage: te.Stage, tensors: list[te.Tensor]) -> None:
    """Maybe a hint for a later round of a loop around."""
    loops, attach = list(stage.leaf_iter_vars), stage.attach
    while attach is not None:
        leaves = attach[0].leaf_iter_vars
        loops += leaves[: leaves.index(attach[1]) + 1]
        attach = attach[0].attach
    if loops and not stage.is_inline and draw(st.booleans(), label=f"prefetch in {stage.name}"):
        axis = draw(st.sampled_from(loops), label="round")
        stage.prefetch(draw(st.sampled_from(tensors), label="tensor"), axis, draw(st.integers(1, 3), label="offset"))


def place(draw: Any, s: te.Schedule, stage: te.Stage, outputs: list[te.Tensor], gpu: bool) -> None:
    readers = readers_of(s, stage)
    choice = draw(st.sampled_from(["root", "at", "at", "inline"]), label=f"place of {stage.name}")
    is_copy = "." in stage.name
    if choice == "inline" and not stage.op.reduce_axis and stage.tensor not in outputs and not is_copy:
        stage.compute_inline()
    elif choice == "at" and len(readers) == 1 and stage.tensor not in outputs and readers[0].leaf_iter_vars:
        reader = readers[0]
        axis = draw(st.sampled_from(reader.leaf_iter_vars), label="at")
        inner = reader.leaf_iter_vars[: reader.leaf_iter_vars.index(axis) + 1]
        if not any(reader.kinds.get(a) == "vectorized" for a in inner):
            stage.compute_at(reader, axis)
            in_threads = any(reader.kinds.get(a, "").startswith("threadIdx") for a in inner)
            scopes = (
                ["", "shared", *(["local", "register"] if in_threads else [])]
                if gpu
                else [stage.scope, "register", "local", "shared"]
            )
            stage.scope = draw(st.sampled_from(scopes), label="scope")


def readers_of(s: te.Schedule, stage: te.Stage) -> list[te.Stage]:
    """Stages that read `stage`, seen through inlined ones."""
    found: list[te.Stage] = []
    for other in s.stages:
        if stage.tensor in other.op.input_tensors:
            for reader in readers_of(s, other) if other.is_inline else [other]:
                if reader not in found:
                    found.append(reader)
    return found


def check(run: Any, p: Program, s: te.Schedule, outputs: list[te.Tensor], target: str) -> None:
    kernel = te.lower(s, [*p.inputs, *outputs])
    note(str(kernel))
    verify(kernel, parse_target(target))
    assert str(parse_kernel(str(kernel))) == str(kernel)
    results = [np.full(t.shape, 99, t.dtype) for t in outputs]
    run(kernel, [*(p.arrays[t].copy() for t in p.inputs), *results])
    for t, result in zip(outputs, results):
        np.testing.assert_array_equal(result, p.arrays[t], err_msg=t.name)


@settings(max_examples=150, deadline=None, suppress_health_check=EVERY_CHECK)
@given(data=st.data())
def test_any_schedule_of_a_random_program(run_on_cpu: Any, data: st.DataObject) -> None:
    p = draw_program(data.draw)
    outputs = [p.computed[-1]]
    others = p.computed[:-1]
    if others and data.draw(st.booleans(), label="two outputs"):
        outputs.append(data.draw(st.sampled_from(others), label="second output"))
    check(run_on_cpu, p, draw_schedule(data.draw, p, outputs, gpu=False), outputs, "llvm")


@settings(max_examples=150, deadline=None, suppress_health_check=EVERY_CHECK)
@given(data=st.data())
def test_any_schedule_on_blocks_and_threads(run: Any, data: st.DataObject) -> None:
    p = draw_program(data.draw)
    outputs = [p.computed[-1]]
    check(run, p, draw_schedule(data.draw, p, outputs, gpu=True), outputs, "cuda")


@pytest.mark.parametrize("inline", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "uint16", "uint32", "uint64", "bool"])
def test_narrow_integers_wrap_in_indices(run_on_cpu: Any, dtype: str, inline: bool) -> None:
    """Computed in an index as in memory, and cast there."""
    X, A = te.placeholder((4,), "int32", name="X"), te.placeholder((6,), name="A")
    P = te.compute((4,), lambda i: te.cast(dtype, X[i]) - te.const(1, dtype) if dtype != "bool" else X[i].astype(dtype))
    T = te.compute((4,), lambda i: A[te.max(te.min(P[i].astype("int64"), 5), 0)], name="T")
    s = te.create_schedule(T.op)
    if inline:
        s[P].compute_inline()
    x, a, y = np.array([0, 259, -253, -(2**31)], np.int32), np.arange(6, dtype=np.float32), np.zeros(4, np.float32)
    run_on_cpu(te.lower(s, [X, A, T]), [x, a, y])
    held = x.astype(dtype)
    wanted = held.astype(np.int64) if dtype == "bool" else (held - np.ones((), dtype)).astype(np.int64)
    np.testing.assert_array_equal(y, a[np.clip(wanted, 0, 5)])
