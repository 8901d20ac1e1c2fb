"""The native entry that runs a whole network: all threads walk one table of phases together.

`renorm_run(pool, context, caller, deadline, cancels, version)` is called by the thread that wants a network run, with
the interpreter's lock, which it gives back meanwhile. It takes the team, acts as thread 0, and returns why the run
ended before it was done, or 0. Whatever holds while a run is in flight is kept here, so that no exception of Python's,
which may come between any two of its instructions, leaves anything behind. `renorm_work(pool)` is where the other
threads live: parked until a run is published, walking the table with the rest, parked again; `renorm_stop(pool)` sends
them home. Where the pool has the address of OpenMP's GOMP_parallel, the threads of a parallel region walk the table
instead, however many come of those that were asked for. Memory is laid out as runtime.layout says.

A thread that calls from inside of a walk of its own, as external code, finalizers and handlers of signals may, walks
alone: it waits for nobody, since somebody may wait for what it holds.

A phase is `void (ptr args, i64 lo, i64 hi, i64 thread)`. A phase of one iteration is thread 0's. The extent of any
other is split evenly, thread t's share being [ceil(n t / T), ceil(n (t+1) / T)); a thread takes a chunk of its own
share at a time, and when that is gone, of the others': what a thread wrote in one phase it mostly finds in its own
cache in the next, and yet nobody waits for a thread that has not begun.

Nobody waits for threads at all, but for iterations. DONE counts those of the run that are done, each thread adding its
own before it waits; where a record asks for it, a thread goes on when all that stand before the record are done. So a
worker that the system wakes late, or not at all, costs no more than its help: thread 0 ends the run without it. A
worker counts itself in, then looks whether a run is OPEN; thread 0 closes it, then waits until nobody is inside: either
thread 0 sees a worker inside, or the worker sees that nothing is open.

    thread 0 (`_together`)         worker (`work`)
      OPEN = 1                       wait until GENERATION is another
      GENERATION += 1                OUTSIDE -= 1
      walk                           if OPEN: walk
      wait until all is DONE         OUTSIDE += 1
      OPEN = 0
      wait until OUTSIDE = 0

Workers that sleep come to a run unless it is short: then only where runs follow each other.

Where the context says so, each thread writes down when it began and ended its part of each phase; what lies between two
parts is waiting. Otherwise that costs a comparison of registers.
"""

from __future__ import annotations

from functools import cache

from renorm.codegen.llvm import walk_call
from renorm.codegen.llvm.lanes import where
from renorm.codegen.llvm.library import llvm
from renorm.codegen.llvm.routine import (
    INT,
    ORDERED,
    RELAXED,
    Number,
    Pointer,
    Routine,
    Truth,
    Word,
    module_text,
    routine,
)
from renorm.codegen.llvm.ssa import VOID
from renorm.codegen.llvm.walk_call import CALL_BYTES, Run, begin, end, ends, finish, foreign
from renorm.codegen.llvm.walk_system import (
    MONOTONIC,
    TRIPLES,
    advance,
    clock,
    environment,
    set_environment,
    set_standard_environment,
    this_thread,
)
from renorm.codegen.llvm.walk_waiting import occupy, until, vacate, wait
from renorm.core.errors import InvalidTarget
from renorm.core.target import Target
from renorm.runtime import layout

CLOSELY = 100_000  # ns between runs that follow each other: about as long as waking a thread takes
_PASSES = (  # routines are inlined unless they stand apart, and variables become values: the rest is small
    "always_inliner",
    "global_dead_code_eliminate",
    "sroa",
    "simplify_cfg",
    "instruction_combine",
    "simplify_cfg",
)


# a thread's part of a phase ------------------------------------------------------------------------------------------


@routine()
def _stamp(f: Routine, pool: Pointer, moments: Pointer, offset: Number) -> None:
    """Write down what time it is, where something is recorded."""
    with f.when(~moments.is_null):
        clock(f, pool, MONOTONIC, moments + offset)


def share(extent: Word, thread: Word, threads: Word) -> Word:
    """Return where the share of a thread begins; that of the thread after it is where it ends."""
    return (extent * thread + threads - 1) // threads


def _lesser(a: Word, b: Word) -> Word:
    return where(a < b, a, b)


