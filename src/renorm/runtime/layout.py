"""Memory that the native entry and Python share: byte offsets and record sizes. codegen.llvm.walk compiles them in.

All fields are 64-bit words unless said otherwise.

    pool      one per team of threads; fields that different threads write lie LINE bytes apart
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

# pool: sleepers are counted in 32 bits; futex looks at the lower half of a word
GENERATION = 0 * LINE  # how many runs were published
PARKED = 1 * LINE  # how many workers sleep on GENERATION
CONTEXT = 2 * LINE  # context of the run that was published last
OPEN = CONTEXT + 8  # not 0 while workers may enter it
STOP = CONTEXT + 16  # 32 bits: not 0 when workers must return
SYSCALL = CONTEXT + 24  # address of the C library's syscall()
SPINS = CONTEXT + 32  # address of 32 bits: pauses before a thread that waits goes to sleep
CLOCK = CONTEXT + 40  # address of the C library's clock_gettime()
PARALLEL = CONTEXT + 48  # address of OpenMP's GOMP_parallel(), where a region of it walks; 0 where workers of ours do
NUMBER = CONTEXT + 56  # address of its omp_get_thread_num()
REGION = CONTEXT + 64  # how many threads such a region asks for
WALKING = CONTEXT + 72  # how many of them walk the run
BODY = CONTEXT + 80  # address of the walker's JOIN, which all threads of the region call
DONE = 3 * LINE  # iterations of the run that are done
WAITING = 4 * LINE  # how many threads sleep on DONE
OUTSIDE = 5 * LINE  # minus how many workers are inside a run
LEAVING = 6 * LINE  # how many threads sleep on OUTSIDE: none, or thread 0
POOL_BYTES = 7 * LINE

# context
TABLE, PHASES, PATCHES, PATCH_COUNT, BASES, COUNTERS, ROW = 0, 8, 16, 24, 32, 40, 48  # ROW: bytes of one of COUNTERS
TIMES = 56  # address, 0 where nothing is recorded
CONTEXT_WORDS = 8

# record of the table
FUNCTION, ARGS, EXTENT, CHUNK, BARRIER, TAKEN, BEFORE = 0, 8, 16, 24, 32, 40, 48
# CHUNK: iterations that a thread takes at a time; 0: all are thread 0's. BARRIER: whether all that stands before must
# be done. TAKEN: byte of the counter in its row. BEFORE: iterations of all records before
RECORD = 64  # bytes
PATCH = 24  # bytes
MOMENT = 16  # bytes: struct timespec

RUN, WORK, STOP_WORK, JOIN = "renorm_run", "renorm_work", "renorm_stop", "renorm_join"  # symbols of the walker
