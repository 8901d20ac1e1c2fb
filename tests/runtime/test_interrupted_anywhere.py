"""An interrupt at every line, and at every opcode, of what runs networks: nothing is left half done.

A tracer raises KeyboardInterrupt once in a call, at one moment after the other until a call passes without it. Then no
team is taken, no lock held, nobody busy, no number of a worker had twice, the state is that of before or of after, and
runs are right bit for bit.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import renorm.runtime
from renorm.core import locks
from renorm.errors import TimeLimit
from renorm.runtime import Argument, Code, Machine, Module, Program, Step, TensorSpec, layout, openmp, pool, threads
from renorm.runtime.external import ExternalCode
from renorm.runtime.program import External

NAMES = ("arrays", "external", "module", "openmp", "pool", "state", "table", "threads")
FILES = frozenset(str(Path(renorm.runtime.__file__).with_name(f"{name}.py")) for name in NAMES)
N = 64
X = np.arange(N, dtype=np.float32)

pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),  # of finalizers, which are hit too
]


MOMENTS = pytest.mark.parametrize(
    "opcodes", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["lines", "opcodes"]
)


class At:
    """Raises KeyboardInterrupt at moment number `when` of what is called inside. opcodes: moments are opcodes, not
    lines."""

    def __init__(self, when: int, opcodes: bool):
        self.when, self.opcodes, self.seen = when, opcodes, 0

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename not in FILES:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = self.opcodes, not self.opcodes
        if event in ("line", "opcode"):
            self.seen += 1
            if self.seen == self.when:
                raise KeyboardInterrupt
        return self

    def __enter__(self) -> At:
        self._before = sys.gettrace()
        sys.settrace(self)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    @property
    def is_past(self) -> bool:
        """Whether there was no such moment."""
        return self.seen < self.when


def word(memory: Any, field: int) -> int:
    return threads._word(memory, field).value


def whole() -> None:
    """Nothing is taken, held or counted, and no worker is one too many."""
    assert threads._callers.words[layout.DEPTH // 8] == 0
    assert word(threads._process, layout.BUSY) == 0
    assert not [lock.name for lock in locks._locks() if not lock.take() or lock.release()]
    for team in list(threads._teams.values()):
        assert word(team.pool, layout.FREE) == 1
        assert word(team.pool, layout.ENTERED) < team.threads
        until = time.monotonic() + 30
        while word(team.pool, layout.OUTSIDE):
            assert time.monotonic() < until


def moments(call: Callable[[], object], opcodes: bool, stride: int = 1) -> Iterator[int]:
    """Calls with an interrupt at one moment after the other; what is checked then is the loop's body."""
    for when in range(1, 1_000_000, stride):
        with At(when, opcodes) as at, suppress(KeyboardInterrupt):
            call()
        yield when
        if at.is_past:
            assert when > 10
            return
    raise AssertionError("no end")


@pytest.fixture
def program(walker, assemble, mirror_text) -> Callable[..., Module]:
    """(length, threads, state) -> a Module: y = mirrors of x; with state, that is replaced by mirrors of itself."""

    def program(length: int = 3, team: Any = 2, state: bool = False) -> Module:
        def chain(source: str, out: int) -> list[Step]:
            at = 1024 * out
            inner = [Argument("arena", at + 256 * (i % 2)) for i in range(length - 1)]
            places = [Argument(source, out), *inner, Argument("output", out)]
            return [Step("mirror", 0, (places[i], places[i + 1])) for i in range(length)]

        specs = (TensorSpec("x", "float32", (N,)), TensorSpec("s", "float32", (N,)))[: 1 + state]
        outs = (TensorSpec("y", "float32", (N,)), TensorSpec("t", "float32", (N,)))[: 1 + state]
        steps = [step for k in range(1 + state) for step in chain("input", k)]
        made = Program(
            Machine("x86_64"), specs, outs, (Code(0, (N,), 0, (5,)),), tuple(steps), arena_bytes=2048, states=int(state)
        )
        return Module(made, [assemble(mirror_text(N))], b"", walker, team, state=[X] if state else ())

    return program


@pytest.fixture
def fresh(monkeypatch) -> Iterator[Callable[[], None]]:
    """Has the next modules make teams of their own, whose workers start at their first run."""
    before = threads._teams

    def close() -> None:
        for team in threads._teams.values() if threads._teams is not before else ():
            team.close()

    def fresh() -> None:
        close()
        monkeypatch.setattr(threads, "_teams", {})

    yield fresh
    close()


def right(m: Module, mirrored: Any, length: int = 3) -> None:
    for k in range(3):
        np.testing.assert_array_equal(m.run(X + k)[0], mirrored(X + k, length))


@MOMENTS
@pytest.mark.parametrize("team", [2, 3])
def test_the_first_run_of_a_team(program, mirrored, fresh, opcodes: bool, team: int) -> None:
    fresh()
    made = list[Module]()

    def first() -> None:
        made.append(program(team=team))
        made[-1].run(X)

    for _ in moments(first, opcodes, 1 if not opcodes else 7):
        for m in (*made, program(team=team)):
            right(m, mirrored)
        whole()
        made.clear()
        fresh()


