/* Make a newer x86-64 CPU look like one with AVX2 only, to compare runtimes as such a
 * machine would run them: LD_PRELOAD=./avx2_only.so python -m benchmarks packed
 *
 * Libraries ask the CPUID instruction what they may use. Linux can make it fault on
 * CPUs that support that (arch_prctl ARCH_SET_CPUID); the handler answers instead,
 * without AVX-512, VNNI and AMX. It changes what the libraries choose, nothing else. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { ARCH_SET_CPUID = 0x1012 };

static long allow_cpuid(long on) { return syscall(SYS_arch_prctl, ARCH_SET_CPUID, on); }

/* Clear the bits first to last. */
static uint32_t without(uint32_t value, int first, int last) {
    for (int bit = first; bit <= last; bit++) value &= ~(1u << bit);
    return value;
}

static void on_fault(int number, siginfo_t *info, void *context) {
    (void)info;
    greg_t *r = ((ucontext_t *)context)->uc_mcontext.gregs;
    const uint8_t *at = (const uint8_t *)r[REG_RIP];
    if (at[0] != 0x0F || at[1] != 0xA2) { /* not CPUID: a real fault */
        signal(number, SIG_DFL);
        return;
    }
    uint32_t leaf = (uint32_t)r[REG_RAX], part = (uint32_t)r[REG_RCX], a, b, c, d;
    allow_cpuid(1);
    __asm__ volatile("cpuid"
                     : "=a"(a), "=b"(b), "=c"(c), "=d"(d)
                     : "a"(leaf), "c"(part));
    allow_cpuid(0);
    if (leaf == 7 && part == 0) {
        b = without(b, 16, 17); /* AVX512F, DQ */
        b = without(b, 21, 21); /* IFMA */
        b = without(b, 26, 28); /* PF, ER, CD */
        b = without(b, 30, 31); /* BW, VL */
        c = without(c, 1, 1);   /* VBMI */
        c = without(c, 6, 6);   /* VBMI2 */
        c = without(c, 8, 12);  /* GFNI, VAES, VPCLMULQDQ, VNNI, BITALG */
        c = without(c, 14, 14); /* VPOPCNTDQ */
        d = without(d, 2, 3);   /* 4VNNIW, 4FMAPS */
        d = without(d, 8, 8);   /* VP2INTERSECT */
        d = without(d, 22, 25); /* AMX, AVX512-FP16 */
    } else if (leaf == 7 && part == 1) {
        a = without(a, 4, 5);   /* AVX-VNNI, AVX512-BF16 */
        a = without(a, 21, 23); /* AMX-FP16, HRESET, AVX-IFMA */
        d = without(d, 4, 10);  /* AVX-VNNI-INT8, AVX-NE-CONVERT, AMX, INT16 */
        d = without(d, 19, 19); /* AVX10 */
    }
    r[REG_RAX] = a, r[REG_RBX] = b, r[REG_RCX] = c, r[REG_RDX] = d;
    r[REG_RIP] += 2;
}

__attribute__((constructor)) static void hide(void) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &action, NULL);
    if (allow_cpuid(0) != 0) {
        perror("this CPU or kernel cannot intercept CPUID");
        exit(1);
    }
}
