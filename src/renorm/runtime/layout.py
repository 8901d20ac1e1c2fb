"""Memory that the native entry and Python share: byte offsets and record sizes. codegen.llvm.walk compiles them in.

All fields are 64-bit words unless said otherwise.

    pool      one per team of threads; fields that different threads write lie LINE bytes apart
    context   one per call in flight: where the table, the patches and the caller's arrays are
    table     one record of RECORD bytes per phase, in order
    counters  for each thread a row of words: how much of its share was taken, one word for each phase that is handed
              out in chunks; rows lie LINE bytes apart or more
    patch     (address of a pointer, index into bases, byte offset): pointer = bases[index] + offset, done once per call
    bases     addresses of the caller's inputs, then outputs
    times     where a run is recorded: for each thread a row of two moments for each phase, when it began its part and
              when it had done it; a moment is two words, seconds and nanoseconds. What it had no part in stays as it is
"""

from __future__ import annotations

LINE = 128  # bytes; x86 fetches cache lines in pairs, so 64 would let neighbours disturb each other

# pool: futex words and counters are 32 bits
GENERATION = 0 * LINE  # futex word: how many runs were published
PARKED = 1 * LINE  # how many workers sleep on GENERATION
CONTEXT = 2 * LINE  # context of the run that was published last
STOP = CONTEXT + 8  # 32 bits: not 0 when workers must return
SYSCALL = CONTEXT + 16  # address of the C library's syscall()
SPINS = CONTEXT + 24  # address of 32 bits: pauses before a thread that waits goes to sleep
CLOCK = CONTEXT + 32  # address of the C library's clock_gettime()
ARRIVED = 3 * LINE  # how many threads have come to the barrier
EPOCH = 4 * LINE  # futex word: how many barriers were passed
WAITING = 5 * LINE  # how many threads sleep on EPOCH
POOL_BYTES = 6 * LINE

# context
TABLE, PHASES, PATCHES, PATCH_COUNT, BASES, COUNTERS, ROW = 0, 8, 16, 24, 32, 40, 48  # ROW: bytes of one of COUNTERS
TIMES = 56  # address, 0 where nothing is recorded
CONTEXT_WORDS = 8

# record of the table
FUNCTION, ARGS, EXTENT, CHUNK, BARRIER, TAKEN = 0, 8, 16, 24, 32, 40  # TAKEN: byte of the counter in its row
RECORD = 64  # bytes
PATCH = 24  # bytes
MOMENT = 16  # bytes: struct timespec

RUN, WORK, STOP_WORK = "renorm_run", "renorm_work", "renorm_stop"  # symbols of the walker