@MOMENTS
@pytest.mark.parametrize("team", [1, 2])
def test_a_run(program, mirrored, opcodes: bool, team: int) -> None:
    m, out = program(team=team), [np.empty(N, np.float32)]
    m.run(X)
    for _ in moments(lambda: (m.run(X), m.run(X, out=out, timeout=60.0)), opcodes):
        whole()
        right(m, mirrored)


@MOMENTS
def test_a_run_on_a_region_of_openmp(program, mirrored, opcodes: bool) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    m = program(team=openmp.region(2, torch._C.__file__))
    for _ in moments(lambda: (openmp.region.cache_clear(), openmp.region(2, torch._C.__file__), m.run(X)), opcodes, 5):
        whole()
        right(m, mirrored)


@MOMENTS
def test_state_is_that_of_before_or_of_after(program, mirrored, opcodes: bool) -> None:
    m, states = program(team=2, state=True), [X, mirrored(X, 3)]

    def change() -> None:
        m.run(X)  # 0 to 1
        m.state.update({"s": states[0]})
        m.run(X)

    for _ in moments(change, opcodes):
        assert any(np.array_equal(m.state["s"], s) for s in states)
        whole()
        m.state["s"] = X
        right(m, mirrored)
        np.testing.assert_array_equal(m.state["s"], mirrored(X, 9))
        m.state["s"] = X


@MOMENTS
def test_runs_that_end_and_runs_that_are_watched(program, mirrored, opcodes: bool) -> None:
    m = program(team=2)

    def ended() -> None:
        m.cancel()
        with pytest.raises(TimeLimit):
            m.run(X, timeout=0)
        m.exclusive(X)(0)
        m.recorded(X)

    for _ in moments(ended, opcodes, 3 if opcodes else 1):
        whole()
        right(m, mirrored)


@MOMENTS
def test_external_code(walker, assemble, mirror_text, mirrored, opcodes: bool) -> None:
    """Another thread can call it afterwards."""

    class Adding(ExternalCode):
        def run(self, inputs: Any, outputs: Any) -> None:
            np.add(inputs[0], 1, out=outputs[0])

    spec = TensorSpec("x", "float32", (N,)), TensorSpec("y", "float32", (N,))
    steps = (
        Step("add", 1, (Argument("input", 0), Argument("arena", 0))),
        Step("mirror", 0, (Argument("arena", 0), Argument("output", 0))),
    )
    codes = (Code(0, (N,), 0, (5,)), Code(0, (1,), is_external=True))
    described = External("", spec[:1], spec[1:])
    program = Program(Machine("x86_64"), spec[:1], spec[1:], codes, steps, arena_bytes=1024, externals=(described,))
    m = Module(program, [assemble(mirror_text(N))], b"", walker, 2, [Adding()])
    found = list[bool]()

    def other() -> None:
        found.append(np.array_equal(m.run(X)[0], mirrored(X + 1, 1)))

    for when in moments(lambda: m.run(X), opcodes, 3 if opcodes else 1):
        np.testing.assert_array_equal(m.run(X)[0], mirrored(X + 1, 1))
        if when % 5 == 1:
            thread = threading.Thread(target=other, daemon=True)
            thread.start()
            thread.join(30)
            assert found.pop()
        whole()


@MOMENTS
def test_the_pool(opcodes: bool) -> None:
    p = pool.Pool(1 << 20)

    def use() -> None:
        held = [p.array((n,), np.dtype(np.uint8), n) for n in (1 << 12, 1 << 16, 1 << 12)]
        for k in range(len(held)):
            held[k][:] = k
        held.clear()

    for _ in moments(use, opcodes):
        first, second = (p.array((1 << 12,), np.dtype(np.uint8), 1 << 12) for _ in range(2))
        assert not np.shares_memory(first, second)
        places = {a.ctypes.data for a in (first, second)}
        del first, second
        assert p.array((1 << 12,), np.dtype(np.uint8), 1 << 12).ctypes.data in places
        assert 0 < p.idle_bytes <= 1 << 20
        whole()


def test_an_interrupt_while_workers_start_costs_none_of_them(program, mirrored, fresh, monkeypatch) -> None:
    """They are started again, and none of them twice."""
    fresh()
    monkeypatch.setattr(threads, "AGAIN_S", 0.0)
    start, started = threads.start_new_thread, list[int]()

    def interrupted(*arguments: Any) -> int:
        made = start(*arguments)
        started.append(made)
        if len(started) in (1, 2, 4):
            raise KeyboardInterrupt
        return made

    monkeypatch.setattr(threads, "start_new_thread", interrupted)
    m, met = program(team=4), 0
    for _ in range(10):
        try:
            m.run(X)
        except KeyboardInterrupt:
            met += 1
    assert met >= 2
    right(m, mirrored)
    until = time.monotonic() + 30
    while word(m._team.pool, layout.ENTERED) < 3:
        assert time.monotonic() < until
        right(m, mirrored)
    right(m, mirrored)
    whole()
