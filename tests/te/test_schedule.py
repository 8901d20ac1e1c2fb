"""Each primitive: the loops that it makes, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from renorm import te
from renorm.core.errors import InvalidExpression, InvalidSchedule
from renorm.tir import interpret, text


def scale(n: int = 10) -> tuple[te.Tensor, te.Tensor]:
    a = te.placeholder((n,), name="A")
    return a, te.compute((n,), lambda i: a[i] * 2, name="T")


def product() -> tuple[te.Tensor, te.Tensor]:
    a = te.placeholder((8, 9), name="A")
    k = te.reduce_axis((0, 9), name="k")
    return a, te.compute((8,), lambda i: te.sum(a[i, k], axis=k), name="C")


def chain() -> tuple[te.Tensor, te.Tensor, te.Tensor]:
    a = te.placeholder((8, 9), name="A")
    p = te.compute((8, 9), lambda i, j: a[i, j] * 2, name="P")
    return a, p, te.compute((8, 9), lambda i, j: p[i, j] + 1, name="C")


def loops(s: te.Schedule, *args: te.Tensor) -> list[str]:
    """The lines of the loops without closing braces and markers."""
    lines = [line.strip() for line in text.simple(te.lower(s, args)).splitlines()]
    return [line.removesuffix(" {") for line in lines if line not in ("}", "") and not line.startswith("produce")]


def test_split_with_a_tail() -> None:
    a, t = scale(10)
    s = te.create_schedule(t.op)
    outer, inner = s[t].split(t.op.axis[0], factor=4)
    assert (outer.name, outer.extent, inner.name, inner.extent) == ("i.outer", 3, "i.inner", 4)
    assert loops(s, a, t) == [
        "for (i.outer, 0, 3)",
        "for (i.inner, 0, 4)",
        "if ((((i.outer*4) + i.inner) < 10))",
        "T[((i.outer*4) + i.inner)] = (A[((i.outer*4) + i.inner)]*2f)",
    ]


@pytest.mark.parametrize(
    ("kwargs", "extents"), [({"factor": 5}, (2, 5)), ({"nparts": 5}, (5, 2)), ({"factor": 64}, (1, 10))]
)
def test_split_without_a_tail_has_no_condition(kwargs: dict[str, int], extents: tuple[int, int]) -> None:
    a, t = scale(10)
    s = te.create_schedule(t.op)
    axes = s[t].split(t.op.axis[0], **kwargs)
    assert tuple(x.extent for x in axes) == extents
    assert not any(line.startswith("if") for line in loops(s, a, t))


def test_one_condition_for_nested_tails_of_outer_loops() -> None:
    a, t = scale(10)
    s = te.create_schedule(t.op)
    outer, _ = s[t].split(t.op.axis[0], factor=3)
    s[t].split(outer, factor=3)
    assert [line for line in loops(s, a, t) if line.startswith("if")] == [
        "if (((((i.outer.outer*9) + (i.outer.inner*3)) + i.inner) < 10))"
    ]


def test_fuse_reads_memory_as_one_axis() -> None:
    a, p, c = chain()
    s = te.create_schedule(c.op)
    s[p].compute_inline()
    fused = s[c].fuse(*c.op.axis)
    assert (fused.name, fused.extent) == ("i.j.fused", 72)
    assert loops(s, a, c) == ["for (i.j.fused, 0, 72)", "C[i.j.fused] = ((A[i.j.fused]*2f) + 1f)"]


def test_a_tail_of_a_fused_axis_is_a_condition_on_that_axis() -> None:
    a, p, c = chain()
    s = te.create_schedule(c.op)
    s[p].compute_inline()
    _, inner = s[c].split(c.op.axis[0], factor=3)
    s[c].fuse(inner, c.op.axis[1])
    assert [line for line in loops(s, a, c) if line.startswith("if")] == [
        "if ((((i.outer*27) + i.inner.j.fused) < 72))"
    ]


def test_tile() -> None:
    a, p, c = chain()
    s = te.create_schedule(c.op)
    s[p].compute_inline()
    s[c].tile(c.op.axis[0], c.op.axis[1], 4, 3)
    assert loops(s, a, c)[:4] == [
        "for (i.outer, 0, 2)", "for (j.outer, 0, 3)", "for (i.inner, 0, 4)", "for (j.inner, 0, 3)",
    ]  # fmt: skip


def test_reorder_across_a_reduction() -> None:
    a, c = product()
    s = te.create_schedule(c.op)
    s[c].reorder(c.op.reduce_axis[0], c.op.axis[0])
    assert loops(s, a, c) == [
        "for (i.init, 0, 8)",
        "C[i.init] = 0f",
        "for (k, 0, 9)",
        "for (i, 0, 8)",
        "C[i] = (C[i] + A[(k + (i*9))])",  # terms from the outermost loop inward
    ]


@pytest.mark.parametrize(
    ("primitive", "kind"), [("vectorize", "vectorized"), ("unroll", "unrolled"), ("parallel", "parallel")]
)
def test_kinds_of_loops(primitive: str, kind: str) -> None:
    a, t = scale(8)
    s = te.create_schedule(t.op)
    getattr(s[t], primitive)(t.op.axis[0])
    assert loops(s, a, t)[0] == f"{kind} (i, 0, 8)"


def test_bind() -> None:
    a, t = scale(10)
    s = te.create_schedule(t.op)
    outer, inner = s[t].split(t.op.axis[0], factor=4)
    s[t].bind(outer, te.thread_axis("blockIdx.x"))
    s[t].bind(inner, te.thread_axis((0, 4), "threadIdx.x"))
    assert loops(s, a, t) == [
        "// attr [iter_var(blockIdx.x, , blockIdx.x)] thread_extent = 3",
        "// attr [iter_var(threadIdx.x, , threadIdx.x)] thread_extent = 4",
        "if ((((blockIdx.x*4) + threadIdx.x) < 10))",
        "T[((blockIdx.x*4) + threadIdx.x)] = (A[((blockIdx.x*4) + threadIdx.x)]*2f)",
    ]


def test_threads_beyond_the_loop_do_nothing() -> None:
    a, t = scale(5)
    s = te.create_schedule(t.op)
    s[t].bind(t.op.axis[0], te.thread_axis((0, 8), "threadIdx.x"))
    assert loops(s, a, t)[:2] == [
        "// attr [iter_var(threadIdx.x, , threadIdx.x)] thread_extent = 8", "if ((threadIdx.x < 5))",
    ]  # fmt: skip


def test_compute_at_keeps_the_region_that_is_read() -> None:
    a, p, c = chain()
    s = te.create_schedule(c.op)
    s[p].compute_at(s[c], c.op.axis[0])
    assert loops(s, a, c) == [
        "for (i, 0, 8)",
        '// attr [P] storage_scope = "global"',
        "allocate P[float32 * 9]",
        "for (j, 0, 9)",
        "P[j] = (A[((i*9) + j)]*2f)",
        "for (j, 0, 9)",
        "C[((i*9) + j)] = (P[j] + 1f)",
    ]


def test_compute_at_a_window_takes_its_halo() -> None:
    a = te.placeholder((34,), name="A")
    p = te.compute((34,), lambda i: a[i] * 2, name="P")
    c = te.compute((32,), lambda i: p[i] + p[i + 1] + p[i + 2], name="C")
    s = te.create_schedule(c.op)
    outer, _ = s[c].split(c.op.axis[0], factor=8)
    s[p].compute_at(s[c], outer)
    found = loops(s, a, c)
    assert "allocate P[float32 * 10]" in found
    assert "C[((i.outer*8) + i.inner)] = ((P[i.inner] + P[(i.inner + 1)]) + P[(i.inner + 2)])" in found
    assert not any(line.startswith("if") for line in found)


def test_compute_root_undoes_compute_at_and_inline() -> None:
    a, p, c = chain()
    s = te.create_schedule(c.op)
    before = loops(s, a, c)
    s[p].compute_at(s[c], c.op.axis[0])
    s[p].compute_root()
    s[p].compute_inline()
    s[p].compute_root()
    assert loops(s, a, c) == before


def test_cache_read() -> None:
    a, t = scale(8)
    s = te.create_schedule(t.op)
    copy = s.cache_read(a, "shared", [t])
    assert (copy.name, copy.op.axis[0].name) == ("A.shared", "ax0")
    s[copy].compute_at(s[t], t.op.axis[0])
    assert loops(s, a, t) == [
        "for (i, 0, 8)",
        '// attr [A.shared] storage_scope = "shared"',
        "allocate A.shared[float32 * 1]",
        "A.shared[0] = A[i]",
        "T[i] = (A.shared[0]*2f)",
    ]
    assert s[t].op.input_tensors == (copy,)


def test_joined_axes_are_cut_across_rows() -> None:
    x = te.placeholder((4, 3, 5), name="X")
    k = te.reduce_axis((0, 4), "k")
    y = te.compute((3, 5), lambda i, j: te.sum(x[k, i, j], axis=k), name="Y")
    s = te.create_schedule(y.op)
    tile = s.cache_write(y, "local", joined=2)
    assert s[tile].op.axis[0].extent == 15
    whole = s[y].fuse(*y.op.axis)
    outer, _ = s[y].split(whole, factor=5)
    s[tile].compute_at(s[y], outer)
    text = loops(s, x, y)
    assert "for (i.j.fused.outer, 0, 3)" in text
    assert "allocate Y.local[float32 * 5]" in text
    with pytest.raises(InvalidSchedule, match="joined=3, but it has 2 axes"):
        te.create_schedule(y.op).cache_write(y, "local", joined=3)


def test_joined_axes_may_stand_ahead_of_others() -> None:
    """Rows of several matrices are one axis, and columns stay."""
    x = te.placeholder((4, 3, 6), name="X")
    w = te.placeholder((6, 5), name="W")
    k = te.reduce_axis((0, 6), "k")
    y = te.compute((4, 3, 5), lambda b, i, j: te.sum(x[b, i, k] * w[k, j], axis=k), name="Y")
    s = te.create_schedule(y.op)
    tile = s.cache_write(y, "local", joined=2, ahead=1)
    assert [a.extent for a in s[tile].op.axis] == [12, 5]
    outer, _ = s[y].split(s[y].fuse(*y.op.axis[:2]), factor=4)
    s[tile].compute_at(s[y], outer)
    text = loops(s, x, w, y)
    assert "for (b.i.fused.outer, 0, 3)" in text
    assert "allocate Y.local[float32 * 20]" in text
    with pytest.raises(InvalidSchedule, match="joined=2, ahead=2, but it has 3 axes"):
        te.create_schedule(y.op).cache_write(y, "local", joined=2, ahead=2)


def test_cache_write_takes_over_the_reduction() -> None:
    a, c = product()
    s = te.create_schedule(c.op)
    k = c.op.reduce_axis[0]
    copy = s.cache_write(c, "register")
    assert (copy.name, s[copy].op.reduce_axis, s[c].op.reduce_axis) == ("C.register", (k,), ())
    s[copy].compute_at(s[c], c.op.axis[0])
    assert loops(s, a, c) == [
        "for (i, 0, 8)",
        '// attr [C.register] storage_scope = "register"',
        "allocate C.register[float32 * 1]",
        "C.register[0] = 0f",
        "for (k, 0, 9)",
        "C.register[0] = (C.register[0] + A[((i*9) + k)])",
        "C[i] = C.register[0]",
    ]


def test_rfactor() -> None:
    a, c = product()
    s = te.create_schedule(c.op)
    _, inner = s[c].split(c.op.reduce_axis[0], factor=4)
    partial = s.rfactor(c, inner)
    assert (partial.name, partial.shape) == ("C.rf", (4, 8))
    assert loops(s, a, c)[2:] == [
        "for (k.inner, 0, 4)",
        "for (i, 0, 8)",
        "C.rf[((k.inner*8) + i)] = 0f",
        "for (k.outer, 0, 3)",
        "if (((k.inner + (k.outer*4)) < 9))",
        "C.rf[((k.inner*8) + i)] = (C.rf[((k.inner*8) + i)] + A[((k.inner + (i*9)) + (k.outer*4))])",
        "for (i, 0, 8)",
        "C[i] = 0f",
        "for (k.inner.v, 0, 4)",
        "C[i] = (C[i] + C.rf[(i + (k.inner.v*8))])",
    ]


def test_rfactor_puts_its_axis_where_asked() -> None:
    _, c = product()
    s = te.create_schedule(c.op)
    assert s.rfactor(c, c.op.reduce_axis[0], factor_axis=1).shape == (8, 9)


def test_a_schedule_can_be_lowered_again_after_more_primitives() -> None:
    a, t = scale(8)
    s = te.create_schedule(t.op)
    first = loops(s, a, t)
    assert loops(s, a, t) == first
    s[t].unroll(t.op.axis[0])
    assert loops(s, a, t) != first


def refusal(act: Callable[[], Any]) -> str:
    with pytest.raises(InvalidSchedule) as error:
        act()
    return str(error.value)


def test_refused_axes_name_the_loops_that_exist() -> None:
    _, t = scale(8)
    s = te.create_schedule(t.op)
    i = t.op.axis[0]
    s[t].split(i, factor=4)
    message = refusal(lambda: s[t].unroll(i))
    assert "T: unroll of i, which is not a loop of this stage" in message
    assert "i was split into i.outer and i.inner" in message
    assert "loops: i.outer, i.inner" in message


def test_refusals_of_primitives() -> None:
    a, c = product()
    i, k = c.op.axis[0], c.op.reduce_axis[0]
    s = te.create_schedule(c.op)
    stage = s[c]
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: stage.split(i), "takes factor= or nparts="),
        (lambda: stage.split(i, factor=2, nparts=2), "takes factor= or nparts="),
        (lambda: stage.split(i, factor=0), "split of i by 0"),
        (lambda: stage.split(i, factor=2.5), "factor is float 2.5"),  # type: ignore[arg-type]
        (lambda: stage.split(3, factor=2), "parent is int 3"),  # type: ignore[arg-type]
        (lambda: stage.fuse(i, k), "i is a data axis"),
        (lambda: stage.fuse(k, i), "is not the next loop inside"),
        (lambda: stage.reorder(i, i), "names an axis twice"),
        (lambda: stage.vectorize(k), "rfactor"),
        (lambda: stage.parallel(k), "rounds depend on each other"),
        (lambda: stage.bind(k, te.thread_axis("threadIdx.x")), "the reduce axis k cannot be bound"),
        (lambda: stage.bind(i, k), "not a thread axis"),
        (lambda: stage.bind(i, te.thread_axis((0, 4), "threadIdx.x")), "i has 8 rounds, threadIdx.x has extent 4"),
        (lambda: stage.compute_at(stage, i), "inside itself"),
        (lambda: stage.compute_inline(), "is a reduction and cannot be inlined"),
        (lambda: stage.set_scope("texture"), "'texture' is not a scope"),
        (lambda: s[a], "A is a placeholder and has no loops"),
        (lambda: s[te.compute((1,), lambda n: 0.0, name="D")], "D is not a stage of this schedule"),
        (lambda: s.cache_read(a, "cache", [c]), "'cache' is not a scope"),
        (lambda: s.cache_read(c, "local", [c]), "C does not read it"),
        (lambda: s.rfactor(c, i), "i is not a reduce axis"),
        (lambda: te.lower(s, [c]), "A (8, 9) is read by C"),
        (lambda: te.lower(s, [a, a, c]), "A comes twice"),
        (lambda: te.lower(s, [a, c, te.compute((1,), lambda n: 0.0, name="D")]), "D is not computed by this schedule"),
    ]
    for act, message in cases:
        assert message in refusal(act), message


def test_what_is_refused_changes_nothing() -> None:
    a = te.placeholder((6, 4, 2), name="A")
    t = te.compute((6, 4, 2), lambda i, j, k: a[i, j, k], name="T")
    given = te.extern((2,), [a], lambda loops, inputs, output: None, name="E")
    s = te.create_schedule([t.op, given.op])
    i, j, k = t.op.axis
    s[t].bind(k, te.thread_axis("threadIdx.x"))

    def state() -> list[Any]:
        return [(x.name, list(x.leaf_iter_vars), list(x.relations), dict(x.kinds), x.op) for x in s.stages]

    before = state()
    for act in (
        lambda: s[t].fuse(i, j, i),
        lambda: s[t].tile(i, j, 2, 0),
        lambda: s[t].tile(i, i, 2, 2),
        lambda: s[t].tensorize(i),
        lambda: s.cache_read(a, "local", [t, given]),
    ):
        assert refusal(act)
        assert state() == before


def test_cache_write_comes_first() -> None:
    _, c = product()
    s = te.create_schedule(c.op)
    s[c].split(c.op.axis[0], factor=2)
    assert "call cache_write before split" in refusal(lambda: s.cache_write(c, "local"))


def test_outputs_are_not_inlined() -> None:
    _, p, c = chain()
    s = te.create_schedule([p.op, c.op])
    assert "P is an output" in refusal(s[p].compute_inline)


def test_a_reader_outside_the_place_is_named() -> None:
    a = te.placeholder((8,), name="A")
    p = te.compute((8,), lambda i: a[i] * 2, name="P")
    x = te.compute((8,), lambda i: p[i] + 1, name="X")
    y = te.compute((8,), lambda i: p[i] + x[i], name="Y")
    s = te.create_schedule(y.op)
    s[p].compute_at(s[y], y.op.axis[0])
    assert "P is computed at i of Y, but X reads it outside" in refusal(lambda: te.lower(s, [a, y]))


def test_a_result_is_not_lost_with_a_place_that_nobody_has_needed_yet() -> None:
    """Found by an attack: an output whose place is in a stage that is itself planned later was left out."""
    a = te.placeholder((4, 8), name="A")
    k = te.reduce_axis((0, 8), "k")
    total = te.compute((4,), lambda i: te.sum(a[i, k], axis=k), name="T")
    y = te.compute((4, 8), lambda i, j: a[i, j] - total[i], name="Y")
    s = te.create_schedule(y.op)
    written = s.cache_write(y, "local")
    s[total].compute_at(s[written], s[written].op.axis[0])
    s[y].compute_at(s[total], total.op.axis[0])
    assert "Y is computed at T, which comes before it" in refusal(lambda: te.lower(s, [a, y]))


def test_a_place_that_was_split_away_is_named() -> None:
    a, p, c = chain()
    s = te.create_schedule(c.op)
    s[p].compute_at(s[c], c.op.axis[0])
    s[c].split(c.op.axis[0], factor=2)
    assert "i of C, which is no longer a loop of it" in refusal(lambda: te.lower(s, [a, c]))


def test_memory_of_a_gpu_that_cannot_be() -> None:
    a, p, c = chain()
    for scope, where, message in [
        ("global", "block", "global memory cannot be allocated"),
        ("local", "block", "P (local) is a thread's own, but C reads it from all of a block"),
        ("local", "bound", "P (local) is each thread's own, but threadIdx.x runs its loop"),
        ("tile", "block", "P (tile) is a thread's own, but C reads it from all of a block"),
    ]:
        s = te.create_schedule(c.op)
        s[c].bind(c.op.axis[0], te.thread_axis("blockIdx.x"))
        s[c].bind(c.op.axis[1], te.thread_axis("threadIdx.x"))
        s[p].compute_at(s[c], c.op.axis[0] if where == "block" else c.op.axis[1])
        s[p].set_scope(scope)
        if where == "bound":
            s[p].bind(p.op.axis[1], te.thread_axis("threadIdx.x"))
        assert message in refusal(partial(te.lower, s, [a, c]))


def test_what_runs_around_blocks_and_threads_computes_nothing() -> None:
    """Each thread would have a part of P for itself, or all would store one without waiting for each other."""
    a, p, c = chain()
    for outputs, is_bound in [([c], True), ([c], False), ([c, p], False)]:
        s = te.create_schedule([x.op for x in outputs])
        s[c].bind(c.op.axis[1], te.thread_axis("threadIdx.x"))
        s[p].compute_at(s[c], c.op.axis[0])
        if is_bound:
            s[p].bind(p.op.axis[1], te.thread_axis("threadIdx.x"))
        said = refusal(partial(te.lower, s, [a, *outputs]))
        assert "P is computed at i, which runs around blocks and threads of a GPU" in said
        assert "inside of it: j, bound to threadIdx.x" in said


def test_a_stage_inside_a_kernel_does_not_share_out_its_blocks() -> None:
    a, p, c = chain()
    s = te.create_schedule(c.op)
    s[c].bind(c.op.axis[0], te.thread_axis("blockIdx.x"))
    s[p].compute_at(s[c], c.op.axis[0])
    s[p].bind(p.op.axis[0], te.thread_axis("blockIdx.x"))
    assert "P is computed inside C, whose kernel shares out blockIdx.x already" in refusal(lambda: te.lower(s, [a, c]))


def test_stages_are_not_computed_inside_each_other() -> None:
    """Found by an attack: lowering went round and round."""
    x = te.placeholder((8,), name="x")
    a = te.compute((8,), lambda i: x[i] + 1, name="a")
    b = te.compute((8,), lambda i: a[i] * 2, name="b")
    c = te.compute((8,), lambda i: b[i] - 1, name="c")
    s = te.create_schedule(c.op)
    s[a].compute_at(s[b], b.op.axis[0])
    with pytest.raises(InvalidSchedule, match="b cannot be computed inside a, which is computed inside it"):
        s[b].compute_at(s[a], a.op.axis[0])
    s[b].compute_at(s[c], c.op.axis[0])
    with pytest.raises(InvalidSchedule, match="c cannot be computed inside a, which is computed inside it"):
        s[c].compute_at(s[a], a.op.axis[0])
    other = te.create_schedule(c.op)
    for refused in (
        lambda: s[a].compute_at(other[c], c.op.axis[0]),
        lambda: s[b].compute_with(other[c], c.op.axis[0], b),
    ):
        assert "is computed at c, a stage of another schedule" in refusal(refused)
    data, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    interpret.run(te.lower(s, [x, c]), [data, y])
    np.testing.assert_array_equal(y, 2 * data + 1)


def test_what_is_no_value_does_not_redefine() -> None:
    a = te.placeholder((3, 4), name="a")
    b = te.compute((3, 4), lambda i, j: a[i, j] + 1, name="b")
    s = te.create_schedule(b.op)
    with pytest.raises(InvalidExpression, match="indexed by 1"):
        s[b].redefine(lambda op: a[0])
    k = te.reduce_axis((0, 4), name="k")
    assert "gives float32, over the reduce axes k (reduce)" in refusal(
        lambda: s[b].redefine(lambda op: te.sum(a[op.axis[0], k], axis=k))
    )
    assert "expected float32, over" in refusal(lambda: s[b].redefine(lambda op: op.axis[0].astype("int32")))
    assert str(te.lower(s, [a, b])) == str(te.lower(te.create_schedule(b.op), [a, b]))
