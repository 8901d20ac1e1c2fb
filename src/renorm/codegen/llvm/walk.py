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

Workers that sleep come to a run unless it is short: then only where runs follow each other.

Where the context says so, each thread writes down when it began and ended its part of each phase; what lies between two
parts is waiting. Otherwise that costs a comparison of registers.

There is no inline assembly: pausing and the floating-point environment are intrinsics; system call, clock and
interpreter are called at addresses that the process's memory holds; so the object has no external symbols and can be
made for any target that LLVM knows.
"""

from __future__ import annotations

from functools import cache

from renorm.codegen.llvm import walk_call, walk_waiting
from renorm.codegen.llvm.library import llvm
from renorm.codegen.llvm.walk_fields import field
from renorm.core.errors import InvalidTarget
from renorm.core.target import Target
from renorm.runtime import layout

# triple, system call number of futex, statement that pauses, its declaration
_MACHINES = {
    "x86_64": (
        "x86_64-unknown-linux-gnu",
        202,
        "call void @llvm.x86.sse2.pause()",
        "declare void @llvm.x86.sse2.pause()",
    ),
    "aarch64": (
        "aarch64-unknown-linux-gnu",
        98,
        "call void @llvm.aarch64.isb(i32 15)",  # takes some tens of cycles, where yield takes one
        "declare void @llvm.aarch64.isb(i32)",
    ),
}
CLOSELY = 100_000  # ns between runs that follow each other: about as long as waking a thread takes


def walker_text(arch: str) -> str:
    """LLVM IR of the native entry for "x86_64" or "aarch64". Raises InvalidTarget for another machine."""
    if arch not in _MACHINES:
        raise InvalidTarget(f"no native entry for {arch!r}", [f"known: {', '.join(_MACHINES)}"])
    triple, futex, pause, declaration = _MACHINES[arch]
    return f"""\
target triple = "{triple}"

{declaration}

{walk_waiting.text(futex, pause)}
{walk_call.ENVIRONMENTS[arch]}
{walk_call.TEXT}
; writes down what time it is, where something is recorded
define internal void @stamp(ptr %pool, ptr %moments, i64 %offset) {{
entry:
  %nothing = icmp eq ptr %moments, null
  br i1 %nothing, label %done, label %look
look:
  %moment = getelementptr i8, ptr %moments, i64 %offset
  %now = call i64 @clock(ptr %pool, i32 {walk_call.MONOTONIC}, ptr %moment)
  br label %done
done:
  ret void
}}

; where the share of a thread begins; that of the thread after it is where it ends
define internal i64 @share(i64 %extent, i64 %thread, i64 %threads) {{
  %part = mul i64 %extent, %thread
  %less = sub i64 %threads, 1
  %part.up = add i64 %part, %less
  %begin = udiv i64 %part.up, %threads
  ret i64 %begin
}}