def _call_phase(record: Word, first: Word, last: Word, thread: Word | int) -> None:
    record.pointer(layout.FUNCTION).call(VOID, record.pointer(layout.ARGS), first, last, thread)


@routine(apart=True)
def take(f: Routine, run: Run, record: Pointer, thread: Number, threads: Number, moments: Pointer) -> Number:
    """Run chunks of the thread's own share, then of the next thread's, and so on round, unless the run is to end;
    return how many iterations it ran.

        for owner in thread, thread + 1, ..., thread - 1:
            while (first = begin(owner) + fetch_add(counter(owner), chunk)) < end(owner):
                function(args, first, min(first + chunk, end(owner)), thread)
    """
    extent, chunk = record.load(layout.EXTENT), record.load(layout.CHUNK)
    counters, row = run.context.pointer(layout.COUNTERS), run.context.load(layout.ROW)
    ran = f.variable(0)
    with f.count(threads) as k:
        shifted = thread + k
        owner = where(shifted < threads, shifted, shifted - threads)
        begin, end = share(extent, owner, threads), share(extent, owner + 1, threads)
        counter = counters + (owner * row + record.load(layout.TAKEN))
        with f.forever():
            f.stop(begin + counter.load_atomic(RELAXED) >= end)  # takes no cache line from others
            first = begin + counter.fetch_add(RELAXED, chunk)
            f.stop(first >= end)
            with f.when(ran.value.equals(0)):
                _stamp(f, run.pool, moments, 0)
            last = _lesser(first + chunk, end)
            _call_phase(record, first, last, thread)
            ran.value += last - first
            f.give(ran.value, when=ends(f, run, False))
    with f.when(ran.value.differs(0)):
        _stamp(f, run.pool, moments, layout.MOMENT)
    return ran.value


@routine()
def _run_whole(f: Routine, run: Run, record: Pointer, is_watched: Truth, moments: Pointer) -> Truth:
    """Run all iterations of a phase, piece by piece where the run is watched; return whether they are done, and not
    the run to end before."""
    extent = record.load(layout.EXTENT)
    _stamp(f, run.pool, moments, 0)
    with f.when((record.load(layout.FLAGS) & layout.FOREIGN).differs(0)) as is_foreign:
        foreign(f, run, record.pointer(layout.FUNCTION), record.pointer(layout.ARGS), extent)
    with f.otherwise(is_foreign):
        piece = where(is_watched, record.load(layout.PIECE), extent)
        first = f.variable(0)
        with f.forever():
            last = _lesser(first.value + piece, extent)
            _call_phase(record, first.value, last, 0)
            f.stop(last.equals(extent))
            f.give(False, when=ends(f, run, False))
            first.value = last
    _stamp(f, run.pool, moments, layout.MOMENT)
    return f.word(True)


# a thread's walk -----------------------------------------------------------------------------------------------------


@routine(apart=True)
def walk(f: Routine, run: Run, thread: Number, threads: Number) -> Number:
    """Return how many iterations stand before the end of the walk: all that the run has, unless it is to end.

        for record in table:
            if record.flags & BARRIER: tell what is done; wait for all before
            if record.chunk:           take chunks
            else:                      thread 0 runs the whole

    A thread that is alone runs each phase whole, and waits for nothing.
    """
    pool, context, call = run
    table, count, times = context.pointer(layout.TABLE), context.load(layout.PHASES), context.pointer(layout.TIMES)
    f.give(0, when=count.equals(0))
    is_alone, is_first = threads.equals(1), thread.equals(0)
    step = where(times.is_null, f.word(0), 2 * layout.MOMENT)  # null stays null
    is_watched = f.variable(False)
    with f.when(~call.is_null):
        is_watched.value = call.load(walk_call.WATCHED).differs(0)
    at, moments = f.variable(table), f.variable(times + count * step * thread)
    own, start = f.variable(0), table.load(layout.BEFORE)  # own: iterations that it has not said are done
    with f.forever():
        record = at.value
        before, extent = record.load(layout.BEFORE) - start, record.load(layout.EXTENT)
        after = before + extent
        with f.when((record.load(layout.FLAGS) & layout.BARRIER).differs(0) & ~is_alone):
            finish(f, pool, own.value)
            own.value = f.word(0)
            until(f, run, before)
            f.give(after, when=ends(f, run, False))  # iterations that it waited for may be missing
        with f.when(is_alone | record.load(layout.CHUNK).equals(0)) as is_serial, f.when(is_first):
            own.value += extent
            f.give(after, when=~_run_whole(f, run, record, is_watched.value, moments.value))
        with f.otherwise(is_serial):
            own.value += take(f, run, record, thread, threads, moments.value)
        at.value += layout.RECORD
        moments.value += step
        f.stop(at.value.equals(table + count * layout.RECORD))
        f.give(after, when=ends(f, run, False))
    with f.when(~is_alone):
        finish(f, pool, own.value)
    return after


