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

/* One VPDPBUSD does a step of a row and a panel: 64 MAC, latency 5, one or two a cycle.
 * Eight rows and two panels are 16 sums for 10 loads, so that two a cycle find work, and
 * their eight addresses stay in registers. */
enum { ROWS = 8 };

static inline __attribute__((always_inline)) void
tile(const uint8_t *const *rows, size_t row_step, const ptrdiff_t *offsets, size_t runs,
     size_t steps, const int8_t *b, size_t panel_bytes, int32_t *out, size_t panel_out,
     const int n, const int panels) {
    __m512i sum[2][ROWS];
    for (int p = 0; p < panels; p++)
        for (int r = 0; r < n; r++) sum[p][r] = _mm512_setzero_si512();
    for (size_t t = 0; t < runs; t++) {
        ptrdiff_t at = offsets[t];
        for (size_t s = 0; s < steps; s++, at += (ptrdiff_t)row_step, b += 64) {
            __m512i signs[2];
            for (int p = 0; p < panels; p++)
                signs[p] = _mm512_loadu_si512(b + (size_t)p * panel_bytes);
            for (int r = 0; r < n; r++) {
                int32_t four;
                memcpy(&four, rows[r] + at, sizeof four);
                __m512i v = _mm512_set1_epi32(four);
                for (int p = 0; p < panels; p++)
                    sum[p][r] = _mm512_dpbusd_epi32(sum[p][r], v, signs[p]);
            }
        }
    }
    for (int p = 0; p < panels; p++)
        for (int r = 0; r < n; r++)
            _mm512_storeu_si512(out + (size_t)p * panel_out + r * COLUMNS, sum[p][r]);
}

static inline __attribute__((always_inline)) void
tiles(const uint8_t *const *rows, size_t n, size_t row_step, const ptrdiff_t *offsets,
      size_t runs, size_t steps, const int8_t *panel, size_t panel_bytes, int32_t *out,
      const int panels) {
    size_t panel_out = n * COLUMNS;
    for (; n >= ROWS; n -= ROWS, rows += ROWS, out += ROWS * COLUMNS)
        tile(rows, row_step, offsets, runs, steps, panel, panel_bytes, out, panel_out,
             ROWS, panels);
    for (; n >= 2; n -= 2, rows += 2, out += 2 * COLUMNS)
        tile(rows, row_step, offsets, runs, steps, panel, panel_bytes, out, panel_out, 2,
             panels);
    if (n)
        tile(rows, row_step, offsets, runs, steps, panel, panel_bytes, out, panel_out, 1,
             panels);
}

static void products(const uint8_t *const *rows, size_t n, size_t row_step,
                     const ptrdiff_t *offsets, size_t runs, size_t steps,
                     const int8_t *panel, int32_t *out) {
    tiles(rows, n, row_step, offsets, runs, steps, panel, 0, out, 1);
}

static void product_pairs(const uint8_t *const *rows, size_t n, size_t row_step,
                          const ptrdiff_t *offsets, size_t runs, size_t steps,
                          const int8_t *panel, size_t panel_bytes, int32_t *out) {
    tiles(rows, n, row_step, offsets, runs, steps, panel, panel_bytes, out, 2);
}

const train_kernels train_vnni = {
    .name = "vnni",
    .bits = &fbnn_avx512,
    .rows = ROWS,
    .product_pairs = product_pairs,
    PASSES,
};

/* For CPUs that do not count bits in vectors (Cascade Lake). */
const train_kernels train_vnni_avx2 = {
    .name = "vnni",
    .bits = &fbnn_avx2,
    .rows = ROWS,
    .product_pairs = product_pairs,
    PASSES,
};

#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int train_no_vnni;
#endif
