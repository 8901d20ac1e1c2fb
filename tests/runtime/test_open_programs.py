"""Programs whose extents are open: one table for each combination of them, and everything else once."""

from __future__ import annotations

import json
import random
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from renorm.core import records
from renorm.core.conditions import Condition
from renorm.core.dims import Sym
from renorm.core.extents import LONGEST
from renorm.errors import Cancelled, InvalidArtifact, InvalidInput, TimeLimit
from renorm.runtime import Argument, Module, Program, TensorSpec, artifact, load
from renorm.runtime import module as modules
from renorm.runtime.loader import load as load_objects
from renorm.runtime.profile import profile
from renorm.runtime.program import Buffer, Positive, Requirement
from renorm.runtime.table import Launches

N, M, H = Sym("n"), Sym("m"), Sym("h")


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("cost", [1.0, 1e4])
def test_any_extent(open_mirrors, mirrored, threads, cost):
    m = open_mirrors(11, cost, threads=threads)
    assert str(m.inputs[0]) == "x f32[n]"
    for n in (7, 0, 1, 2, 1000, 3, 7, 100_000, 12):
        x = np.random.default_rng(n).random(n, np.float32)
        np.testing.assert_array_equal(m.run(x)[0], mirrored(x, 11))


def test_a_table_is_that_of_the_bound_program(open_program):
    program, code = open_program(7, 500.0)
    image = load_objects([code], "x86_64")
    launches = Launches(program, image)
    program.verify(1, 0)
    for n in (0, 1, 2, 59, 60, 479, 480, 481, 100_000):
        fixed = program.bind({"n": n})
        fixed.verify(1, 0)
        assert not fixed.typical
        one, other = launches.table({"n": n}), Launches(fixed, image).table({})
        for field in ("table", "base", "offset"):
            np.testing.assert_array_equal(getattr(one, field), getattr(other, field))
        for field in ("steps", "is_serial", "shapes", "arena_bytes", "scratch_bytes", "counters", "nanoseconds"):
            assert getattr(one, field) == getattr(other, field), field
    assert program.bind({"n": 480}).codes[0].chunks == (60,)
    assert program.bind({"n": 479}).codes[0].chunks == (0,)


def test_extents_are_solved_for(open_mirrors):
    m = open_mirrors(2, n=16 * Sym("h", 1, 100) - 3, typical=4)
    x = np.random.default_rng(0).random(16 * 6 - 3, np.float32)
    np.testing.assert_array_equal(m.run(x)[0], x + np.float32(2))
    for n, said in [
        (94, r"x, axis 0: 94 is -3 \+ 16\*h for no h"),
        (16 * 102 - 3, r"x, axis 0: 1629, but -3 \+ 16\*h is in 13..1597"),
        (0, r"x, axis 0: 0, but"),
    ]:
        with pytest.raises(InvalidInput, match=said):
            m.run(np.zeros(n, np.float32))


def test_broken_equations_are_errors_before_anything_runs(open_program, walker):
    program, code = open_program(2)
    more = (*program.inputs, TensorSpec("mask", "int64", (M, N)), TensorSpec("flat", "int64", (M * N + 1,)))
    program = replace(program, inputs=more, typical={**program.typical, "m": 3})
    m = Module(program, [code], b"", walker, 1)
    x, mask, flat = np.ones(5, np.float32), np.zeros((3, 5), np.int64), np.zeros(16, np.int64)
    np.testing.assert_array_equal(m.run(x, mask, flat)[0], x + 2)
    with pytest.raises(InvalidInput, match="mask, axis 1: n is 4 here and 5 elsewhere"):
        m.run(x, mask[:, :4], flat)
    with pytest.raises(InvalidInput, match=r"flat, axis 0: 15 where .* is 16"):
        m.run(x, mask, flat[1:])
    with pytest.raises(InvalidInput, match="mask has rank 2, not 1"):
        m.run(x, mask[0], flat)
    with pytest.raises(InvalidInput, match=r"input mask: missing, expected int64\[m, n\]"):
        m.run(x, flat=flat)
    with pytest.raises(InvalidInput, match="input x: list, which is neither"):
        m.run([1, 2], mask, flat)
    with pytest.raises(InvalidInput, match=r"input x: float64\[5\], expected float32\[5\]"):
        m.run(x.astype(float), mask, flat)
    with pytest.raises(InvalidInput, match="'more' is not an input"):
        m.run(x, mask, flat, more=x)
    with pytest.raises(InvalidInput, match=r"output y: float32\[4\], expected writable C-contiguous float32\[5\]"):
        m.run(x, mask, flat, out=[np.empty(4, np.float32)])