# a run ---------------------------------------------------------------------------------------------------------------


@routine()
def prepare(f: Routine, context: Pointer, threads: Number) -> None:
    """Write the addresses of the caller's arrays where the phases read them, and set the counters of chunks back."""
    patches, bases = context.pointer(layout.PATCHES), context.pointer(layout.BASES)
    with f.count(context.load(layout.PATCH_COUNT)) as i:
        patch = patches + i * layout.PATCH
        slot, base, offset = patch.pointer(), patch.load(8), patch.load(16)
        slot.store(0, (bases + base * 8).load() + offset)
    counters, words = context.pointer(layout.COUNTERS), context.load(layout.ROW) * threads // 8
    with f.when(threads.differs(1)), f.count(words) as i:
        (counters + i * 8).store_atomic(RELAXED, 0)


def _publish(f: Routine, pool: Word) -> None:
    """Let the workers see that there is something new, and wake those that sleep."""
    advance(f, pool, pool + layout.GENERATION, 1, pool + layout.PARKED)


@routine()
def _wakes(f: Routine, run: Run) -> Truth:
    """Return whether it is worth waking workers: the run is long, or has begun right after another."""
    f.give(True, when=run.context.load(layout.IS_SHORT).equals(0))
    return clock(f, run.pool, MONOTONIC, run.call + walk_call.NOW) - run.pool.load(layout.ENDED_AT) < CLOSELY


@routine(apart=True)
def _together(f: Routine, run: Run, threads: Number) -> None:
    """Walk with the team, which is this call's."""
    pool, context, call = run
    pool.store(layout.CONTEXT, context)
    pool.store(layout.CALL, call)
    pool.store(layout.WALKING, threads)
    (pool + layout.DONE).store_atomic(RELAXED, 0)
    call.store(walk_call.WIDE, 1)
    parallel = pool.pointer(layout.PARALLEL)
    with f.when(~parallel.is_null):
        body = pool.pointer(layout.BODY)  # to take its address here would be a relocation
        parallel.call(VOID, body, pool, pool.load(layout.REGION).convert("trunc", "i32"), f.word(0, INT))
        f.give()

    (pool + layout.OPEN).store_atomic(ORDERED, 1)
    with f.when(_wakes(f, run)) as wakes:
        _publish(f, pool)
    with f.otherwise(wakes):
        (pool + layout.GENERATION).fetch_add(ORDERED, 1)
    until(f, run, walk(f, run, 0, threads))
    (pool + layout.OPEN).store_atomic(ORDERED, 0)
    wait(f, Run(pool, f.null, f.null), pool + layout.OUTSIDE, 0, pool + layout.LEAVING, f.word(layout.PATIENT))
    pool.store(layout.ENDED_AT, clock(f, pool, MONOTONIC, call + walk_call.NOW))


@routine(layout.RUN)
def enter(
    f: Routine, pool: Pointer, context: Pointer, caller: Pointer, deadline: Number, cancels: Number, version: Number
) -> Number:
    """Run the table of `context`; return why the run ended before it was done, or 0."""
    run = Run(pool, context, f.stack(CALL_BYTES))
    begin(f, run, caller, deadline, cancels, version)
    depth = caller.load(layout.DEPTH)
    caller.store(layout.DEPTH, depth + 1)
    threads = where(depth.equals(0), context.load(layout.SHARES), 1)
    prepare(f, context, threads)
    busy = pool.pointer(layout.PROCESS) + layout.BUSY
    with f.when(~ends(f, run, False)):
        with f.when(threads.equals(1)) as is_alone:
            busy.fetch_add(RELAXED, 1)
            walk(f, run, 0, 1)
            busy.fetch_add(RELAXED, -1)
        with f.otherwise(is_alone), f.when(occupy(f, run)):
            busy.fetch_add(RELAXED, threads)
            _together(f, run, threads)
            vacate(f, pool)
            busy.fetch_add(RELAXED, -threads)
    caller.store(layout.DEPTH, depth)
    return end(f, run)


