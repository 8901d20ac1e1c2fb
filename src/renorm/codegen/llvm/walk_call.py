"""A run as its caller has it: what of the thread is put back after it, and what may end it before it is done.

`call` lies on the stack of the thread that called `renorm_run`, which alone looks for what may end a run: that another
thread cancels it, that the state it reads was replaced, its time limit, signals. It looks between phases, between
pieces of one, and each time it has slept; the other threads only read ENDED of the context. So looking costs some
nanoseconds; a run that is short by what the compiler expects looks for no signals, since it is over before.

Handlers of signals are Python's: the caller goes back to the interpreter, each PERIOD, and has them called. What they
raise stays with the interpreter, which raises it where the run was called.

Code of others sees the caller's floating-point environment: external code, handlers of signals, finalizers. Kernels
see that which LLVM takes for granted (round to nearest, denormals kept, no exception traps), whatever was set in any
thread.
"""

from __future__ import annotations

from renorm.codegen.llvm.walk_fields import field
from renorm.runtime import layout

# call: thread state of the interpreter, floating-point environment, deadline, what CANCELS and VERSION were, when to
# look for signals next, pointer of the thread that called, whether clock and signals are looked at, whether other
# threads take part, and a moment
STATE, ENVIRONMENT, DEADLINE, CANCELS, VERSION, NEXT, SELF, WATCHED, WIDE, NOW = (8 * i for i in range(10))
CALL_BYTES = NOW + layout.MOMENT

PERIOD_NS = 15_000_000  # with pieces of some ms, an interrupt is served well within 50 ms
NEVER = (1 << 63) - 1
# more iterations than any run has: who waits for some goes on, and sees that the run ends. 1: for walk_waiting
_ALL_DONE = (1 << 60) + 1
MONOTONIC, _COARSE = 1, 6  # clocks: that which perf_counter reads; that of its last tick, some ms ago, which is cheaper

# declarations, statements that read and write the environment, that which kernels are made for
ENVIRONMENTS = {
    "x86_64": """
declare void @llvm.x86.sse.stmxcsr(ptr)
declare void @llvm.x86.sse.ldmxcsr(ptr)

define internal i64 @environment() {
  %at = alloca i32
  call void @llvm.x86.sse.stmxcsr(ptr %at)
  %short = load i32, ptr %at
  %now = zext i32 %short to i64
  ret i64 %now
}

define internal void @become(i64 %environment) {
  %at = alloca i32
  %short = trunc i64 %environment to i32
  store i32 %short, ptr %at
  call void @llvm.x86.sse.ldmxcsr(ptr %at)
  ret void
}

define internal void @standard() {
  call void @become(i64 8064)  ; all exceptions masked
  ret void
}
""",
    "aarch64": """
declare i64 @llvm.aarch64.get.fpcr()
declare void @llvm.aarch64.set.fpcr(i64)

define internal i64 @environment() {
  %now = call i64 @llvm.aarch64.get.fpcr()
  ret i64 %now
}

define internal void @become(i64 %environment) {
  call void @llvm.aarch64.set.fpcr(i64 %environment)
  ret void
}

define internal void @standard() {
  call void @become(i64 0)
  ret void
}
""",
}

