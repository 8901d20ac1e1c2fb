// Who runs the threads of a kernel on the processor: blocks one after the other, in an order that is drawn from a seed,
// and so the threads of a block, each up to its next barrier or shuffle. Every thread has a stack of its own for that;
// those of a kernel that waits for nothing are a plain loop. The same seed with `back` set runs all of them in the
// opposite order: what is different then is a race. Shared memory is all ones (NaN) when a block begins. A launch
// returns a message, or null where nothing went wrong.
#ifndef RENORM_HOST_THREADS_H
#define RENORM_HOST_THREADS_H

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <utility>
#ifndef __x86_64__
#include <ucontext.h>
#endif

namespace host {

struct Request {
  void** args;
  unsigned count, grid[3], block[3];
  int back;
  unsigned long long seed;
};
struct Kernel {
  const char* name;
  void (*body)(void**);
  unsigned params, bound;
  bool waits;
  char *shared, *shared_end;
};
enum State { ready, at_barrier, at_warp, ended };
struct Thread {
  uint3 index;
  State state;
  int line, source;
  unsigned mask;
  __align__(16) char value[16], result[16];
#ifdef __x86_64__
  void* stack;
#else
  ucontext_t context;
#endif
};
// what -fsanitize finds is SIGILL on x86-64, SIGTRAP on AArch64
constexpr int SIGNALS[] = {SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGBUS}, TAKEN = sizeof SIGNALS / sizeof *SIGNALS;
constexpr size_t STACK = 256 << 10, ASKED = 227 << 10, SHARED = 48 << 10;
constexpr unsigned LARGEST = 1024, LANES = 32;

static Thread threads[LARGEST], *current, scheduler;
static unsigned threads_of_block;
static void (*body)(void**);
static void** arguments;
static const char* kernel;
static char message[512];
static jmp_buf out;
static unsigned long long drawn;

// ---- what went wrong

[[noreturn]] __attribute__((format(printf, 1, 2))) static void fail(const char* format, ...) {
  const uint3 b = blockIdx, t = threadIdx;
  int n = snprintf(message, sizeof message, "kernel %s, block (%u, %u, %u), thread (%u, %u, %u): ", kernel, b.x, b.y,
                   b.z, t.x, t.y, t.z);
  va_list rest;
  va_start(rest, format);
  vsnprintf(message + n, sizeof message - n, format, rest);
  va_end(rest);
  longjmp(out, 1);
}

static void on_signal(int number, siginfo_t* info, void*) {
  if (number == SIGFPE) fail("an integer is divided by zero");
  if (number != SIGSEGV || info->si_code == SI_KERNEL)
    fail("an access that is not aligned, or has an address that is none");
  fail("access to address 0x%llx, outside of its memory", (unsigned long long)info->si_addr);
}

// ---- copies of threads: to, from, bytes, and how many of them are waited for

struct Copy { unsigned thread; void* to; const void* from; size_t size; bool committed; };
constexpr unsigned COPIES = 1 << 16;
static Copy copies[COPIES];
static unsigned copies_made;

static unsigned own_number() { return current ? unsigned(current - threads) : 0; }
static void copy(void* to, const void* from, size_t size) {
  if (copies_made == COPIES) fail("more than %u copies on their way", COPIES);
  copies[copies_made++] = {own_number(), to, from, size, false};
}
static void commit() {
  for (unsigned i = 0; i < copies_made; ++i) copies[i].committed |= copies[i].thread == own_number();
}
static void finish() {
  unsigned left = 0;
  for (unsigned i = 0; i < copies_made; ++i)
    if (copies[i].thread == own_number() && copies[i].committed) memcpy(copies[i].to, copies[i].from, copies[i].size);
    else copies[left++] = copies[i];
  copies_made = left;
}

// ---- orders

static unsigned draw(unsigned below) {
  drawn ^= drawn << 13, drawn ^= drawn >> 7, drawn ^= drawn << 17;
  return unsigned((drawn >> 20) % below);
}

struct Order {  // a permutation of 0 ... n - 1
  unsigned n, step, start;
  bool back;
  Order(unsigned n, bool back) : n(n), start(draw(n)), back(back) {
    unsigned a, b;
    do {
      step = 1 + draw(n);
      for (a = n, b = step; b; a %= b, std::swap(a, b)) {}
    } while (a != 1);
  }
  unsigned operator[](unsigned i) const { return ((unsigned long long)(back ? n - 1 - i : i) * step + start) % n; }
};

// ---- threads that wait for each other

#ifdef __x86_64__
extern "C" __attribute__((visibility("hidden"))) void renorm_host_switch(void** from, void* to);
asm(".text\n.hidden renorm_host_switch\n.globl renorm_host_switch\nrenorm_host_switch:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\nmovq %rsp, (%rdi)\nmovq %rsi, %rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n");
static void go(Thread& from, Thread& to) { renorm_host_switch(&from.stack, to.stack); }
#else
static void go(Thread& from, Thread& to) { swapcontext(&from.context, &to.context); }
#endif

static void whole_thread() {
  body(arguments);
  current->state = ended;
  go(*current, scheduler);
}

static void begin(Thread& t, char* stack) {
  t.state = ready;
#ifdef __x86_64__
  void** top = (void**)(stack + STACK - 16);
  *top = (void*)whole_thread;
  t.stack = top - 6;  // the registers that renorm_host_switch takes from there
#else
  getcontext(&t.context);
  t.context.uc_stack.ss_sp = stack, t.context.uc_stack.ss_size = STACK, t.context.uc_link = nullptr;
  makecontext(&t.context, whole_thread, 0);
#endif
}

static void wait(State state, int line) {
  if (!current) fail("a barrier in a kernel that was taken for one without");
  current->state = state, current->line = line;
  go(*current, scheduler);
}

// All of a block wait, or have ended: at one barrier, or something is wrong.
static void check_release() {
  const Thread *first = threads, *end = threads + threads_of_block, *waits = nullptr, *other = nullptr;
  for (const Thread* t = first; t < end; ++t)
    if (t->state == at_warp || (t->state == at_barrier && !waits)) waits = t;
  const bool of_warp = waits->state == at_warp;
  for (const Thread* t = of_warp ? first + (waits - first) / LANES * LANES : first; t < end; ++t) {
    if (of_warp && (t - first) / LANES != (waits - first) / LANES) break;
    if (of_warp && !(waits->mask >> (t - first) % LANES & 1)) continue;
    if (t->state != waits->state || t->line != waits->line || (of_warp && t->mask != waits->mask)) other = t;
  }
  if (!other) return;
  threadIdx = waits->index;
  char what[64] = "has ended";
  if (other->state == at_barrier) snprintf(what, sizeof what, "waits at the barrier of line %d", other->line);
  if (other->state == at_warp) snprintf(what, sizeof what, "waits in line %d for lanes 0x%x", other->line, other->mask);
  fail("waits at the %s of line %d, which thread (%u, %u, %u) does not reach: it %s", of_warp ? "shuffle" : "barrier",
       waits->line, other->index.x, other->index.y, other->index.z, what);
}

static void run_block_of_fibers(char* stacks, bool back) {
  for (unsigned i = 0; i < threads_of_block; ++i) begin(threads[i], stacks + i * STACK);
  for (unsigned left = threads_of_block;;) {
    const Order order(threads_of_block, back);
    bool ran = false;
    for (unsigned i = 0; i < threads_of_block; ++i) {
      Thread& t = threads[order[i]];
      if (t.state != ready) continue;
      ran = true, current = &t, threadIdx = t.index;
      go(scheduler, t);
      left -= t.state == ended;
    }
    if (ran) continue;
    if (left == 0) return;
    check_release();
    for (unsigned i = 0; i < threads_of_block; ++i) threads[i].state = ready;
  }
}

// The value of another lane; poison where there is none. The last lane that comes serves all of them.
template <class T> T exchange(unsigned mask, int source, T value, int line) {
  static_assert(sizeof(T) <= 16);
  if (!current) fail("a shuffle in a kernel that was taken for one without");
  const unsigned own = unsigned(current - threads), first = own / LANES * LANES;
  if (!(mask >> (own - first) & 1)) fail("the mask 0x%x of line %d does not have its own lane", mask, line);
  current->mask = mask, current->source = source, current->line = line, current->state = at_warp;
  memcpy(current->value, &value, sizeof value);
  bool all = true;
  const auto takes_part = [=](unsigned lane) { return mask >> lane & 1 && first + lane < threads_of_block; };
  for (unsigned lane = 0; lane < LANES; ++lane)
    if (const Thread& t = threads[first + lane]; takes_part(lane))
      all &= t.state == at_warp && t.mask == mask && t.line == line;
  for (unsigned lane = 0; all && lane < LANES; ++lane)
    if (Thread& t = threads[first + lane]; takes_part(lane)) {
      if (takes_part(t.source)) memcpy(t.result, threads[first + t.source].value, sizeof value);
      else memset(t.result, 0xFF, sizeof value);
      t.state = ready;
    }
  go(*current, scheduler);
  memcpy(&value, current->result, sizeof value);
  return value;
}

inline int lane() { return current ? int(current - threads) % int(LANES) : 0; }

// ---- launches

template <class... P> constexpr unsigned params(void (*)(P...)) { return sizeof...(P); }
template <class... P, size_t... I> void apply(void (*f)(P...), void** a, std::index_sequence<I...>) { f((P)a[I]...); }
template <class... P> void apply(void (*f)(P...), void** a) { apply(f, a, std::index_sequence_for<P...>()); }

static void run(const Kernel& k, const Request& r, char* stacks) {
  const unsigned blocks = r.grid[0] * r.grid[1] * r.grid[2];
  const Order order(blocks, r.back);
  for (unsigned i = 0; i < blocks; ++i) {
    const unsigned b = order[i];
    blockIdx = {b % r.grid[0], b / r.grid[0] % r.grid[1], b / r.grid[0] / r.grid[1]};
    copies_made = 0;
    memset(k.shared, 0xFF, k.shared_end - k.shared);
    if (k.waits) {
      run_block_of_fibers(stacks, r.back);
      continue;
    }
    const Order inside(threads_of_block, r.back);
    for (unsigned j = 0; j < threads_of_block; ++j) {
      threadIdx = threads[inside[j]].index;
      k.body(r.args);
    }
  }
}

static const char* launch(const Kernel& k, const Request& r) {
  const unsigned *g = r.grid, *b = r.block;
  const unsigned long long blocks = 1ull * g[0] * g[1] * g[2], size = 1ull * b[0] * b[1] * b[2];
  kernel = k.name, body = k.body, arguments = r.args, current = nullptr;
  drawn = (r.seed + 1) * 0x9E3779B97F4A7C15ull | 1;
  threadIdx = blockIdx = {};
  char* volatile stacks = nullptr;
  struct sigaction ours = {}, before[TAKEN];
  ours.sa_sigaction = on_signal, ours.sa_flags = SA_SIGINFO | SA_NODEFER;
  for (int i = 0; i < TAKEN; ++i) sigaction(SIGNALS[i], &ours, &before[i]);
  const char* volatile wrong = nullptr;
  if (setjmp(out)) {
    wrong = message;
  } else {
    if (r.count != k.params) fail("takes %u arguments, not %u", k.params, r.count);
    if (!size || size > LARGEST || size > k.bound) fail("a block of %llu threads, of %u at most", size, k.bound);
    if (!blocks || g[0] > 0x7fffffff || g[1] > 0xffff || g[2] > 0xffff || blocks > 0xffffffff)
      fail("a grid of %u x %u x %u blocks", g[0], g[1], g[2]);
    size_t held = k.shared_end - k.shared;  // without asking, or all that is asked for
    if (held > SHARED && held != ASKED) fail("%zu bytes of shared memory", size_t(k.shared_end - k.shared));
    blockDim = {b[0], b[1], b[2]}, gridDim = {g[0], g[1], g[2]}, threads_of_block = unsigned(size);
    for (unsigned i = 0; i < threads_of_block; ++i) threads[i].index = {i % b[0], i / b[0] % b[1], i / b[0] / b[1]};
    if (k.waits) {
      void* got = mmap(0, size * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (got == MAP_FAILED) fail("no memory for its stacks");
      stacks = (char*)got;
    }
    run(k, r, stacks);
  }
  if (stacks) munmap(stacks, size * STACK);
  for (int i = 0; i < TAKEN; ++i) sigaction(SIGNALS[i], &before[i], nullptr);
  return wrong;
}

}  // namespace host
#endif
