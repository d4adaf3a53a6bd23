/* The kernel set for x86-64 with AVX-512 and its byte products (VNNI). */
#include "train.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

#include "../../packed/csrc/target.h"
FBNN_FOR("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,bmi2,fma")

/* A step is 64 signs: PDEP spreads the bits of a patch to every fourth place. */
static void expand(const uint8_t *fours, size_t stride, size_t steps, int8_t *panel) {
    const __m512i plus = _mm512_set1_epi8(1), minus = _mm512_set1_epi8(-1);
    for (size_t s = 0; s < steps; s++, fours += stride, panel += 4 * COLUMNS) {
        uint64_t eight, mask = 0;
        memcpy(&eight, fours, sizeof eight);
        for (int j = 0; j < 4; j++) {
            uint64_t columns = (eight >> 8 * j & 255) | (eight >> (8 * j + 24) & 0xFF00);
            mask |= _pdep_u64(columns, (uint64_t)0x1111111111111111 << j);
        }
        _mm512_storeu_si512(panel, _mm512_mask_blend_epi8(mask, minus, plus));
    }
}

#define OWN_EXPAND
#define WIDE_REGISTERS
#include "passes.h"

/* One VPDPBUSD does a step of a row: 64 MAC, latency 5, one or two a cycle, so that
 * twelve rows keep it busy. */
enum { ROWS = 12 };

static inline __attribute__((always_inline)) void
tile(const uint8_t *const *rows, size_t row_step, const ptrdiff_t *offsets, size_t runs,
     size_t steps, const int8_t *b, int32_t *out, const int n) {
    __m512i sum[ROWS];
    for (int r = 0; r < n; r++) sum[r] = _mm512_setzero_si512();
    for (size_t t = 0; t < runs; t++) {
        ptrdiff_t at = offsets[t];
        for (size_t s = 0; s < steps; s++, at += (ptrdiff_t)row_step, b += 64) {
            __m512i signs = _mm512_loadu_si512(b);
            for (int r = 0; r < n; r++) {
                int32_t four;
                memcpy(&four, rows[r] + at, sizeof four);
                sum[r] = _mm512_dpbusd_epi32(sum[r], _mm512_set1_epi32(four), signs);
            }
        }
    }
    for (int r = 0; r < n; r++) _mm512_storeu_si512(out + r * COLUMNS, sum[r]);
}

static void products(const uint8_t *const *rows, size_t n, size_t row_step,
                     const ptrdiff_t *offsets, size_t runs, size_t steps,
                     const int8_t *panel, int32_t *out) {
    while (n >= 12) {
        tile(rows, row_step, offsets, runs, steps, panel, out, 12);
        rows += 12, out += 12 * COLUMNS, n -= 12;
    }
    while (n >= 4) {
        tile(rows, row_step, offsets, runs, steps, panel, out, 4);
        rows += 4, out += 4 * COLUMNS, n -= 4;
    }
    for (; n > 0; n--, rows++, out += COLUMNS)
        tile(rows, row_step, offsets, runs, steps, panel, out, 1);
}

const train_kernels train_vnni = {
    .name = "vnni",
    .bits = &fbnn_avx512,
    .rows = ROWS,
    PASSES,
};

/* For CPUs that do not count bits in vectors (Cascade Lake). */
const train_kernels train_vnni_avx2 = {
    .name = "vnni",
    .bits = &fbnn_avx2,
    .rows = ROWS,
    PASSES,
};

#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int train_no_vnni;
#endif
