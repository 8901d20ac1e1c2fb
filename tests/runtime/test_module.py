"""Running: results, threads, arrays in and out, errors."""

from __future__ import annotations

import json
import sys
import threading
import time
from itertools import pairwise

import numpy as np
import pytest

from renorm.core import records
from renorm.errors import InvalidArtifact, InvalidInput, InvalidTarget
from renorm.runtime import Argument, Code, Machine, Memory, Module, Program, Step, TensorSpec, layout
from renorm.runtime.arrays import shape_of
from renorm.runtime.profile import profile

THREADS = (1, 2, 3, 4)


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("n", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("chunk", [0, 1, 5])
def test_chain_reads_what_other_threads_wrote(mirrors, mirrored, threads, n, chunk):
    m = mirrors(n, 11, threads, chunk)
    for seed in range(5):
        x = np.random.default_rng(seed).random(n, np.float32)
        np.testing.assert_array_equal(m.run(x)[0], mirrored(x, 11))


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("n", [1, 2, 5, 17])
def test_each_iteration_runs_once_and_each_share_on_one_thread(build, phase, threads, n):
    body = """
  %who = getelementptr i64, ptr %p1, i64 %i
  store i64 %thread, ptr %who
  %count = getelementptr i64, ptr %p0, i64 %i
  %old = load i64, ptr %count
  %new = add i64 %old, 1
  store i64 %new, ptr %count"""
    zero = "%at = getelementptr i64, ptr %p0, i64 %i\n  store i64 0, ptr %at"
    codes = [(phase(0, 1, zero), (n,)), (phase(0, 2, body), (n,))]
    outputs = [("count", "int64", (n,)), ("who", "int64", (n,))]
    m = build(codes, [(0, [("output", 0)]), (1, [("output", 0), ("output", 1)])], [], outputs, threads=threads)
    count, who = m.run()
    np.testing.assert_array_equal(count, 1)
    ends = [-(-n * t // threads) for t in range(threads + 1)]  # who has no thread yet may find its share taken
    assert all(len(set(who[begin:end])) <= 1 for begin, end in pairwise(ends))
    assert set(who) <= set(range(threads))


@pytest.mark.parametrize("threads", THREADS)
def test_serial_phases_and_scratch(build, phase, threads):
    n = 64
    # threads leave marks in their own scratch; a serial phase then adds up x; a parallel one writes the sum everywhere
    mark = """
  %scratch = mul i64 %thread, 64
  %own = getelementptr i8, ptr %p3, i64 %scratch
  store i64 %thread, ptr %own
  %x = getelementptr i64, ptr %p0, i64 %i
  %v = load i64, ptr %x
  %read = load i64, ptr %own
  %same = sub i64 %read, %thread
  %w = add i64 %v, %same
  %t = getelementptr i64, ptr %p1, i64 %i
  store i64 %w, ptr %t"""
    total = """
  %k = phi i64 [ 0, %loop ], [ %k.next, %sum ]
  %acc = phi i64 [ 0, %loop ], [ %acc.next, %sum ]
  %x = getelementptr i64, ptr %p1, i64 %k
  %v = load i64, ptr %x
  %acc.next = add i64 %acc, %v
  %k.next = add i64 %k, 1
  %end = icmp eq i64 %k.next, 64
  br i1 %end, label %store, label %sum
store:
  store i64 %acc.next, ptr %p1"""
    spread = """
  %s = load i64, ptr %p1
  %y = getelementptr i64, ptr %p2, i64 %i
  store i64 %s, ptr %y"""
    text = phase(0, 4, mark) + phase(1, 4, "br label %sum\nsum:" + total) + phase(2, 4, spread)
    m = build(
        [(text, (n, 1, n), 64)],
        [(0, [("input", 0), ("arena", 64), ("output", 0)])],
        [("x", "int64", (n,))],
        [("y", "int64", (n,))],
        64 + 8 * n,
        threads=threads,
    )
    for k in range(20):
        np.testing.assert_array_equal(m.run(np.arange(n) + k)[0], np.full(n, n * (n - 1) // 2 + n * k))


def test_weights_are_read_from_aligned_memory(build, phase):
    body = """
  %w = getelementptr float, ptr %p0, i64 %i
  %v = load float, ptr %w
  %y = getelementptr float, ptr %p1, i64 %i
  store float %v, ptr %y"""
    values = np.arange(40, dtype=np.float32)
    steps = [(0, [("weight", 64), ("output", 0)])]
    changed = bytearray(values.tobytes())
    for weights in (values.tobytes(), changed):
        m = build([(phase(0, 2, body), (24,))], steps, [], [("y", "float32", (24,))], weights=weights)
        np.testing.assert_array_equal(m.run()[0], values[16:])
    assert m._weights.address % 64 == 0
    changed[:] = bytes(len(changed))  # a copy was taken
    np.testing.assert_array_equal(m.run()[0], values[16:])
    with pytest.raises(ValueError, match="read-only"):
        m._weights.arrays[0][0] = 1


def test_memory_that_is_handed_over_is_sealed(build, walker, assemble, phase):
    memory = Memory(100)
    program = Program(Machine("x86_64"), (), (), (), (), weight_bytes=100)
    m = Module(program, [], memory, walker, 1)
    assert m._weights.address == memory.address
    with pytest.raises(ValueError, match="read-only"):
        memory.array[0] = 1
    assert m.run() == []


@pytest.mark.parametrize("threads", [1, 2])
def test_tensors_without_elements(build, phase, threads):
    m = build(
        [(phase(0, 2, ""), (0,)), (phase(0, 2, ""), (3,))],
        [(0, [("input", 0), ("output", 0)]), (1, [("input", 0), ("output", 0)])],
        [("x", "float32", (0, 3))],
        [("y", "float32", (3, 0))],
        threads=threads,
    )
    (y,) = m.run(np.empty((0, 3), np.float32))
    assert y.shape == (3, 0)
    m.run(np.empty((0, 3), np.float32), out=[y])


# ---- arrays in ----


def test_inputs_by_name_and_position(build, phase):
    body = """
  %a = getelementptr float, ptr %p0, i64 %i
  %b = getelementptr float, ptr %p1, i64 %i
  %c = getelementptr float, ptr %p2, i64 %i
  %va = load float, ptr %a
  %vb = load float, ptr %b
  %v = fsub float %va, %vb
  store float %v, ptr %c"""
    inputs = [("a", "float32", (2, 3)), ("layer/b:0", "float32", (2, 3))]
    steps = [(0, [("input", 0), ("input", 1), ("output", 0)])]
    m = build([(phase(0, 3, body), (6,))], steps, inputs, [("c", "float32", (2, 3))])
    a, b = np.random.default_rng(0).random((2, 2, 3)).astype(np.float32)
    for y in (m.run(a, b), m.run(a, **{"layer/b:0": b}), m.run(**{"layer/b:0": b, "a": a}), m(a, b)):
        np.testing.assert_array_equal(y[0], a - b)
    # what is not C-contiguous is copied; what is read-only is read where it lies
    frozen = b.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(m.run(np.asfortranarray(a), frozen)[0], a - b)
    np.testing.assert_array_equal(m.run(a[::-1], b[:, ::-1])[0], a[::-1] - b[:, ::-1])


def test_all_that_is_wrong_with_inputs_is_said_at_once(build):
    inputs = [("image", "float32", (1, 3)), ("mask", "bool", (3,)), ("size", "int64", ())]
    m = build([], [], inputs, [], name="net")
    with pytest.raises(InvalidInput) as error:
        m.run(np.zeros((1, 3)), np.zeros(4, bool), [1], np.zeros(1), imag=1)
    text = str(error.value)
    for part in (
        "net: the arrays given",
        "4 arrays by position, expected at most 3",
        "'imag' is not an input",
        "image: float64[1, 3], expected float32[1, 3]",
        "mask: bool[4], expected bool[3]",
        "size: list, which is neither",
        "astype(np.float32)",
    ):
        assert part in text
    with pytest.raises(InvalidInput, match="mask: missing, expected bool"):
        m.run(np.zeros((1, 3), np.float32), size=np.int64(3))
    with pytest.raises(InvalidInput, match="by position and by name"):
        m.run(np.zeros((1, 3), np.float32), image=np.zeros((1, 3), np.float32))
    with pytest.raises(InvalidInput, match="foreign byte order"):
        m.run(np.zeros((1, 3), ">f4"), np.zeros(3, bool), np.int64(1))
    m.run(np.zeros((1, 3), np.float32), np.zeros(3, bool), np.int64(1))


def test_shape_of():
    assert shape_of(np.zeros((2, 3))) == (2, 3)
    assert shape_of(pytest.importorskip("torch").zeros(4, 0)) == (4, 0)
    with pytest.raises(InvalidInput, match="list, which is neither"):
        shape_of([1, 2])


def test_torch_tensors_in_and_out(mirrors, mirrored):
    torch = pytest.importorskip("torch")
    m = mirrors(100, 3)
    x, y = torch.rand(100), torch.zeros(100)
    (result,) = m.run(x, out=[y])
    assert result is y
    np.testing.assert_array_equal(y.numpy(), mirrored(x.numpy(), 3))
    with pytest.raises(InvalidInput, match=r"use tensor.detach\(\)"):
        m.run(torch.rand(100, requires_grad=True))
    with pytest.raises(InvalidInput, match="float64"):
        m.run(torch.rand(100, dtype=torch.float64))
    base = torch.rand(200)
    np.testing.assert_array_equal(m.run(base[::2])[0], mirrored(base.numpy()[::2], 3))


def test_bfloat16(build, phase):
    torch, ml_dtypes = pytest.importorskip("torch"), pytest.importorskip("ml_dtypes")
    body = """
  %x = getelementptr i16, ptr %p0, i64 %i
  %v = load i16, ptr %x
  %y = getelementptr i16, ptr %p1, i64 %i
  store i16 %v, ptr %y"""
    kind = ("bfloat16", (4, 6))
    m = build([(phase(0, 2, body), (24,))], [(0, [("input", 0), ("output", 0)])], [("x", *kind)], [("y", *kind)])
    x = np.random.default_rng(0).random((4, 6)).astype(ml_dtypes.bfloat16)
    (y,) = m.run(x)
    assert y.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(y, x)
    t = torch.rand(6, 4).to(torch.bfloat16)
    np.testing.assert_array_equal(m.run(t.T)[0].astype(np.float32), t.T.float().numpy())
    result = torch.zeros(4, 6, dtype=torch.bfloat16)
    m.run(x, out=[result])
    np.testing.assert_array_equal(result.float().numpy(), x.astype(np.float32))
    with pytest.raises(InvalidInput, match=r"bfloat16\[6, 4\], expected bfloat16\[4, 6\]"):
        m.run(t)


# ---- arrays out ----


def test_results_are_never_touched_again(mirrors, mirrored):
    n = 40_000  # large enough that memory of results is used again
    m = mirrors(n, 3, 2)
    rng = np.random.default_rng(0)
    held, views = [], []
    for k in range(12):
        x = rng.random(n, np.float32)
        (y,) = m.run(x)
        assert y.ctypes.data % 64 == 0
        assert y.flags.writeable
        if k % 3 == 0:
            held.append((y, mirrored(x, 3)))
        elif k % 3 == 1:
            views.append((y[5:20:3], mirrored(x, 3)[5:20:3]))
            views.append((memoryview(y), mirrored(x, 3)))
        del y
    for got, expected in held + views:
        np.testing.assert_array_equal(np.asarray(got), expected)
    assert len({y.ctypes.data for y, _ in held}) == len(held)


def test_memory_of_dropped_results_is_used_again(mirrors):
    m = mirrors(100_000, 1)
    x = np.zeros(100_000, np.float32)
    places = {m.run(x)[0].ctypes.data for _ in range(10)}
    assert len(places) <= 2


def test_out_is_written_and_returned(mirrors, mirrored):
    m = mirrors(50, 4, 2)
    x = np.arange(50, dtype=np.float32)
    y = np.zeros(50, np.float32)
    assert m.run(x, out=[y])[0] is y
    np.testing.assert_array_equal(y, mirrored(x, 4))
    y[:] = 0
    assert m.run(x, out=y)[0] is y
    np.testing.assert_array_equal(y, mirrored(x, 4))
    assert m.run(x, out=[None])[0] is not y


@pytest.mark.parametrize("shift", [-7, 0, 3])
def test_out_may_overlap_an_input(mirrors, mirrored, shift):
    m = mirrors(50, 1)
    memory = np.arange(100, dtype=np.float32)
    x, y = memory[20:70], memory[20 + shift : 70 + shift]
    expected = mirrored(x.copy(), 1)
    m.run(x, out=[y])
    np.testing.assert_array_equal(y, expected)


def test_all_that_is_wrong_with_out_is_said_at_once(build):
    outputs = [(name, "float32", (4,)) for name in "abcdef"]
    m = build([], [], [], outputs)
    frozen = np.zeros(4, np.float32)
    frozen.flags.writeable = False
    with pytest.raises(InvalidInput) as error:
        m.run(out=[np.zeros(4), np.zeros(3, np.float32), frozen, np.zeros(8, np.float32)[::2], 3, None, None])
    text = str(error.value)
    for part in (
        "out has 7 arrays, expected 6",
        "a: float64[4]",
        "b: float32[3]",
        "c: read-only",
        "d: not C-contiguous",
        "e: int, which",
    ):
        assert part in text
    shared = np.zeros(6, np.float32)
    with pytest.raises(InvalidInput, match="outputs a and b share memory"):
        m.run(out=[shared[:4], shared[2:], None, None, None, None])


# ---- several callers ----


@pytest.mark.parametrize("threads", [1, 2])
def test_several_python_threads_at_once(mirrors, mirrored, threads):
    m, other = mirrors(300, 20, threads), mirrors(200, 5, 2)
    failures = []

    def call(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(100):
            x = rng.random(300, np.float32)
            if not np.array_equal(m.run(x)[0], mirrored(x, 20)):
                failures.append(seed)
            if not np.array_equal(other.run(x[:200])[0], mirrored(x[:200], 5)):
                failures.append(seed)

    callers = [threading.Thread(target=call, args=(k,)) for k in range(4)]
    for c in callers:
        c.start()
    for c in callers:
        c.join(60)
    assert not failures
    assert not any(c.is_alive() for c in callers)


def test_many_runs_give_the_same_bits(mirrors, mirrored):
    x = np.random.default_rng(1).random(64, np.float32)
    expected = mirrored(x, 12)
    for threads in (2, 3):
        m = mirrors(64, 12, threads)
        y = np.empty_like(x)
        for _ in range(1_000):  # many more in test_kernels
            m.run(x, out=[y])
            assert np.array_equal(y, expected)


# ---- what is around a run ----


def test_profile_names_every_launch(mirrors):
    m = mirrors(100, 5, 2)
    times = profile(m, np.zeros(100, np.float32), repeats=3)
    assert [t.kernel for t in times] == [f"kernel_{i}" for i in range(5)]
    assert all(0 <= t.fastest <= t.seconds < 1 for t in times)


@pytest.mark.parametrize(("threads", "chunk"), [(1, 0), (2, 0), (3, 7)])
def test_a_recording_says_when_each_thread_did_its_part(mirrors, mirrored, threads, chunk):
    m, x = mirrors(100, 5, threads, chunk), np.arange(100, dtype=np.float32)
    before = time.perf_counter_ns()
    runs = m.recorded(x, repeats=3)
    assert [r.steps for r in runs] == [tuple(range(6))] * 3
    for run in runs:
        assert run.parts.shape == (threads, 5, 2)
        took = run.parts.any(-1)
        assert took.any(0).all()
        begun, ended = run.parts[..., 0], run.parts[..., 1]
        assert (begun <= ended).all()
        assert before < run.begin < begun[took].min() < ended.max() < run.end
        first = np.where(took, begun, run.end).min(0)
        assert (ended.max(0)[:-1] <= first[1:]).all()  # there is a barrier before each
        before = run.end
    np.testing.assert_array_equal(m.run(x)[0], mirrored(x, 5))


def test_who_has_no_part_in_a_phase_leaves_no_times(mirrors):
    for run in mirrors(2, 3, 3).recorded(np.zeros(2, np.float32), repeats=20):
        took = run.parts.any(-1).sum(0)  # two iterations, for three threads
        assert ((took >= 1) & (took <= 2)).all()


def test_module_for_another_machine_can_only_be_saved(walker, tmp_path):
    program = Program(Machine("riscv64"), (), (), (), (), name="net")
    m = Module(program, [], b"", walker, 1)
    with pytest.raises(InvalidTarget, match="this machine is x86_64, expected riscv64"):
        m.run()
    m.save(tmp_path / "a.renorm")


def test_contradictions_are_all_named(walker):
    program = Program(
        Machine("x86_64"),
        (TensorSpec("x", "float32", (4,)),),
        (TensorSpec("y", "float32", (4,)), TensorSpec("y", "float32", (5,))),
        (Code(0, (1,)), Code(3, (1,), 7, (1, 2, 3))),
        (
            Step("k", 2, (Argument("input", 1), Argument("arena", 65), Argument("weight", -1), Argument("stack", 0))),
            Step("l", 0, (Argument("input", 0, 17),)),
        ),
        arena_bytes=64,
        weight_bytes=10,
    )
    with pytest.raises(InvalidArtifact) as error:
        Module(program, [b""], b"", walker, 1)
    text = str(error.value)
    for part in (
        "0 bytes, expected 10",
        "names are not distinct",
        "code 1: object 3",
        "code 1: scratch 7",
        "code 1: chunks",
        "'k': code 2, there are 2",
        "input 1, there are 1",
        "byte 65 of arena, which has 64",
        "byte -1 of weight",
        "kind 'stack'",
        "'l', argument 0: byte 17 of input 0, which has 16",
    ):
        assert part in text


@pytest.mark.parametrize("chunk", [1, 3, 50])
@pytest.mark.parametrize("threads", [2, 3, 5])
def test_work_of_a_thread_that_is_stopped_is_taken_by_others(build, phase, threads, chunk):
    """Iteration 0 ends when all but those of its own chunk have run: a lasting wait, unless others take its share."""
    n = 151
    body = f"""
  %place = getelementptr i64, ptr %p1, i64 %i
  %old = load i64, ptr %place
  %new = add i64 %old, 1
  store i64 %new, ptr %place
  %before = atomicrmw add ptr %p0, i64 1 seq_cst
  %is.first = icmp eq i64 %i, 0
  br i1 %is.first, label %wait, label %latch
wait:
  %so.far = load atomic i64, ptr %p0 seq_cst, align 8
  %enough = icmp uge i64 %so.far, {n - chunk + 1}
  br i1 %enough, label %latch, label %wait"""
    text = phase(0, 1, "store i64 0, ptr %p0") + phase(1, 2, body).replace("br label %latch\nlatch", "latch")
    m = build(
        [(text, (1, n), 0, (0, chunk))],
        [(0, [("arena", 0), ("output", 0)])],
        [],
        [("count", "int64", (n,))],
        64,
        threads=threads,
    )
    for _ in range(20):
        count = np.zeros(n, np.int64)
        m.run(out=count)
        np.testing.assert_array_equal(count, 1)


def test_waits_between_steps_are_those_of_the_program(walker, assemble, mirror_text):
    spec = (TensorSpec("x", "float32", (8,)),)
    args = (Argument("input", 0), Argument("output", 0))
    steps = [Step("a", 0, args, w) for w in ((), (True,), (False,), (False,), ())]
    program = Program(Machine("x86_64"), spec, (TensorSpec("y", "float32", (8,)),), (Code(0, (8,)),), tuple(steps))
    m = Module(program, [assemble(mirror_text(8))], b"", walker, threads=2)
    # nothing stands before the first, and a step that does not say waits
    assert m._only
    assert (m._only.launches.table[:, layout.FLAGS // 8] & layout.BARRIER).tolist() == [0, 1, 0, 0, 1]
    x = np.arange(8, dtype=np.float32)
    np.testing.assert_array_equal(m.run(x)[0], x[::-1] + 1)
    assert records.record(Program, json.loads(json.dumps(records.plain(program)))) == program
    wrong = Program(program.machine, spec, program.outputs, program.codes, (Step("a", 0, args, (True, False)),))
    with pytest.raises(InvalidArtifact, match="2 waits for 1 phases"):
        wrong.verify(1, 0)


class Exporter:
    """Raises where it should export its memory."""

    def __init__(self, error):
        self.error = error

    def __dlpack__(self, **_):
        raise self.error

    def __dlpack_device__(self):
        return 1, 0


@pytest.mark.parametrize("error", [KeyError("no"), ZeroDivisionError(), MemoryError(), AttributeError("no")])
def test_what_a_producer_of_dlpack_raises_is_an_invalid_input(mirrors, error):
    with pytest.raises(InvalidInput, match="Exporter that does not export its memory"):
        mirrors(10, 1).run(Exporter(error))


def test_to_look_at_an_array_imports_no_masked_ones(monkeypatch):
    """Which takes time, and memory that there may not be."""
    monkeypatch.delattr(np, "ma", raising=False)
    monkeypatch.delitem(sys.modules, "numpy.ma", raising=False)
    assert shape_of(np.ones((2, 3))) == (2, 3)
    assert "numpy.ma" not in sys.modules


def test_masked_arrays_are_refused(mirrors):
    m, x = mirrors(10, 1), np.arange(10, dtype=np.float32)
    masked = np.ma.array(x, mask=x > 3)
    with pytest.raises(InvalidInput, match="a masked array, whose mask would be lost"):
        m.run(masked)
    with pytest.raises(InvalidInput, match="a masked array"):
        m.run(x, out=masked)
    m.run(masked.data)
