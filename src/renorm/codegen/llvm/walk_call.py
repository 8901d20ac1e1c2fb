"""A run as its caller has it: what of the thread is put back after it, and what may end it before it is done.

`call` lies on the stack of the thread that called `renorm_run`, which alone looks for what may end a run: that another
thread cancels it, that the state it reads was replaced, its time limit, signals. It looks between phases, between
pieces of one, and each time it has slept; the other threads, for which `call` is null, only read ENDED of the context.
So looking costs some nanoseconds; a run that is short by what the compiler expects looks for no signals, since it is
over before.

Handlers of signals are Python's: the caller goes back to the interpreter, each PERIOD, and has them called. What they
raise stays with the interpreter, which raises it where the run was called.

Code of others sees the caller's floating-point environment: external code, handlers of signals, finalizers. Kernels
see that which LLVM takes for granted (round to nearest, denormals kept, no exception traps), whatever was set in any
thread.
"""

from __future__ import annotations

from typing import NamedTuple

from renorm.codegen.llvm.lanes import where
from renorm.codegen.llvm.routine import INT, ORDERED, RELAXED, Number, Pointer, Routine, Truth, Word, routine
from renorm.codegen.llvm.walk_system import (
    COARSE,
    MONOTONIC,
    advance,
    clock,
    environment,
    leave_interpreter,
    return_to_interpreter,
    set_environment,
    set_standard_environment,
    this_thread,
)
from renorm.runtime import layout

# call: thread state of the interpreter, floating-point environment, deadline, what CANCELS and VERSION were, when to
# look for signals next, pointer of the thread that called, whether clock and signals are looked at, whether other
# threads take part, and a moment
STATE, ENVIRONMENT, DEADLINE, CANCELS, VERSION, NEXT, SELF, WATCHED, WIDE, NOW = (8 * i for i in range(10))
CALL_BYTES = NOW + layout.MOMENT

NEVER = (1 << 63) - 1  # to look for signals next
# more iterations than any run has: who waits for some goes on, and sees that the run ends. 1: futex compares 32 bits
_ALL_DONE = (1 << 60) + 1


class Run(NamedTuple):
    """A run as a thread sees it. call: null in all threads but that which called."""

    pool: Pointer
    context: Pointer
    call: Pointer


@routine()
def begin(f: Routine, run: Run, caller: Pointer, deadline: Number, cancels: Number, version: Number) -> None:
    """Fill in the call, and put the thread into the state in which kernels run."""
    call, context = run.call, run.context
    leave_interpreter(f, run.pool, call + STATE)
    call.store(ENVIRONMENT, environment(f))
    set_standard_environment(f)
    call.store(DEADLINE, deadline)
    call.store(CANCELS, cancels)
    call.store(VERSION, version)
    call.store(SELF, this_thread(f))
    call.store(
        WATCHED, (context.load(layout.IS_SHORT).equals(0) | deadline.differs(layout.FOREVER)).convert("zext", "i64")
    )
    call.store(NEXT, where(caller.load(layout.IS_MAIN).equals(0), f.word(NEVER), 0))
    call.store(WIDE, 0)
    (context + layout.ENDED).store_atomic(RELAXED, 0)


@routine()
def end(f: Routine, run: Run) -> Number:
    """Give the thread back to who called; return why the run ended, 0 where it is done."""
    set_environment(f, run.call.load(ENVIRONMENT))
    return_to_interpreter(f, run.pool, run.call + STATE)
    return (run.context + layout.ENDED).load_atomic(RELAXED)


@routine()
def finish(f: Routine, pool: Pointer, own: Number) -> None:
    """Count `own` more iterations as done."""
    with f.when(own.differs(0)):
        advance(f, pool, pool + layout.DONE, own, pool + layout.WAITING)


@routine(apart=True)
def call_off(f: Routine, run: Run, is_wide: Truth, reason: Number) -> None:
    """Have the run end, and those go on who wait for iterations of it."""
    (run.context + layout.ENDED).store_atomic(ORDERED, reason)
    with f.when(is_wide):
        finish(f, run.pool, _ALL_DONE)


def _signals_raise(f: Routine, pool: Word, call: Word) -> Word:
    """Have the interpreter handle signals; return whether a handler raised an exception."""
    set_environment(f, call.load(ENVIRONMENT))
    return_to_interpreter(f, pool, call + STATE)
    failed = pool.pointer(layout.PROCESS).pointer(layout.SIGNALS).call(INT)
    leave_interpreter(f, pool, call + STATE)
    set_standard_environment(f)
    return failed.differs(0)


@routine()
def _reason(f: Routine, run: Run, slept: Truth) -> Number:
    """Return why the run is to end by what its caller sees, or 0."""
    pool, context, call = run
    f.give(layout.CANCELLED, when=context.pointer(layout.CANCELS).load_atomic(RELAXED).differs(call.load(CANCELS)))
    version = call.load(VERSION)
    is_other = context.pointer(layout.VERSION).load_atomic(RELAXED).differs(version)
    f.give(layout.OUTDATED, when=is_other & version.differs(layout.UNTIED))
    f.give(0, when=~(call.load(WATCHED).differs(0) | slept))
    deadline = call.load(DEADLINE)
    now = clock(f, pool, where(deadline.equals(layout.FOREVER), f.word(COARSE), MONOTONIC), call + NOW)
    f.give(layout.TIMED_OUT, when=now >= deadline)
    due = call.load(NEXT)
    f.give(0, when=now < due)
    call.store(NEXT, now + layout.PERIOD_NS)
    f.give(0, when=due.equals(0))  # the run has just begun
    return where(_signals_raise(f, pool, call), f.word(layout.RAISED), 0)


@routine(apart=True)
def ends(f: Routine, run: Run, slept: Truth) -> Truth:
    """Return whether the run is to end before it is done. slept: its caller has, and looks at the clock in any case."""
    f.give(True, when=(run.context + layout.ENDED).load_atomic(RELAXED).differs(0))
    f.give(False, when=run.call.is_null)
    reason = _reason(f, run, slept)
    with f.when(reason.differs(0)):
        call_off(f, run, run.call.load(WIDE).differs(0), reason)
    return reason.differs(0)


@routine(apart=True)
def foreign(f: Routine, run: Run, function: Pointer, args: Pointer, extent: Number) -> None:
    """Run code of others: by its caller's thread, mostly; where it does not come to its end, the run ends."""
    is_wide = f.variable(True)
    with f.when(~run.call.is_null):
        set_environment(f, run.call.load(ENVIRONMENT))
        is_wide.value = run.call.load(WIDE).differs(0)
    result = function.call(extent.type, args, 0, extent, 0)
    set_standard_environment(f)
    with f.when(result.differs(layout.SUCCESS)):
        call_off(f, run, is_wide.value, layout.FAILED)
