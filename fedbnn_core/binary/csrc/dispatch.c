/* Which kernel sets this CPU can run. */
#include "train.h"

#include <string.h>

static const train_kernels *const SETS[] = {
#if defined(__x86_64__)
    &train_vnni, &train_vnni_avx2, &train_avx2,
#elif defined(__aarch64__)
    &train_neon,
#endif
    &train_portable, NULL};

static int cpu_has(const train_kernels *k) {
#if defined(__x86_64__)
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (k == &train_avx2) return avx2;
    int counts = __builtin_cpu_supports("avx512vpopcntdq") != 0;
    if (k == &train_vnni || k == &train_vnni_avx2)
        return avx2 && __builtin_cpu_supports("bmi2") &&
               __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vnni") &&
               counts == (k == &train_vnni);
#endif
    (void)k;
    return 1;
}

const train_kernels *train_find(const char *name) {
    for (size_t i = 0; SETS[i]; i++)
        if (cpu_has(SETS[i]) &&
            (strcmp(name, "auto") == 0 || strcmp(name, SETS[i]->name) == 0))
            return SETS[i];
    return NULL;
}

const char *const *train_names(void) {
    static const char *names[sizeof SETS / sizeof SETS[0]];
    size_t n = 0;
    for (size_t i = 0; SETS[i]; i++)
        if (cpu_has(SETS[i])) names[n++] = SETS[i]->name;
    return names;
}
