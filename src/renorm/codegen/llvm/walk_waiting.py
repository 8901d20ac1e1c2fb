"""Waiting for a word of the pool, and waking those who do.

A thread that waits pauses as often as the process says, then calls futex; whoever changes a word wakes only when
somebody sleeps. A sleeper counts itself before it compares the word, the other changes the word before it reads the
count, all sequentially consistent; futex compares again before it sleeps, the lower 32 bits alone, so what is added
must change those: then a wake-up cannot be missed. Who has called a run sleeps for a period at most, and looks whether
the run is to end.
"""

from __future__ import annotations

from renorm.codegen.llvm.walk_fields import field
from renorm.runtime import layout

_WAIT, WAKE = 128, 129  # FUTEX_WAIT, FUTEX_WAKE, with FUTEX_PRIVATE_FLAG
_ALL = 0x7FFFFFFF


def text(futex: int, pause: str) -> str:
    """futex: number of the system call; pause: a statement."""
    return f"""
define internal void @futex(ptr %pool, ptr %word, i64 %operation, i64 %value, ptr %time) noinline {{
  {field("process", "pool", layout.PROCESS, "ptr")}
  %at = getelementptr i8, ptr %process, i64 {layout.SYSCALL}
  %syscall = load ptr, ptr %at
  %r = call i64 (i64, ...) %syscall(i64 {futex}, ptr %word, i64 %operation, i64 %value, ptr %time, i64 0, i64 0)
  ret void
}}

; returns when the word is %least or more, or when the run of this call is to end
define internal void @await(ptr %pool, ptr %word, i64 %least, ptr %sleepers, ptr %context, ptr %call) {{
entry:
  {field("process", "pool", layout.PROCESS, "ptr")}
  %busy = load atomic i64, ptr %process monotonic, align 8
  {field("cores", "process", layout.CORES)}
  %crowded = icmp sgt i64 %busy, %cores
  %which = select i1 %crowded, i64 {layout.HASTY}, i64 {layout.PATIENT}
  %spins.at = getelementptr i8, ptr %process, i64 %which
  %spins = load i64, ptr %spins.at
  br label %spin
spin:
  %k = phi i64 [ 0, %entry ], [ %k.next, %again ]
  %seen = load atomic i64, ptr %word seq_cst, align 8
  %enough = icmp sge i64 %seen, %least
  br i1 %enough, label %done, label %again
again:
  {pause}
  %k.next = add i64 %k, 1
  %more = icmp ult i64 %k.next, %spins
  br i1 %more, label %spin, label %count
count:
  %0 = atomicrmw add ptr %sleepers, i32 1 seq_cst, align 4
  %other = icmp eq ptr %call, null
  %period.at = getelementptr i8, ptr %process, i64 {layout.PERIOD}
  %period = select i1 %other, ptr null, ptr %period.at
  br label %compare
compare:
  %value = load atomic i64, ptr %word seq_cst, align 8
  %reached = icmp sge i64 %value, %least
  br i1 %reached, label %awake, label %sleep
sleep:
  %low = and i64 %value, 4294967295
  call void @futex(ptr %pool, ptr %word, i64 {_WAIT}, i64 %low, ptr %period)
  br i1 %other, label %compare, label %look
look:
  %ends = call i1 @ends(ptr %pool, ptr %context, ptr %call, i1 1)
  br i1 %ends, label %awake, label %compare
awake:
  %1 = atomicrmw sub ptr %sleepers, i32 1 seq_cst, align 4
  br label %done
done:
  ret void
}}

; adds to the word, and wakes those who wait for that
define internal void @advance(ptr %pool, ptr %word, i64 %amount, ptr %sleepers) {{
  %old = atomicrmw add ptr %word, i64 %amount seq_cst, align 8
  %count = load atomic i32, ptr %sleepers seq_cst, align 4
  %some = icmp sgt i32 %count, 0
  br i1 %some, label %wake, label %done
wake:
  call void @futex(ptr %pool, ptr %word, i64 {WAKE}, i64 {_ALL}, ptr null)
  br label %done
done:
  ret void
}}

; says that %own more iterations are done
define internal void @finish(ptr %pool, i64 %own) {{
  %any = icmp ne i64 %own, 0
  br i1 %any, label %add, label %done
add:
  %word = getelementptr i8, ptr %pool, i64 {layout.DONE}
  %waiting = getelementptr i8, ptr %pool, i64 {layout.WAITING}
  call void @advance(ptr %pool, ptr %word, i64 %own, ptr %waiting)
  br label %done
done:
  ret void
}}

; waits until %least iterations of the run are done, or it is to end
define internal void @until(ptr %pool, i64 %least, ptr %context, ptr %call) {{
  %word = getelementptr i8, ptr %pool, i64 {layout.DONE}
  %waiting = getelementptr i8, ptr %pool, i64 {layout.WAITING}
  call void @await(ptr %pool, ptr %word, i64 %least, ptr %waiting, ptr %context, ptr %call)
  ret void
}}

; makes the team this call's, unless its run is to end before that; whether it is
define internal i1 @occupy(ptr %pool, ptr %context, ptr %call) {{
entry:
  %free = getelementptr i8, ptr %pool, i64 {layout.FREE}
  %queued = getelementptr i8, ptr %pool, i64 {layout.QUEUED}
  br label %try
try:
  %pair = cmpxchg ptr %free, i64 1, i64 0 seq_cst seq_cst, align 8
  %mine = extractvalue {{ i64, i1 }} %pair, 1
  br i1 %mine, label %done, label %wait
wait:
  call void @await(ptr %pool, ptr %free, i64 1, ptr %queued, ptr %context, ptr %call)
  %ends = call i1 @ends(ptr %pool, ptr %context, ptr %call, i1 0)
  br i1 %ends, label %done, label %try
done:
  ret i1 %mine
}}

define internal void @vacate(ptr %pool) {{
  %free = getelementptr i8, ptr %pool, i64 {layout.FREE}
  %queued = getelementptr i8, ptr %pool, i64 {layout.QUEUED}
  call void @advance(ptr %pool, ptr %free, i64 1, ptr %queued)
  ret void
}}
"""