def test_conditions_are_held_against_a_call(open_program, walker):
    program, code = open_program(2)
    more = TensorSpec("mask", "int64", (M,))
    said = (Requirement(Condition(N, "==", 2 * M + 1), "join"), Requirement(Condition(M, "<=", 10), "cut"))
    program = replace(program, inputs=(*program.inputs, more), typical={"n": 5, "m": 2}, conditions=said)
    m = Module(program, [code], b"", walker, 1)
    m.run(np.zeros(9, np.float32), np.zeros(4, np.int64))
    with pytest.raises(InvalidInput, match=r"(?s)mirrors has no result where n is 9, m is 5.*'join' needs .* 9 and 11"):
        m.run(np.zeros(9, np.float32), np.zeros(5, np.int64))
    with pytest.raises(InvalidInput, match="'cut' needs m <= 10, where they are 11 and 10"):
        m.run(np.zeros(23, np.float32), np.zeros(11, np.int64))
    with pytest.raises(InvalidArtifact, match="a condition 'is'"):
        replace(program, conditions=(Requirement(Condition(N, "is", M), "join"),)).verify(1, 0)


def test_steps_say_which_extents_must_be_positive(open_program, walker):
    """Where one is not, the step has nothing to do, or the program is refused."""
    program, code = open_program(2)
    fixed = {"codes": (replace(program.codes[0], phases=(5,)),), "outputs": (TensorSpec("y", "float32", (5,)),)}
    fixed |= {"buffers": (Buffer(64), Buffer(64)), "inputs": (*program.inputs, TensorSpec("z", "float32", (M,)))}

    def made(extent, is_needed: bool) -> Module:
        steps = [replace(s, args=(*s.args[:2], Argument("extent", 5))) for s in program.steps]
        steps = [steps[0], replace(steps[1], positive=(Positive(extent, int(is_needed)),))]
        changed = replace(program, steps=tuple(steps), typical={"n": 5, "m": 7}, **fixed)
        return Module(changed, [code], b"", walker, 1)

    x, z = np.arange(5, dtype=np.float32), np.zeros(7, np.float32)
    for extent, count in ((M, 0), (M - 4, 4), (M // 4, 3)):
        for is_needed in (False, True):
            m = made(extent, is_needed)
            np.testing.assert_array_equal(m.run(x, z)[0], x + 2)
            out = np.full(5, 7, np.float32)
            if is_needed:
                with pytest.raises(InvalidInput, match=r"(?s)cannot run where n is 5, m is .*kernel 'kernel_1' needs "):
                    m.run(x, z[:count], out=[out])
            else:
                m.run(x, z[:count], out=[out])
                bound = m.program.bind({"n": 5, "m": count})
                bound.verify(1, 0)
                assert [bound.codes[s.code].phases for s in bound.steps] == [(5,), (0,)]
            np.testing.assert_array_equal(out, 7)


def _extent(n: int) -> np.ndarray:
    """An array of any extent that takes no memory."""
    return np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (n,), (0,))


@pytest.mark.parametrize("n", [LONGEST + 1, 1 << 40, 1 << 60])
def test_extents_beyond_all_bounds(open_mirrors, n):
    with pytest.raises(InvalidInput, match=r"an extent is at most|there is nothing"):
        open_mirrors().run(_extent(n))


def test_sizes_that_follow_are_bounded(open_program, walker):
    program, code = open_program(2)
    huge = replace(program, buffers=(Buffer(N * N * N), program.buffers[1]))
    m = Module(huge, [code], b"", walker, 1)
    x = np.ones(9, np.float32)
    np.testing.assert_array_equal(m.run(x)[0], x + 2)
    with pytest.raises(InvalidInput, match="there is nothing of that size: n is 1073741824"):
        m.run(_extent(1 << 30))

    def broken(said: str, n: int, **changes) -> None:
        m = Module(replace(program, **changes), [code], b"", walker, 1)
        with pytest.raises(InvalidInput, match=f"(?s){said}"):
            m.run(np.zeros(n, np.float32))

    away = [replace(s, args=(*s.args[:1], replace(s.args[1], offset=24 * (N - 100)), s.args[2])) for s in program.steps]
    broken(
        "mirrors cannot run where n is 200.*byte 2400 of arena, which has 1664", 200, steps=(away[0], program.steps[1])
    )
    broken("mirrors cannot run where n is 50.*byte -1200 of arena", 50, steps=(away[0], program.steps[1]))
    broken("mirrors cannot run where n is 99.*byte -24 of output", 99, steps=(program.steps[0], away[1]))

    def result(extent) -> dict[str, object]:
        return {"outputs": (replace(program.outputs[0], shape=(extent,)),)}

    broken("mirrors cannot run where n is 3.*shape", 3, **result(N - 4))
    broken("there is nothing of that size: n is 3.*3 // 0", 3, **result(N // (N - 3)))


def test_arguments_and_results_are_those_of_the_call(open_mirrors, mirrored):
    m = open_mirrors(4)
    x = np.random.default_rng(1).random(33, np.float32)
    out = np.empty(33, np.float32)
    assert m.run(x, out=[out])[0] is out
    np.testing.assert_array_equal(out, mirrored(x, 4))
    np.testing.assert_array_equal(m.run(x=x[::-1])[0], mirrored(x[::-1], 4))
    m.run(x, out=[x])
    np.testing.assert_array_equal(x, out)
    assert len(profile(m, x)) == 4
    assert [len(r.parts[0]) for r in m.recorded(x, repeats=2)] == [4, 4]
    np.testing.assert_array_equal(m.evaluate([x])[0], mirrored(x, 4))


def test_memory_is_that_of_the_largest(open_mirrors, mirrored):
    m = open_mirrors(6)
    sizes = [*range(1, 60), 100_000, *range(60, 200), 50_000, 3]
    for n in sizes:
        x = np.random.default_rng(n).random(n, np.float32)
        np.testing.assert_array_equal(m.run(x)[0], mirrored(x, 6))
    (place,) = m._idle
    assert len(m._last.sizes) == modules.TABLES >= len(place.contexts)
    assert place._arena.nbytes == 2 * 400_000
    assert all(c.arena is place._arena for c in place.contexts.values())


@pytest.mark.parametrize("threads", [1, 2])
def test_calls_from_several_threads(open_mirrors, mirrored, threads):
    m, failed = open_mirrors(9, 300.0, threads=threads), list[BaseException]()

    def call(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(60):
                x = rng.random(rng.integers(0, 3000), np.float32)
                np.testing.assert_array_equal(m.run(x)[0], mirrored(x, 9))
        except BaseException as error:
            failed.append(error)

    callers = [threading.Thread(target=call, args=(seed,)) for seed in range(4)]
    for c in callers:
        c.start()
    for c in callers:
        c.join()
    assert not failed


@pytest.mark.parametrize("threads", [1, 2])
def test_runs_end_before_they_are_done(open_mirrors, mirrored, threads):
    m = open_mirrors(400, 1000.0, threads=threads)
    x = np.zeros(1_000_000, np.float32)
    with pytest.raises(TimeLimit):
        m.run(x, timeout=0.01)
    timer = threading.Timer(0.02, m.cancel)
    timer.start()
    with pytest.raises(Cancelled):
        m.run(x)
    timer.join()
    small = np.arange(9, dtype=np.float32)
    np.testing.assert_array_equal(m.run(small, timeout=60)[0], mirrored(small, 400))


def test_the_first_call_of_a_shape_is_quick(open_mirrors):
    m = open_mirrors(100)
    m.run(np.zeros(5000, np.float32))
    spent = list[float]()
    for n in range(1, 60):
        x = np.zeros(n, np.float32)
        begin = time.perf_counter()
        m.run(x)
        spent.append(time.perf_counter() - begin)
    assert np.median(spent) < 5e-3  # it takes some 0.2 ms on a calm machine


@pytest.fixture
def saved(open_mirrors, tmp_path):
    m = open_mirrors(5)
    path = tmp_path / "open.renorm"
    m.save(path)
    return m, path


def test_one_file_serves_all_extents(saved, mirrored):
    m, path = saved
    held: Any = load(path)
    assert held.program == m.program
    assert held.inputs[0].shape == (N,)
    for n in (3, 0, 50):
        x = np.random.default_rng(n).random(n, np.float32)
        np.testing.assert_array_equal(held.run(x)[0], mirrored(x, 5))
    assert artifact.programs(path)[2][0].typical == {"n": 100}


@pytest.mark.parametrize("cost", [1e308, float("inf"), float("nan"), -1.0])
def test_times_are_those_of_a_machine(open_program, cost):
    """Finite ones, too, that are infinite in sum."""
    program, _ = open_program(2)
    code = replace(program.codes[0], costs=(cost,) * len(program.codes[0].phases))
    with pytest.raises(InvalidArtifact, match="code 0: costs"):
        replace(program, codes=(code,)).verify(1, 0)


OTHERS = [
    *(None, True, -1, 0, 1, 1 << 31, 1 << 47, 1 << 62, 1 << 63, 10**30, 1.5, float("nan"), "", "n", "\ud800", [], {}),
    *([[1, "n"]], [[1, ["//", [[1, "n"]], 0]]], [[-1, "n", "n"], [5]], [[1, "q"]], [[2, "n"], [2, "n"]], "buffer"),
    *([[4, "n"], [-24]], [[1, ["%", [[1, "n"]], 5]]], [[8, "m"]], [[1, "m", "n"], [-4]]),
]


def _changed(value, rng):
    """A value of JSON with something else in place of a part."""
    if rng.random() < 0.1 or not isinstance(value, (list, dict)) or not value:
        return rng.choice(OTHERS)
    if isinstance(value, list):
        i = rng.randrange(len(value))
        return [*value[:i], *([_changed(value[i], rng)] * rng.choice([1, 1, 1, 1, 1, 0, 2])), *value[i + 1 :]]
    key = rng.choice(list(value))
    return {**value, key: _changed(value[key], rng)}


@pytest.mark.parametrize("seed", range(20))
def test_programs_of_anything_are_refused(open_program, seed):
    """What is read, verified and bound is a program, or refused with an error that says why."""
    program, _ = open_program(3, n=Sym("n", 1, 50), typical=6)
    program = replace(_wide(program), report=type(program.report)())
    plain, rng, sound = json.loads(json.dumps(records.plain(program))), random.Random(seed), 0
    for _ in range(250):
        data = plain
        for _ in range(rng.choice([1, 1, 1, 2, 5])):
            data = _changed(data, rng)
        with suppress(ValueError, InvalidArtifact):
            made = records.record(Program, json.loads(json.dumps(data)))
            made.verify(1, 0)
            sound += 1
            for n in (1, 2, 6, 50):
                with suppress(InvalidArtifact, InvalidInput):
                    made.bind(dict.fromkeys(made.typical, n)).verify(1, 0)
    assert sound


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.builds(lambda a, b, c: a * N + b * (N % 7) + c, *[st.integers(-3, 5)] * 2, st.integers(-40, 40)),
        min_size=12,
        max_size=12,
    ),
    st.lists(st.sampled_from([4 * N, 4 * N, 4 * N, N, 0]), min_size=12, max_size=12),
    st.lists(st.booleans(), min_size=12, max_size=12),
    st.lists(st.integers(0, 60), min_size=3, max_size=3),
)
def test_there_is_a_table_where_the_bound_program_is_sound(open_program, drawn, usual, takes, values):
    """The quick look at sizes refuses what `Program.verify` refuses, and nothing else."""
    program, code = open_program(3)
    dims = iter([one if take else other for one, other, take in zip(drawn, usual, [*takes])])
    buffers = tuple(
        Buffer(next(dims), tuple(replace(a, end=next(dims), begin=next(dims) if takes[0] else 0) for a in b.above))
        for b in program.buffers
    )
    steps = tuple(
        replace(s, args=(*s.args[:1], replace(s.args[1], offset=next(dims)), s.args[2])) for s in program.steps
    )
    outputs = (replace(program.outputs[0], shape=(next(dims),)),)
    codes = (replace(program.codes[0], phases=(next(dims),)),)
    program = replace(program, buffers=buffers, steps=steps, outputs=outputs, codes=codes)
    launches = Launches(program, load_objects([code], "x86_64"))
    for n in values:
        try:
            program.bind({"n": n}).verify(1, 0)
        except InvalidArtifact:
            with pytest.raises(InvalidInput):
                launches.table({"n": n})
        else:
            launches.table({"n": n})


def _wide(program: Program) -> Program:
    """With a second extent, and with quotients."""
    more = TensorSpec("mask", "int64", (N // 2 + M % 3, M))
    return replace(program, inputs=(*program.inputs, more), typical={**program.typical, "m": 2})
