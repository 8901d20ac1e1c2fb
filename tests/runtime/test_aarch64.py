"""The walker and the loader on aarch64, executed by an emulator at the addresses where they are loaded."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import unicorn
import unicorn.arm64_const as arm64

from renorm.codegen.llvm.walk import compile_walker
from renorm.core.target import Target
from renorm.runtime import Argument, Code, Machine, Memory, Program, Step, TensorSpec, layout, loader
from renorm.runtime.table import Context, plan

PAGE = 4096


class Core:
    """An emulated core that shares pieces of this process's memory."""

    def __init__(self, memories: list[Memory]):
        self.core = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
        self.stack, self.end = Memory(1 << 16), Memory(PAGE)
        for m in (*memories, self.stack, self.end):
            size = -(-max(m.nbytes, 1) // PAGE) * PAGE
            self.core.mem_map_ptr(m.address, size, unicorn.UC_PROT_ALL, m.address)

    def start(self, function: int, *arguments: int) -> None:
        self.at = function
        self.core.reg_write(arm64.UC_ARM64_REG_SP, self.stack.address + (1 << 16))
        self.core.reg_write(arm64.UC_ARM64_REG_LR, self.end.address)
        for register, value in zip((arm64.UC_ARM64_REG_X0, arm64.UC_ARM64_REG_X1, arm64.UC_ARM64_REG_X2), arguments):
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


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("chunk", [0, 4])
def test_walk_with_threads_in_any_interleaving(assemble, mirror_text, mirrored, threads, chunk):
    n, length, room = 37, 6, 256
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
    image = loader.load([assemble(mirror_text(n), "aarch64")], "aarch64")
    walker = loader.load([compile_walker(Target(triple="aarch64-unknown-linux-gnu"))], "aarch64")
    context, x, y, spins, pool = (
        Context(plan(program, image), 0, threads),
        *(Memory(PAGE) for _ in range(3)),
        Memory(layout.POOL_BYTES),
    )
    spins.array.view(np.int32)[0] = 2000
    pool.array.view(np.int64)[layout.SPINS // 8] = spins.address
    shared = [image._memory, walker._memory, context._memory, context.arena, x, y, spins, pool]
    cores = [Core(shared) for _ in range(threads)]
    for t in range(1, threads):
        cores[t].start(walker.address(0, layout.WORK), pool.address, t, threads)
    rng = np.random.default_rng(threads)
    for _ in range(3):  # workers stay inside between runs
        x.array.view(np.float32)[:n] = rng.random(n, np.float32)
        context.bases[:] = x.address, y.address
        cores[0].start(walker.address(0, layout.RUN), pool.address, context.address, threads)
        for _step in range(100_000):
            # no thread waits long enough to make the system call, which nobody emulates
            if cores[0].advance(int(rng.integers(1, 60))):
                break
            for worker in cores[1:]:
                assert not worker.advance(int(rng.integers(1, 60)))
        np.testing.assert_array_equal(y.array.view(np.float32)[:n], mirrored(x.array.view(np.float32)[:n], length))
