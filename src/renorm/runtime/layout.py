"""Memory that the native entry and Python share: byte offsets and record sizes. codegen.llvm.walk compiles them in.

All fields are 64-bit words unless said otherwise.

    process   one per process: what all teams look at
    pool      one per team of threads; fields that different threads write lie LINE bytes apart
    caller    one per thread that calls: how deep it is in walks
    context   one per call in flight: where the table, the patches and the caller's arrays are
    table     one record of RECORD bytes per phase, in order
    counters  for each thread a row of words: how much of its share was taken, one word for each phase of several
              iterations; rows lie LINE bytes apart or more
    patch     (address of a pointer, index into bases, byte offset): pointer = bases[index] + offset, done once per call
    bases     addresses of the caller's inputs, then outputs
    times     where a run is recorded: for each thread a row of two moments for each phase, when it began its part and
              when it had done it; a moment is two words, seconds and nanoseconds. What it had no part in stays as it is
"""

from __future__ import annotations

LINE = 128  # bytes; x86 fetches cache lines in pairs, so 64 would let neighbours disturb each other

# process
BUSY = 0 * LINE  # threads of all runs in flight
CORES = 1 * LINE  # as long as BUSY is no more, a thread that waits is patient
PATIENT = CORES + 8  # nanoseconds before a thread that waits for others of its run goes to sleep
HASTY = CORES + 16  # the same where another thread may want the core
SYSCALL = CORES + 24  # address of the C library's syscall()
CLOCK = CORES + 32  # address of the C library's clock_gettime()
LEAVE = CORES + 40  # address of PyEval_SaveThread(); 0 where no interpreter calls, which then needs not be left
RETURN = CORES + 48  # address of PyEval_RestoreThread()
SIGNALS = CORES + 56  # address of PyErr_CheckSignals()
PERIOD = CORES + 64  # struct timespec: how long a thread that can be called off sleeps before it looks
IDLE = CORES + 80  # like PATIENT, where it waits for a run
PROCESS_BYTES = 2 * LINE

# pool: sleepers are counted in 32 bits; futex looks at the lower half of a word
GENERATION = 0 * LINE  # how many runs were published
PARKED = 1 * LINE  # how many workers sleep on GENERATION
CONTEXT = 2 * LINE  # context of the run that was published last
OPEN = CONTEXT + 8  # not 0 while workers may enter it
STOP = CONTEXT + 16  # 32 bits: not 0 when workers must return
PROCESS = CONTEXT + 24  # address
THREADS = CONTEXT + 32  # of the team
WALKING = CONTEXT + 40  # of the run that was published last
CALL = CONTEXT + 48  # that run as its caller has it (codegen.llvm.walk_call)
ENDED_AT = CONTEXT + 56  # when the last run ended, in nanoseconds
PARALLEL = CONTEXT + 64  # address of OpenMP's GOMP_parallel(), where a region of it walks; 0 where workers of ours do
NUMBER = CONTEXT + 72  # address of its omp_get_thread_num()
REGION = CONTEXT + 80  # how many threads such a region asks for
BODY = CONTEXT + 88  # address of the walker's JOIN, which all threads of the region call
DONE = 3 * LINE  # iterations of the run that are done
WAITING = 4 * LINE  # how many threads sleep on DONE
OUTSIDE = 5 * LINE  # minus how many workers are inside a run
LEAVING = 6 * LINE  # how many threads sleep on OUTSIDE: none, or thread 0
FREE = 7 * LINE  # 1 while the team is nobody's; a run takes it and gives it back
QUEUED = 8 * LINE  # how many threads sleep on FREE
ENTERED = 9 * LINE  # how many workers there ever were: the last one has this number
LEFT = ENTERED + 8  # how many of them returned
POOL_BYTES = 10 * LINE

# caller
DEPTH = 0  # walks that the thread is in, one inside of the other
IS_MAIN = 8  # not 0 where it is the thread that handles signals
CALLER_WORDS = 2

# context
TABLE, PHASES, PATCHES, PATCH_COUNT, BASES, COUNTERS, ROW = 0, 8, 16, 24, 32, 40, 48  # ROW: bytes of one of COUNTERS
TIMES = 56  # address, 0 where nothing is recorded
SHARES = 64  # for how many threads it was made
IS_SHORT = 72  # not 0: a run takes less than waking a thread
CANCELS = 80  # address of a word: a run ends when it is no longer what it was when the run was called
VERSION = 88  # the same, of the state that the run reads
ENDED = 96  # why the run in flight ends before it is done, one of the reasons below; 0: it does not
CONTEXT_WORDS = 13

# why a run ended. FAILED: code of others did not come to its end. RAISED: a signal's handler raised an exception
CANCELLED, OUTDATED, TIMED_OUT, RAISED, FAILED = 1, 2, 3, 4, 5

# record of the table
FUNCTION, ARGS, EXTENT, CHUNK, FLAGS, TAKEN, BEFORE, PIECE = 0, 8, 16, 24, 32, 40, 48, 56
# CHUNK: iterations that a thread takes at a time; 0: all are thread 0's. TAKEN: byte of the counter in its row.
# BEFORE: iterations of all records before. PIECE: iterations that a thread that is alone runs at a time, where the run
# is not short
BARRIER, FOREIGN = 1, 2  # FLAGS: all that stands before must be done; code of others, which returns SUCCESS
RECORD = 64  # bytes
PATCH = 24  # bytes
MOMENT = 16  # bytes: struct timespec
FOREVER = (1 << 63) - 1  # no deadline
UNTIED = -1  # no version of the state
PERIOD_NS = 15_000_000  # of sleep, after which a caller looks; with pieces of some ms it serves an interrupt in 50 ms
SUCCESS = 0x72656E6F726D  # no other value that may lie where a result is looked for

RUN, WORK, STOP_WORK, JOIN = "renorm_run", "renorm_work", "renorm_stop", "renorm_join"  # symbols of the walker