; runs chunks of the thread's own share, then of the next thread's, and so on round, unless the run is to end; gives how
; many iterations it ran
define internal i64 @take(ptr %pool, ptr %record, ptr %context, ptr %call, i64 %thread, i64 %threads,
                          ptr %moments) noinline {{
entry:
  %function = load ptr, ptr %record
  {field("args", "record", layout.ARGS, "ptr")}
  {field("extent", "record", layout.EXTENT)}
  {field("chunk", "record", layout.CHUNK)}
  {field("taken", "record", layout.TAKEN)}
  {field("counters", "context", layout.COUNTERS, "ptr")}
  {field("row", "context", layout.ROW)}
  br label %owner
owner:
  %k = phi i64 [ 0, %entry ], [ %k.next, %gone ]
  %ran = phi i64 [ 0, %entry ], [ %ran.now, %gone ]
  %shifted = add i64 %thread, %k
  %beyond = icmp uge i64 %shifted, %threads
  %wrapped = sub i64 %shifted, %threads
  %whose = select i1 %beyond, i64 %wrapped, i64 %shifted
  %begin = call i64 @share(i64 %extent, i64 %whose, i64 %threads)
  %up = add i64 %whose, 1
  %end = call i64 @share(i64 %extent, i64 %up, i64 %threads)
  %row.offset = mul i64 %whose, %row
  %offset = add i64 %row.offset, %taken
  %counter = getelementptr i8, ptr %counters, i64 %offset
  br label %look
look:
  %ran.now = phi i64 [ %ran, %owner ], [ %ran.more, %goes.on ]
  %seen = load atomic i64, ptr %counter monotonic, align 8
  %seen.first = add i64 %begin, %seen
  %open = icmp ult i64 %seen.first, %end
  br i1 %open, label %claim, label %gone
claim:
  %before = atomicrmw add ptr %counter, i64 %chunk monotonic, align 8
  %first = add i64 %begin, %before
  %left = icmp ult i64 %first, %end
  br i1 %left, label %piece, label %gone
piece:
  %last = add i64 %first, %chunk
  %over = icmp ugt i64 %last, %end
  %stop = select i1 %over, i64 %end, i64 %last
  %fresh = icmp eq i64 %ran.now, 0
  br i1 %fresh, label %begun, label %work
begun:
  call void @stamp(ptr %pool, ptr %moments, i64 0)
  br label %work
work:
  call void %function(ptr %args, i64 %first, i64 %stop, i64 %thread)
  %length = sub i64 %stop, %first
  %ran.more = add i64 %ran.now, %length
  %ends = call i1 @ends(ptr %pool, ptr %context, ptr %call, i1 0)
  br i1 %ends, label %return, label %goes.on
goes.on:
  br label %look
gone:
  %k.next = add i64 %k, 1
  %all = icmp eq i64 %k.next, %threads
  br i1 %all, label %done, label %owner
done:
  %some = icmp ne i64 %ran.now, 0
  br i1 %some, label %ended, label %return
ended:
  call void @stamp(ptr %pool, ptr %moments, i64 {layout.MOMENT})
  br label %return
return:
  %ran.all = phi i64 [ %ran.now, %done ], [ %ran.now, %ended ], [ %ran.more, %work ]
  ret i64 %ran.all
}}