TEXT = f"""
declare ptr @llvm.thread.pointer()

; nanoseconds of a clock
define internal i64 @clock(ptr %pool, i32 %which, ptr %moment) {{
  {field("process", "pool", layout.PROCESS, "ptr")}
  {field("clock", "process", layout.CLOCK, "ptr")}
  %r = call i32 %clock(i32 %which, ptr %moment)
  %seconds = load i64, ptr %moment
  %rest.at = getelementptr i8, ptr %moment, i64 8
  %rest = load i64, ptr %rest.at
  %whole = mul i64 %seconds, 1000000000
  %now = add i64 %whole, %rest
  ret i64 %now
}}

; nothing where no interpreter calls, as in an emulator
define internal void @leave(ptr %pool, ptr %call) {{
entry:
  {field("process", "pool", layout.PROCESS, "ptr")}
  {field("leave", "process", layout.LEAVE, "ptr")}
  %none = icmp eq ptr %leave, null
  br i1 %none, label %done, label %go
go:
  %state = call ptr %leave()
  store ptr %state, ptr %call
  br label %done
done:
  ret void
}}

define internal void @return(ptr %pool, ptr %call) {{
entry:
  {field("process", "pool", layout.PROCESS, "ptr")}
  {field("return", "process", layout.RETURN, "ptr")}
  %none = icmp eq ptr %return, null
  br i1 %none, label %done, label %go
go:
  %state = load ptr, ptr %call
  call void %return(ptr %state)
  br label %done
done:
  ret void
}}

; fills in the call and puts the thread into the state in which kernels run
define internal void @begin(ptr %pool, ptr %context, ptr %caller, ptr %call, i64 %deadline, i64 %cancels,
                            i64 %version) {{
entry:
  call void @leave(ptr %pool, ptr %call)
  %environment = call i64 @environment()
  %environment.at = getelementptr i8, ptr %call, i64 {ENVIRONMENT}
  store i64 %environment, ptr %environment.at
  call void @standard()
  %deadline.at = getelementptr i8, ptr %call, i64 {DEADLINE}
  store i64 %deadline, ptr %deadline.at
  %cancels.at = getelementptr i8, ptr %call, i64 {CANCELS}
  store i64 %cancels, ptr %cancels.at
  %version.at = getelementptr i8, ptr %call, i64 {VERSION}
  store i64 %version, ptr %version.at
  %self = call ptr @llvm.thread.pointer()
  %self.at = getelementptr i8, ptr %call, i64 {SELF}
  store ptr %self, ptr %self.at
  {field("short", "context", layout.IS_SHORT)}
  %is.long = icmp eq i64 %short, 0
  %timed = icmp ne i64 %deadline, {NEVER}
  %watched = or i1 %is.long, %timed
  %watched.word = zext i1 %watched to i64
  %watched.at = getelementptr i8, ptr %call, i64 {WATCHED}
  store i64 %watched.word, ptr %watched.at
  %main.at = getelementptr i8, ptr %caller, i64 {layout.IS_MAIN}
  %main.word = load i64, ptr %main.at
  %main = icmp ne i64 %main.word, 0
  %next = select i1 %main, i64 0, i64 {NEVER}
  %next.at = getelementptr i8, ptr %call, i64 {NEXT}
  store i64 %next, ptr %next.at
  %wide.at = getelementptr i8, ptr %call, i64 {WIDE}
  store i64 0, ptr %wide.at
  %ended = getelementptr i8, ptr %context, i64 {layout.ENDED}
  store atomic i64 0, ptr %ended monotonic, align 8
  ret void
}}

; gives the thread back to who called; the reason for which the run ended, 0 where it is done
define internal i64 @end(ptr %pool, ptr %context, ptr %call) {{
  {field("environment", "call", ENVIRONMENT)}
  call void @become(i64 %environment)
  call void @return(ptr %pool, ptr %call)
  %ended.at = getelementptr i8, ptr %context, i64 {layout.ENDED}
  %ended = load atomic i64, ptr %ended.at monotonic, align 8
  ret i64 %ended
}}

; has the run end, and those go on who wait for iterations of it
define internal void @call_off(ptr %pool, ptr %context, i1 %wide, i64 %reason) noinline {{
entry:
  %ended.at = getelementptr i8, ptr %context, i64 {layout.ENDED}
  store atomic i64 %reason, ptr %ended.at seq_cst, align 8
  br i1 %wide, label %tell, label %done
tell:
  call void @finish(ptr %pool, i64 {_ALL_DONE})
  br label %done
done:
  ret void
}}

; whether the run is to end before it is done
define internal i1 @ends(ptr %pool, ptr %context, ptr %call, i1 %slept) {{
entry:
  %ended.at = getelementptr i8, ptr %context, i64 {layout.ENDED}
  %ended = load atomic i64, ptr %ended.at monotonic, align 8
  %over = icmp ne i64 %ended, 0
  br i1 %over, label %yes, label %who
who:
  %other = icmp eq ptr %call, null
  br i1 %other, label %no, label %cancels
cancels:
  %cancels.at = getelementptr i8, ptr %context, i64 {layout.CANCELS}
  %cancels.word = load ptr, ptr %cancels.at
  %cancels.now = load atomic i64, ptr %cancels.word monotonic, align 8
  {field("cancels.then", "call", CANCELS)}
  %cancelled = icmp ne i64 %cancels.now, %cancels.then
  br i1 %cancelled, label %off, label %version
version:
  %version.at = getelementptr i8, ptr %context, i64 {layout.VERSION}
  %version.word = load ptr, ptr %version.at
  %version.now = load atomic i64, ptr %version.word monotonic, align 8
  {field("version.then", "call", VERSION)}
  %other.version = icmp ne i64 %version.now, %version.then
  %tied = icmp ne i64 %version.then, -1
  %outdated = and i1 %other.version, %tied
  br i1 %outdated, label %off, label %watch
watch:
  %watched.at = getelementptr i8, ptr %call, i64 {WATCHED}
  %watched.word = load i64, ptr %watched.at
  %watched = icmp ne i64 %watched.word, 0
  %look = or i1 %watched, %slept
  br i1 %look, label %time, label %no
time:
  %moment = getelementptr i8, ptr %call, i64 {NOW}
  {field("deadline", "call", DEADLINE)}
  %limited = icmp ne i64 %deadline, {NEVER}
  %which = select i1 %limited, i32 {MONOTONIC}, i32 {_COARSE}
  %now = call i64 @clock(ptr %pool, i32 %which, ptr %moment)
  %late = icmp sge i64 %now, %deadline
  br i1 %late, label %off, label %period
period:
  {field("next", "call", NEXT)}
  %due = icmp sge i64 %now, %next
  br i1 %due, label %turn, label %no
turn:
  %next.new = add i64 %now, {PERIOD_NS}
  store i64 %next.new, ptr %next.at
  %first = icmp eq i64 %next, 0
  br i1 %first, label %no, label %signals
signals:
  {field("environment", "call", ENVIRONMENT)}
  call void @become(i64 %environment)
  call void @return(ptr %pool, ptr %call)
  {field("process", "pool", layout.PROCESS, "ptr")}
  %signals.at = getelementptr i8, ptr %process, i64 {layout.SIGNALS}
  %function = load ptr, ptr %signals.at
  %failed = call i32 %function()
  call void @leave(ptr %pool, ptr %call)
  call void @standard()
  %raised = icmp ne i32 %failed, 0
  br i1 %raised, label %off, label %no
off:
  %reason = phi i64 [ {layout.CANCELLED}, %cancels ], [ {layout.OUTDATED}, %version ],
                    [ {layout.TIMED_OUT}, %time ], [ {layout.RAISED}, %signals ]
  %wide.at = getelementptr i8, ptr %call, i64 {WIDE}
  %wide.word = load i64, ptr %wide.at
  %wide = icmp ne i64 %wide.word, 0
  call void @call_off(ptr %pool, ptr %context, i1 %wide, i64 %reason)
  br label %yes
yes:
  ret i1 1
no:
  ret i1 0
}}

; runs code of others: by its caller's thread, mostly; where it does not come to its end, the run ends
define internal void @foreign(ptr %pool, ptr %context, ptr %call, ptr %function, ptr %args, i64 %extent) noinline {{
entry:
  %other = icmp eq ptr %call, null
  br i1 %other, label %run, label %caller
caller:
  {field("environment", "call", ENVIRONMENT)}
  call void @become(i64 %environment)
  br label %run
run:
  %result = call i64 %function(ptr %args, i64 0, i64 %extent, i64 0)
  call void @standard()
  %good = icmp eq i64 %result, {layout.SUCCESS}
  br i1 %good, label %done, label %failed
failed:
  br i1 %other, label %off, label %look
look:
  %wide.at = getelementptr i8, ptr %call, i64 {WIDE}
  %wide.word = load i64, ptr %wide.at
  %wide.call = icmp ne i64 %wide.word, 0
  br label %off
off:
  %wide = phi i1 [ 1, %failed ], [ %wide.call, %look ]
  call void @call_off(ptr %pool, ptr %context, i1 %wide, i64 {layout.FAILED})
  br label %done
done:
  ret void
}}
"""
