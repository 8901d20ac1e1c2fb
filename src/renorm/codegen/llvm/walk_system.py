"""Routines of the walker that reach outside: pause, futex, clock, floating-point environment, interpreter lock.

There is no inline assembly: pausing and the floating-point environment are intrinsics; system call, clock and
interpreter are called at addresses that the process's memory holds; so the object has no external symbols and can be
made for any target that LLVM knows.
"""

from __future__ import annotations

from renorm.codegen.llvm.routine import INT, ORDERED, Number, Pointer, Routine, Word, routine
from renorm.codegen.llvm.ssa import I64, PTR, VOID
from renorm.runtime import layout

TRIPLES = {"x86_64": "x86_64-unknown-linux-gnu", "aarch64": "aarch64-unknown-linux-gnu"}
_FUTEX = {"x86_64": 202, "aarch64": 98}  # numbers of system calls
_YIELD = {"x86_64": 24, "aarch64": 124}
WAIT, WAKE = 128, 129  # FUTEX_WAIT, FUTEX_WAKE, with FUTEX_PRIVATE_FLAG
_ALL = 0x7FFFFFFF
MONOTONIC, COARSE = 1, 6  # clocks: that which perf_counter reads; that of its last tick, some ms ago, which is cheaper
_STANDARD = {"x86_64": 8064, "aarch64": 0}  # MXCSR with all exceptions masked; FPCR


def pause(f: Routine) -> None:
    """Let the core rest for some tens of cycles."""
    if f.arch == "x86_64":
        f.intrinsic_call(VOID, "x86.sse2.pause")
    else:
        f.intrinsic_call(VOID, "aarch64.isb", f.word(15, INT))  # yield takes one cycle


def this_thread(f: Routine) -> Word:
    return f.intrinsic_call(PTR, "thread.pointer.p0")


@routine(apart=True)
def futex(f: Routine, pool: Pointer, word: Pointer, operation: Number, value: Number, time: Pointer) -> None:
    syscall = pool.pointer(layout.PROCESS).pointer(layout.SYSCALL)
    syscall.call(I64, _FUTEX[f.arch], word, operation, value, time, 0, 0, parameters="(i64, ...)")


@routine(apart=True)
def give_way(f: Routine, pool: Pointer) -> None:
    """Let another thread that wants the core have it; where none does, go on."""
    syscall = pool.pointer(layout.PROCESS).pointer(layout.SYSCALL)
    syscall.call(I64, _YIELD[f.arch], parameters="(i64, ...)")


@routine()
def advance(f: Routine, pool: Pointer, word: Pointer, amount: Number, sleepers: Pointer) -> None:
    """Add to the word, and wake those who wait for that."""
    word.fetch_add(ORDERED, amount)
    with f.when(sleepers.load_atomic(ORDERED, INT).differs(0)):
        futex(f, pool, word, WAKE, _ALL, f.null)


@routine()
def clock(f: Routine, pool: Pointer, which: Number, moment: Pointer) -> Number:
    """Return nanoseconds of a clock, whose struct timespec is written at `moment`."""
    pool.pointer(layout.PROCESS).pointer(layout.CLOCK).call(INT, which.convert("trunc", "i32"), moment)
    return moment.load() * 1_000_000_000 + moment.load(8)


@routine()
def environment(f: Routine) -> Number:
    """Return the floating-point environment of this thread."""
    if f.arch == "aarch64":
        return f.intrinsic_call(I64, "aarch64.get.fpcr")
    word = f.stack(8)
    word.store(0, 0)
    f.intrinsic_call(VOID, "x86.sse.stmxcsr", word)  # 32 bits
    return word.load()


@routine()
def set_environment(f: Routine, environment: Number) -> None:
    if f.arch == "aarch64":
        f.intrinsic_call(VOID, "aarch64.set.fpcr", environment)
    else:
        word = f.stack(8)
        word.store(0, environment)
        f.intrinsic_call(VOID, "x86.sse.ldmxcsr", word)


def set_standard_environment(f: Routine) -> None:
    """Set the environment that kernels are made for."""
    set_environment(f, _STANDARD[f.arch])


@routine()
def leave_interpreter(f: Routine, pool: Pointer, state: Pointer) -> None:
    """Give back the interpreter's lock, and keep the thread's state; nothing where no interpreter calls, as in an
    emulator."""
    leave = pool.pointer(layout.PROCESS).pointer(layout.LEAVE)
    with f.when(~leave.is_null):
        state.store(0, leave.call(PTR))


@routine()
def return_to_interpreter(f: Routine, pool: Pointer, state: Pointer) -> None:
    back = pool.pointer(layout.PROCESS).pointer(layout.RETURN)
    with f.when(~back.is_null):
        back.call(VOID, state.pointer())
