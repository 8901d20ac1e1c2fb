/* Answers CPUID as a CPU without AVX-512 would, to the libraries of a process that are listed.

   An auditor of the dynamic linker (rtld-audit(7)): la_objopen is called for an object that is in memory, before any code
   of it has run. There each CPUID instruction (0F A2) becomes UD2 (0F 0B), and what a handler of SIGILL does in its place
   is that instruction, less the features that are beyond AVX2. The file that HELD_CPUID names has, a line each, the path
   of a library and, below it, the addresses of these instructions in it (benchmarks/held.py finds them). */

#define _GNU_SOURCE
#include <limits.h>
#include <link.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

enum { MOST = 4096 };
static uintptr_t traps[MOST];
static int count;

#define BIT(n) (1u << (n))
/* by leaf, subleaf: what is taken out of EAX, EBX, ECX, EDX (AMD64 Architecture Programmer's Manual, volume 3, appendix E;
   Intel Software Developer's Manual, volume 2A, CPUID) */
static const struct { unsigned leaf, subleaf, taken[4]; } BEYOND[] = {
    {7, 0, {0,
            BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31), /* F DQ IFMA PF ER CD BW VL */
            BIT(1) | BIT(6) | BIT(11) | BIT(12) | BIT(14),                   /* VBMI VBMI2 VNNI BITALG VPOPCNTDQ */
            BIT(2) | BIT(3) | BIT(8) | BIT(22) | BIT(23) | BIT(24) | BIT(25)}}, /* 4VNNIW 4FMAPS VP2INTERSECT FP16; AMX */
    {7, 1, {BIT(4) | BIT(5) | BIT(21) | BIT(23), 0, 0,                       /* AVX-VNNI BF16 AMX-FP16 AVX-IFMA */
            BIT(4) | BIT(5) | BIT(8) | BIT(10) | BIT(19)}},                  /* AVX-VNNI-INT8, NE-CONVERT, INT16; AVX10 */
    {13, 0, {BIT(5) | BIT(6) | BIT(7) | BIT(17) | BIT(18), 0, 0, 0}},        /* state of AVX-512 and AMX */
    {36, 0, {~0u, ~0u, ~0u, ~0u}},                                           /* AVX10 */
};

static void answer(int number, siginfo_t *info, void *context) {
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    int i = 0;
    (void)info;
    while (i < count && traps[i] != (uintptr_t)r[REG_RIP]) i++;
    if (i == count) { /* an instruction that this CPU lacks: what it does without us */
        signal(number, SIG_DFL);
        return;
    }
    unsigned leaf = r[REG_RAX], subleaf = r[REG_RCX], found[4];
    __asm__ volatile("cpuid" : "=a"(found[0]), "=b"(found[1]), "=c"(found[2]), "=d"(found[3]) : "a"(leaf), "c"(subleaf));
    for (unsigned k = 0; k < sizeof BEYOND / sizeof *BEYOND; k++)
        if (BEYOND[k].leaf == leaf && BEYOND[k].subleaf == subleaf)
            for (int n = 0; n < 4; n++) found[n] &= ~BEYOND[k].taken[n];
    r[REG_RAX] = found[0];
    r[REG_RBX] = found[1];
    r[REG_RCX] = found[2];
    r[REG_RDX] = found[3];
    r[REG_RIP] += 2;
}

unsigned la_version(unsigned version) {
    struct sigaction action = {.sa_sigaction = answer, .sa_flags = SA_SIGINFO | SA_NODEFER};
    (void)version;
    sigaction(SIGILL, &action, NULL);
    return LAV_CURRENT;
}

static void put(uintptr_t at) {
    unsigned char *code = (unsigned char *)at;
    uintptr_t size = sysconf(_SC_PAGESIZE), begin = at & ~(size - 1), length = ((at + 1) & ~(size - 1)) + size - begin;
    if (count == MOST || code[0] != 0x0F || code[1] != 0xA2) return;
    if (mprotect((void *)begin, length, PROT_READ | PROT_WRITE | PROT_EXEC)) return;
    traps[count++] = at; /* before the instruction is there */
    code[1] = 0x0B;
    mprotect((void *)begin, length, PROT_READ | PROT_EXEC);
}

unsigned la_objopen(struct link_map *map, Lmid_t list, uintptr_t *cookie) {
    char line[PATH_MAX + 2], path[PATH_MAX];
    const char *name = getenv("HELD_CPUID");
    FILE *listed = name && map->l_name && realpath(map->l_name, path) ? fopen(name, "r") : NULL;
    int is_this = 0;
    (void)list;
    (void)cookie;
    if (!listed) return 0;
    while (fgets(line, sizeof line, listed)) {
        line[strcspn(line, "\n")] = 0;
        if (line[0] == '/') is_this = !strcmp(line, path);
        else if (is_this) put(map->l_addr + strtoul(line, NULL, 16));
    }
    fclose(listed);
    return 0;
}