; call: of the thread that called, null in others; gives how many iterations the run has
define internal i64 @walk(ptr %pool, ptr %context, ptr %call, i64 %thread, i64 %threads) noinline {{
entry:
  {field("table", "context", layout.TABLE, "ptr")}
  {field("count", "context", layout.PHASES)}
  %end = getelementptr [{layout.RECORD} x i8], ptr %table, i64 %count
  {field("times", "context", layout.TIMES, "ptr")}
  %silent = icmp eq ptr %times, null
  %step = select i1 %silent, i64 0, i64 {2 * layout.MOMENT}
  %row = mul i64 %count, %step
  %row.offset = mul i64 %row, %thread
  %moments.first = getelementptr i8, ptr %times, i64 %row.offset
  %alone = icmp eq i64 %threads, 1
  %caller = icmp eq i64 %thread, 0
  %empty = icmp eq i64 %count, 0
  br i1 %empty, label %nothing, label %who
nothing:
  ret i64 0
who:
  %other = icmp eq ptr %call, null
  br i1 %other, label %begin, label %look
look:
  %watched.at = getelementptr i8, ptr %call, i64 {walk_call.WATCHED}
  %watched.word = load i64, ptr %watched.at
  %watched.call = icmp ne i64 %watched.word, 0
  br label %begin
begin:
  %watched = phi i1 [ 0, %who ], [ %watched.call, %look ]
  {field("before.first", "table", layout.BEFORE)}
  br label %phase
phase:
  %record = phi ptr [ %table, %begin ], [ %record.next, %go ]
  %moments = phi ptr [ %moments.first, %begin ], [ %moments.next, %go ]
  %own = phi i64 [ 0, %begin ], [ %own.next, %go ]  ; iterations that it has not said are done
  %function = load ptr, ptr %record
  {field("args", "record", layout.ARGS, "ptr")}
  {field("extent", "record", layout.EXTENT)}
  %before.at = getelementptr i8, ptr %record, i64 {layout.BEFORE}
  %before.all = load i64, ptr %before.at
  %before = sub i64 %before.all, %before.first
  {field("flags", "record", layout.FLAGS)}
  br i1 %alone, label %whole, label %meet
meet:
  %barrier = and i64 %flags, {layout.BARRIER}
  %must = icmp ne i64 %barrier, 0
  br i1 %must, label %sync, label %share
sync:
  call void @finish(ptr %pool, i64 %own)
  call void @until(ptr %pool, i64 %before, ptr %context, ptr %call)
  %in.vain = call i1 @ends(ptr %pool, ptr %context, ptr %call, i1 0)  ; iterations that it waited for may be missing
  br i1 %in.vain, label %return, label %share
share:
  %left = phi i64 [ %own, %meet ], [ 0, %sync ]
  {field("chunk", "record", layout.CHUNK)}
  %parallel = icmp ne i64 %chunk, 0
  br i1 %parallel, label %take, label %serial
serial:
  br i1 %caller, label %whole, label %next
whole:
  %left.serial = phi i64 [ 0, %phase ], [ %left, %serial ]
  %own.serial = add i64 %left.serial, %extent
  call void @stamp(ptr %pool, ptr %moments, i64 0)
  %foreign = and i64 %flags, {layout.FOREIGN}
  %is.foreign = icmp ne i64 %foreign, 0
  br i1 %is.foreign, label %others, label %ours
others:
  call void @foreign(ptr %pool, ptr %context, ptr %call, ptr %function, ptr %args, i64 %extent)
  br label %ran
ours:
  %piece.at = getelementptr i8, ptr %record, i64 {layout.PIECE}
  %piece.long = load i64, ptr %piece.at
  %piece = select i1 %watched, i64 %piece.long, i64 %extent
  br label %piece.run
piece.run:
  %first = phi i64 [ 0, %ours ], [ %stop, %piece.look ]
  %last = add i64 %first, %piece
  %over = icmp ugt i64 %last, %extent
  %stop = select i1 %over, i64 %extent, i64 %last
  call void %function(ptr %args, i64 %first, i64 %stop, i64 0)
  %whole.done = icmp eq i64 %stop, %extent
  br i1 %whole.done, label %ran, label %piece.look
piece.look:
  %piece.ends = call i1 @ends(ptr %pool, ptr %context, ptr %call, i1 0)
  br i1 %piece.ends, label %return, label %piece.run
ran:
  call void @stamp(ptr %pool, ptr %moments, i64 {layout.MOMENT})
  br label %next
take:
  %ran.own = call i64 @take(ptr %pool, ptr %record, ptr %context, ptr %call, i64 %thread, i64 %threads, ptr %moments)
  %own.taken = add i64 %left, %ran.own
  br label %next
next:
  %own.next = phi i64 [ %own.serial, %ran ], [ %own.taken, %take ], [ %left, %serial ]
  %record.next = getelementptr i8, ptr %record, i64 {layout.RECORD}
  %moments.next = getelementptr i8, ptr %moments, i64 %step
  %last.record = icmp eq ptr %record.next, %end
  br i1 %last.record, label %finish, label %go
go:
  %ends = call i1 @ends(ptr %pool, ptr %context, ptr %call, i1 0)
  br i1 %ends, label %return, label %phase
finish:
  br i1 %alone, label %return, label %tell
tell:
  call void @finish(ptr %pool, i64 %own.next)
  br label %return
return:
  %all = add i64 %before, %extent
  ret i64 %all
}}