# other threads -------------------------------------------------------------------------------------------------------


@routine(layout.JOIN)
def join(f: Routine, pool: Pointer) -> None:
    """Do what each thread of a region of OpenMP does; its number need not be 0 where it called the run."""
    thread = pool.pointer(layout.NUMBER).call(INT).convert("zext", "i64")
    walking = pool.load(layout.WALKING)
    with f.when(thread < walking):
        call = pool.pointer(layout.CALL)
        is_caller = this_thread(f).equals(call.pointer(walk_call.SELF))
        before = environment(f)
        set_standard_environment(f)
        walk(f, Run(pool, pool.pointer(layout.CONTEXT), where(is_caller, call, f.null)), thread, walking)
        set_environment(f, before)


@routine()
def _number(f: Routine, pool: Pointer) -> Number:
    """Return the next number that no worker of the team has had, 0 where there is none."""
    entered = pool + layout.ENTERED
    with f.forever():
        last = entered.load_atomic(RELAXED)
        f.stop(last + 1 >= pool.load(layout.THREADS))
        f.give(last + 1, when=entered.exchange(last, last + 1))
    return f.word(0)


@routine(layout.WORK)
def work(f: Routine, pool: Pointer) -> None:
    """Be a worker of the team until it is told to stop; return at once where no number is left."""
    set_standard_environment(f)
    thread = _number(f, pool)
    f.give(when=thread.equals(0))
    generation, outside = pool + layout.GENERATION, pool + layout.OUTSIDE
    seen = f.variable(0)
    with f.forever():
        wait(f, Run(pool, f.null, f.null), generation, seen.value + 1, pool + layout.PARKED, f.word(layout.IDLE))
        seen.value = generation.load_atomic(ORDERED)  # runs may have come and gone
        f.stop((pool + layout.STOP).load_atomic(ORDERED, INT).differs(0))
        outside.fetch_add(ORDERED, -1)
        with f.when((pool + layout.OPEN).load_atomic(ORDERED).differs(0)):
            walk(f, Run(pool, pool.pointer(layout.CONTEXT), f.null), thread, pool.load(layout.THREADS))
        advance(f, pool, outside, 1, pool + layout.LEAVING)
    (pool + layout.LEFT).fetch_add(ORDERED, 1)


@routine(layout.STOP_WORK)
def stop_work(f: Routine, pool: Pointer) -> None:
    """Have the workers return, once they are through with what they do."""
    (pool + layout.STOP).store_atomic(ORDERED, 1, INT)
    _publish(f, pool)


# the object ----------------------------------------------------------------------------------------------------------


def walker_text(arch: str) -> str:
    """LLVM IR of the native entry for "x86_64" or "aarch64". Raises InvalidTarget for another machine."""
    if arch not in TRIPLES:
        raise InvalidTarget(f"no native entry for {arch!r}", [f"known: {', '.join(TRIPLES)}"])
    return f'target triple = "{TRIPLES[arch]}"\n\n{module_text(arch, enter, work, stop_work, join)}\n'


def compile_walker(target: Target) -> bytes:
    """The native entry as an ELF object, for any CPU of the target's architecture. Raises InvalidTarget for others."""
    return _compile(target.machine)


@cache
def _compile(arch: str) -> bytes:
    text = walker_text(arch)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    machine = llvm.Target.from_triple(TRIPLES[arch]).create_target_machine(opt=2, reloc="pic", codemodel="small")
    module = llvm.parse_assembly(text)
    module.verify()
    passes = llvm.create_new_module_pass_manager()
    for step in _PASSES:
        getattr(passes, f"add_{step}_pass")()
    passes.run(module, llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options()))
    return machine.emit_object(module)
