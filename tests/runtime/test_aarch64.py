"""The walker and the loader on aarch64, executed by an emulator at the addresses where they are loaded."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest
import unicorn
import unicorn.arm64_const as arm64
from tests.random_numbers import RNG
from unicorn.unicorn_py3 import Uc

from renorm.codegen.llvm.walk import compile_walker
from renorm.core.target import Target
from renorm.runtime import Argument, Code, Machine, Memory, Program, Step, TensorSpec, layout, loader
from renorm.runtime.table import Context, Launches

PAGE = 4096


class Core:
    """An emulated core that shares pieces of this process's memory."""

    def __init__(self, memories: list[Memory]):
        self.core = Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
        self.stack, self.end = Memory(1 << 16), Memory(PAGE)
        for m in (*memories, self.stack, self.end):
            size = -(-max(m.nbytes, 1) // PAGE) * PAGE
            self.core.mem_map_ptr(m.address, size, unicorn.UC_PROT_ALL, m.address)

    def start(self, function: int, *arguments: int) -> None:
        self.at = function
        self.core.reg_write(arm64.UC_ARM64_REG_SP, self.stack.address + (1 << 16))
        self.core.reg_write(arm64.UC_ARM64_REG_LR, self.end.address)
        for register, value in zip((getattr(arm64, f"UC_ARM64_REG_X{k}") for k in range(8)), arguments):
            self.core.reg_write(register, value & (1 << 64) - 1)

    def advance(self, instructions: int = 0) -> bool:
        """Runs so many instructions (0: all); whether the function has returned."""
        self.core.emu_start(self.at, self.end.address, count=instructions)
        self.at = self.core.reg_read(arm64.UC_ARM64_REG_PC)
        return self.at == self.end.address

    def call(self, function: int, *arguments: int) -> int:
        self.start(function, *arguments)
        assert self.advance()
        return ctypes.c_int64(self.core.reg_read(arm64.UC_ARM64_REG_X0)).value


def test_constants_and_calls(assemble, table_text):
    image = loader.load([assemble(table_text, "aarch64")] * 2, "aarch64")
    out = Memory(PAGE)
    core = Core([image._memory, out])
    for i in range(2):
        assert [core.call(image.address(i, "fourfold"), k) for k in range(5)] == [44, 88, 132, 176, 220]
        choose = image.address(i, "choose")
        assert [core.call(choose, k, out.address) for k in range(-1, 6)] == [-1, 100, 201, 302, 403, -504, -1]


CLOCK = """
define i32 @clock(i32 %which, ptr %moment) {
  ret i32 0
}
"""


HALVES = """
define void @phase0(ptr %args, i64 %lo, i64 %hi, i64 %thread) {
entry:
  %a1 = getelementptr ptr, ptr %args, i64 1
  %x = load ptr, ptr %args
  %y = load ptr, ptr %a1
  %some = icmp ult i64 %lo, %hi
  br i1 %some, label %loop, label %done
loop:
  %i = phi i64 [ %lo, %entry ], [ %i.next, %loop ]
  %from = getelementptr float, ptr %x, i64 %i
  %v = load float, ptr %from
  %w = fmul float %v, 0.5
  %to = getelementptr float, ptr %y, i64 %i
  store float %w, ptr %to
  %i.next = add i64 %i, 1
  %more = icmp ult i64 %i.next, %hi
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""


class Team:
    """Emulated cores that run a network of `length` mirrors of n float32, in steps of a few instructions."""

    def __init__(self, objects: list[bytes], clock: bytes, n: int, length: int, threads: int, chunk: int):
        room, self.n, self.threads = 256, n, threads
        buffers = [
            Argument("input", 0),
            *(Argument("arena", room * (i % 2)) for i in range(length - 1)),
            Argument("output", 0),
        ]
        program = Program(
            Machine("aarch64"),
            (TensorSpec("x", "float32", (n,)),),
            (TensorSpec("y", "float32", (n,)),),
            (Code(0, (n,), 0, (chunk,)),),
            tuple(Step("mirror", 0, (buffers[i], buffers[i + 1])) for i in range(length)),
            arena_bytes=2 * room,
        )
        image = loader.load(objects, "aarch64")
        self.walker = loader.load([compile_walker(Target(triple="aarch64-unknown-linux-gnu"))], "aarch64")
        told = loader.load([clock], "aarch64")
        self.cancels = ctypes.c_int64.from_address((words := Memory(PAGE)).address)
        self.context = Context(Launches(program, image).table({}), 0, threads, self.cancels, self.cancels)
        self.x, self.y, self.caller = (Memory(PAGE) for _ in range(3))
        self.process, self.pool = Memory(layout.PROCESS_BYTES), Memory(layout.POOL_BYTES)
        patience = dict.fromkeys((layout.PATIENT, layout.IDLE), 100_000)
        for memory, fields in (
            (self.process, {**patience, layout.CORES: 64, layout.CLOCK: told.address(0, "clock")}),
            (self.pool, {layout.PROCESS: self.process.address, layout.THREADS: threads, layout.FREE: 1}),
        ):
            for field, word in fields.items():
                memory.array.view(np.int64)[field // 8] = word
        self.held = image, told, words  # which cores read
        own = self.x, self.y, self.caller, words, self.process, self.pool
        arrays = (self.context._memory, self.context.arena, told._memory, *own)
        self.cores = [Core([image._memory, self.walker._memory, *arrays]) for _ in range(threads)]
        for t in range(1, threads):
            self.cores[t].start(self.walker.address(0, layout.WORK), self.pool.address)

    def run(self, x: np.ndarray, pace: Callable[[int], int]) -> np.ndarray:
        """pace: how many instructions a core runs before it is the next one's turn."""
        self.x.array.view(np.float32)[: self.n] = x
        self.context.bases[:] = self.x.address, self.y.address
        address = self.walker.address(0, layout.RUN)
        memories = self.pool, self.context, self.caller
        self.cores[0].start(address, *(m.address for m in memories), layout.FOREVER, self.cancels.value, layout.UNTIED)
        for _step in range(100_000):
            # no thread waits long enough to make the system call, which nobody emulates
            if self.cores[0].advance(pace(0)):
                return self.y.array.view(np.float32)[: self.n]
            for t, worker in enumerate(self.cores[1:], 1):
                assert not ((steps := pace(t)) and worker.advance(steps))
        raise AssertionError("it does not end")


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("chunk", [0, 4])
def test_walk_with_threads_in_any_interleaving(assemble, mirror_text, mirrored, threads, chunk):
    team = Team([assemble(mirror_text(37), "aarch64")], assemble(CLOCK, "aarch64"), 37, 6, threads, chunk)
    rng = np.random.default_rng(threads)
    for slow in (60, 60, 3, 60):  # workers stay inside between runs
        x = rng.random(37, np.float32)
        y = team.run(x, lambda t, slow=slow: int(rng.integers(1, slow if t else 60)))
        np.testing.assert_array_equal(y, mirrored(x, 6))


@pytest.mark.parametrize("threads", [1, 3])
def test_kernels_see_the_standard_environment_and_the_caller_its_own(assemble, mirror_text, threads):
    """Denormals are flushed (bit 24), results rounded to zero (22, 23), exceptions trap (8 to 12)."""
    fpcr, changed = arm64.UC_ARM64_REG_FPCR, 0x1C0_1F00
    team = Team([assemble(HALVES, "aarch64")], assemble(CLOCK, "aarch64"), 37, 1, threads, 4)
    x = np.full(37, 3e-45, np.float32)  # two units of the last place
    for core in team.cores:
        core.core.reg_write(fpcr, changed)
    kept = team.cores[0].core.reg_read(fpcr)
    assert kept & 0x1C0_0000
    y = team.run(x, lambda t: 60)
    np.testing.assert_array_equal(y, x / 2)
    assert y[0] > 0
    assert team.cores[0].core.reg_read(fpcr) == kept


def test_a_run_that_is_cancelled_ends_and_the_next_one_is_right(assemble, mirror_text, mirrored):
    team = Team([assemble(mirror_text(37), "aarch64")], assemble(CLOCK, "aarch64"), 37, 6, 3, 4)
    rng, x = np.random.default_rng(1), np.arange(37, dtype=np.float32)
    for after in (0, 1, 5, 20, 60, 100):
        steps = [0]

        def pace(t, steps=steps, after=after):
            steps[0] += 1
            if steps[0] == after + 1:
                team.cancels.value += 1
            return int(rng.integers(1, 60))

        team.run(x, pace)
        ended = team.cores[0].core.reg_read(arm64.UC_ARM64_REG_X0)
        assert ended in ((layout.CANCELLED,) if after < 5 else (layout.CANCELLED, 0))
        words = team.pool.array.view(np.int64)
        assert words[layout.FREE // 8] == 1
        np.testing.assert_array_equal(team.run(x, lambda t: int(rng.integers(1, 60))), mirrored(x, 6))
        assert team.cores[0].core.reg_read(arm64.UC_ARM64_REG_X0) == 0


def test_nobody_waits_for_a_worker_that_does_not_come(assemble, mirror_text, mirrored):
    team = Team([assemble(mirror_text(37), "aarch64")], assemble(CLOCK, "aarch64"), 37, 6, 3, 4)
    for awake in ((), (2,), (1, 2), (), (1,)):  # also one that missed runs, and comes in the middle of another
        x = RNG.random(37, np.float32)
        y = team.run(x, lambda t, awake=awake: int(RNG.integers(1, 60)) if t in (0, *awake) else 0)
        np.testing.assert_array_equal(y, mirrored(x, 6))
        outside = team.pool.array.view(np.int64)[layout.OUTSIDE // 8 :]
        for worker in team.cores[1:]:  # it finds nothing to do, and leaves
            assert not worker.advance(int(RNG.integers(1, 300)))
            while outside[0] < 0:
                assert not worker.advance(10)


def test_a_region_of_openmp_with_fewer_threads(assemble, mirror_text, mirrored):
    library = """
define void @parallel(ptr %body, ptr %data, i32 %threads, i32 %flags) {
  call void %body(ptr %data)
  ret void
}
define i32 @number() {
  ret i32 2
}
"""
    objects = [assemble(text, "aarch64") for text in (mirror_text(37), library, CLOCK)]
    team = Team(objects[:2], objects[2], 37, 6, 3, 4)
    image, *_ = team.held
    words = team.pool.array.view(np.int64)
    words[layout.PARALLEL // 8] = image.address(1, "parallel")
    words[layout.NUMBER // 8] = image.address(1, "number")
    words[layout.BODY // 8] = team.walker.address(0, layout.JOIN)
    for k in range(3):
        x = np.arange(37, dtype=np.float32) + k
        np.testing.assert_array_equal(team.run(x, lambda t: 0 if t else 60), mirrored(x, 6))
    assert words[layout.GENERATION // 8] == 0  # nothing was published for workers