; writes the addresses of the caller's arrays where the phases read them, and sets the counters of chunks back
define internal void @prepare(ptr %context, i64 %threads) {{
entry:
  {field("patches", "context", layout.PATCHES, "ptr")}
  {field("count", "context", layout.PATCH_COUNT)}
  {field("bases", "context", layout.BASES, "ptr")}
  %nothing = icmp eq i64 %count, 0
  br i1 %nothing, label %fresh, label %patch
patch:
  %i = phi i64 [ 0, %entry ], [ %i.next, %patch ]
  %this = getelementptr [{layout.PATCH} x i8], ptr %patches, i64 %i
  %slot = load ptr, ptr %this
  %base.at = getelementptr i8, ptr %this, i64 8
  %base = load i64, ptr %base.at
  %offset.at = getelementptr i8, ptr %this, i64 16
  %offset = load i64, ptr %offset.at
  %array.at = getelementptr i64, ptr %bases, i64 %base
  %array = load i64, ptr %array.at
  %address = add i64 %array, %offset
  store i64 %address, ptr %slot
  %i.next = add i64 %i, 1
  %patched = icmp eq i64 %i.next, %count
  br i1 %patched, label %fresh, label %patch
fresh:
  {field("counters", "context", layout.COUNTERS, "ptr")}
  {field("row", "context", layout.ROW)}
  %bytes = mul i64 %row, %threads
  %end = getelementptr i8, ptr %counters, i64 %bytes
  %none = icmp eq i64 %bytes, 0
  %alone = icmp eq i64 %threads, 1
  %skip = or i1 %none, %alone
  br i1 %skip, label %done, label %reset
reset:
  %counter = phi ptr [ %counters, %fresh ], [ %counter.next, %reset ]
  store atomic i64 0, ptr %counter monotonic, align 8
  %counter.next = getelementptr i8, ptr %counter, i64 8
  %all = icmp eq ptr %counter.next, %end
  br i1 %all, label %done, label %reset
done:
  ret void
}}

; what each thread of a region of OpenMP does; its number need not be 0 where it called the run
define void @{layout.JOIN}(ptr %pool) {{
entry:
  {field("number", "pool", layout.NUMBER, "ptr")}
  %thread.short = call i32 %number()
  %thread = zext i32 %thread.short to i64
  {field("walking", "pool", layout.WALKING)}
  %one = icmp ult i64 %thread, %walking
  br i1 %one, label %work, label %done
work:
  {field("context", "pool", layout.CONTEXT, "ptr")}
  %call.at = getelementptr i8, ptr %pool, i64 {layout.CALL}
  %call.run = load ptr, ptr %call.at
  {field("caller", "call.run", walk_call.SELF, "ptr")}
  %self = call ptr @llvm.thread.pointer()
  %mine = icmp eq ptr %self, %caller
  %call = select i1 %mine, ptr %call.run, ptr null
  %environment = call i64 @environment()
  call void @standard()
  %0 = call i64 @walk(ptr %pool, ptr %context, ptr %call, i64 %thread, i64 %walking)
  call void @become(i64 %environment)
  br label %done
done:
  ret void
}}

; walks with the team, which is this call's
define internal void @together(ptr %pool, ptr %context, ptr %call, i64 %threads) noinline {{
entry:
  %context.at = getelementptr i8, ptr %pool, i64 {layout.CONTEXT}
  store ptr %context, ptr %context.at
  %call.at = getelementptr i8, ptr %pool, i64 {layout.CALL}
  store ptr %call, ptr %call.at
  %walking = getelementptr i8, ptr %pool, i64 {layout.WALKING}
  store i64 %threads, ptr %walking
  %done = getelementptr i8, ptr %pool, i64 {layout.DONE}
  store atomic i64 0, ptr %done monotonic, align 8
  %wide = getelementptr i8, ptr %call, i64 {walk_call.WIDE}
  store i64 1, ptr %wide
  {field("parallel", "pool", layout.PARALLEL, "ptr")}
  %own = icmp eq ptr %parallel, null
  br i1 %own, label %begin, label %region
region:
  %region.at = getelementptr i8, ptr %pool, i64 {layout.REGION}
  %size = load i64, ptr %region.at
  %size.short = trunc i64 %size to i32
  {field("body", "pool", layout.BODY, "ptr")}  ; to take its address here would be a relocation
  call void %parallel(ptr %body, ptr %pool, i32 %size.short, i32 0)
  ret void
begin:
  %open = getelementptr i8, ptr %pool, i64 {layout.OPEN}
  store atomic i64 1, ptr %open seq_cst, align 8
  %generation = getelementptr i8, ptr %pool, i64 {layout.GENERATION}
  %parked = getelementptr i8, ptr %pool, i64 {layout.PARKED}
  %moment = getelementptr i8, ptr %call, i64 {walk_call.NOW}
  %ended.at = getelementptr i8, ptr %pool, i64 {layout.ENDED_AT}
  {field("short", "context", layout.IS_SHORT)}
  %long = icmp eq i64 %short, 0
  br i1 %long, label %wake, label %ask
ask:
  %now = call i64 @clock(ptr %pool, i32 {walk_call.MONOTONIC}, ptr %moment)
  %before = load i64, ptr %ended.at
  %since = sub i64 %now, %before
  %follows = icmp slt i64 %since, {CLOSELY}
  br i1 %follows, label %wake, label %show
show:
  %0 = atomicrmw add ptr %generation, i64 1 seq_cst, align 8
  br label %walk
wake:
  call void @advance(ptr %pool, ptr %generation, i64 1, ptr %parked)
  br label %walk
walk:
  %all = call i64 @walk(ptr %pool, ptr %context, ptr %call, i64 0, i64 %threads)
  call void @until(ptr %pool, i64 %all, ptr %context, ptr %call)
  store atomic i64 0, ptr %open seq_cst, align 8
  %outside = getelementptr i8, ptr %pool, i64 {layout.OUTSIDE}
  %leaving = getelementptr i8, ptr %pool, i64 {layout.LEAVING}
  call void @await(ptr %pool, ptr %outside, i64 0, ptr %leaving, ptr null, ptr null)
  %then = call i64 @clock(ptr %pool, i32 {walk_call.MONOTONIC}, ptr %moment)
  store i64 %then, ptr %ended.at
  ret void
}}

define i64 @{layout.RUN}(ptr %pool, ptr %context, ptr %caller, i64 %deadline, i64 %cancels, i64 %version) {{
entry:
  %call = alloca [{walk_call.CALL_BYTES} x i8], align 16
  call void @begin(ptr %pool, ptr %context, ptr %caller, ptr %call, i64 %deadline, i64 %cancels, i64 %version)
  %depth = load i64, ptr %caller
  %deeper = add i64 %depth, 1
  store i64 %deeper, ptr %caller
  %inside = icmp ne i64 %depth, 0
  {field("shares", "context", layout.SHARES)}
  %threads = select i1 %inside, i64 1, i64 %shares
  call void @prepare(ptr %context, i64 %threads)
  %process.at = getelementptr i8, ptr %pool, i64 {layout.PROCESS}
  %busy = load ptr, ptr %process.at
  %in.vain = call i1 @ends(ptr %pool, ptr %context, ptr %call, i1 0)
  br i1 %in.vain, label %return, label %how
how:
  %alone = icmp eq i64 %threads, 1
  br i1 %alone, label %only, label %turn
only:
  %0 = atomicrmw add ptr %busy, i64 1 monotonic, align 8
  %1 = call i64 @walk(ptr %pool, ptr %context, ptr %call, i64 0, i64 1)
  br label %leave
turn:
  %mine = call i1 @occupy(ptr %pool, ptr %context, ptr %call)
  br i1 %mine, label %all, label %return
all:
  %2 = atomicrmw add ptr %busy, i64 %threads monotonic, align 8
  call void @together(ptr %pool, ptr %context, ptr %call, i64 %threads)
  call void @vacate(ptr %pool)
  br label %leave
leave:
  %3 = atomicrmw sub ptr %busy, i64 %threads monotonic, align 8
  br label %return
return:
  store i64 %depth, ptr %caller
  %ended = call i64 @end(ptr %pool, ptr %context, ptr %call)
  ret i64 %ended
}}

; a thread takes the next number that nobody has had; one for which there is none returns at once
define void @{layout.WORK}(ptr %pool) {{
entry:
  %generation = getelementptr i8, ptr %pool, i64 {layout.GENERATION}
  %parked = getelementptr i8, ptr %pool, i64 {layout.PARKED}
  %stop.at = getelementptr i8, ptr %pool, i64 {layout.STOP}
  %context.at = getelementptr i8, ptr %pool, i64 {layout.CONTEXT}
  %open.at = getelementptr i8, ptr %pool, i64 {layout.OPEN}
  %outside = getelementptr i8, ptr %pool, i64 {layout.OUTSIDE}
  %leaving = getelementptr i8, ptr %pool, i64 {layout.LEAVING}
  %entered = getelementptr i8, ptr %pool, i64 {layout.ENTERED}
  %left = getelementptr i8, ptr %pool, i64 {layout.LEFT}
  {field("threads", "pool", layout.THREADS)}
  call void @standard()
  br label %number
number:
  %last = load atomic i64, ptr %entered monotonic, align 8
  %thread = add i64 %last, 1
  %one = icmp ult i64 %thread, %threads
  br i1 %one, label %claim, label %none
claim:
  %pair = cmpxchg ptr %entered, i64 %last, i64 %thread seq_cst seq_cst, align 8
  %mine = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %mine, label %rest, label %number
rest:
  %seen = phi i64 [ 0, %claim ], [ %now, %leave ]
  %next = add i64 %seen, 1
  call void @await(ptr %pool, ptr %generation, i64 %next, ptr %parked, ptr null, ptr null)
  %now = load atomic i64, ptr %generation seq_cst, align 8  ; runs may have come and gone
  %stop = load atomic i32, ptr %stop.at seq_cst, align 4
  %home = icmp ne i32 %stop, 0
  br i1 %home, label %done, label %enter
enter:
  %0 = atomicrmw sub ptr %outside, i64 1 seq_cst, align 8
  %open = load atomic i64, ptr %open.at seq_cst, align 8
  %late = icmp eq i64 %open, 0
  br i1 %late, label %leave, label %work
work:
  %context = load ptr, ptr %context.at
  %1 = call i64 @walk(ptr %pool, ptr %context, ptr null, i64 %thread, i64 %threads)
  br label %leave
leave:
  call void @advance(ptr %pool, ptr %outside, i64 1, ptr %leaving)
  br label %rest
done:
  %2 = atomicrmw add ptr %left, i64 1 seq_cst, align 8
  ret void
none:
  ret void
}}

; workers return once they are through with what they do
define void @{layout.STOP_WORK}(ptr %pool) {{
  %stop.at = getelementptr i8, ptr %pool, i64 {layout.STOP}
  store atomic i32 1, ptr %stop.at seq_cst, align 4
  %generation = getelementptr i8, ptr %pool, i64 {layout.GENERATION}
  %parked = getelementptr i8, ptr %pool, i64 {layout.PARKED}
  call void @advance(ptr %pool, ptr %generation, i64 1, ptr %parked)
  ret void
}}
"""


def compile_walker(target: Target) -> bytes:
    """The native entry as an ELF object, for any CPU of the target's architecture. Raises InvalidTarget for others."""
    return _compile(target.machine)


@cache
def _compile(arch: str) -> bytes:
    text = walker_text(arch)
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    triple = _MACHINES[arch][0]
    machine = llvm.Target.from_triple(triple).create_target_machine(opt=2, reloc="pic", codemodel="small")
    module = llvm.parse_assembly(text)
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)
    return machine.emit_object(module)
