/* The kernel set for x86-64 with AVX2. */
#include "train.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include "../../packed/csrc/target.h"
FBNN_FOR("avx2,fma")

#include "passes.h"

/* A step multiplies 4 bytes of each row with 4 x 16 signs: two VPMADDUBSW and two
 * VPADDW a row. A pair's sum is at most 2 * 255, so 64 steps fit into 16 bits.
 * Six rows need 12 sums and 3 more registers; Zen 3 does two VPMADDUBSW a cycle, a
 * limit of 64 MAC/cycle. */
enum { ROWS = 6, FIT = 64 };

static inline __attribute__((always_inline)) void
tile(const uint8_t *const *rows, size_t row_step, const ptrdiff_t *offsets, size_t runs,
     size_t steps, const int8_t *b, int32_t *out, const int n) {
    const __m256i ones = _mm256_set1_epi16(1), zero = _mm256_setzero_si256();
    __m256i sum[ROWS][2];
    size_t left = FIT;
    for (int r = 0; r < n; r++) {
        sum[r][0] = sum[r][1] = zero;
        for (int h = 0; h < 2; h++)
            _mm256_storeu_si256((__m256i *)(out + r * COLUMNS + 8 * h), zero);
    }
    for (size_t t = 0; t < runs; t++) {
        const uint8_t *a[ROWS];
        for (int r = 0; r < n; r++) a[r] = rows[r] + offsets[t];
        for (size_t s = 0; s < steps;) {
            size_t end = steps - s > left ? s + left : steps;
            left -= end - s;
            for (; s < end; s++, b += 64) {
                __m256i b0 = _mm256_loadu_si256((const __m256i *)b);
                __m256i b1 = _mm256_loadu_si256((const __m256i *)(b + 32));
                for (int r = 0; r < n; r++) {
                    int32_t four;
                    memcpy(&four, a[r] + s * row_step, sizeof four);
                    __m256i v = _mm256_set1_epi32(four);
                    sum[r][0] =
                        _mm256_add_epi16(sum[r][0], _mm256_maddubs_epi16(v, b0));
                    sum[r][1] =
                        _mm256_add_epi16(sum[r][1], _mm256_maddubs_epi16(v, b1));
                }
            }
            if (left > 0 && (s < steps || t + 1 < runs)) continue;
            left = FIT;
            for (int r = 0; r < n; r++)
                for (int h = 0; h < 2; h++) {
                    __m256i *to = (__m256i *)(out + r * COLUMNS + 8 * h);
                    __m256i wide = _mm256_madd_epi16(sum[r][h], ones);
                    _mm256_storeu_si256(
                        to, _mm256_add_epi32(_mm256_loadu_si256(to), wide));
                    sum[r][h] = zero;
                }
        }
    }
}

static void products(const uint8_t *const *rows, size_t n, size_t row_step,
                     const ptrdiff_t *offsets, size_t runs, size_t steps,
                     const int8_t *panel, int32_t *out) {
    switch (n) {
    case 6: tile(rows, row_step, offsets, runs, steps, panel, out, 6); break;
    case 5: tile(rows, row_step, offsets, runs, steps, panel, out, 5); break;
    case 4: tile(rows, row_step, offsets, runs, steps, panel, out, 4); break;
    case 3: tile(rows, row_step, offsets, runs, steps, panel, out, 3); break;
    case 2: tile(rows, row_step, offsets, runs, steps, panel, out, 2); break;
    default: tile(rows, row_step, offsets, runs, steps, panel, out, 1);
    }
}

const train_kernels train_avx2 = {
    .name = "avx2",
    .bits = &fbnn_avx2,
    .rows = ROWS,
    PASSES,
};

#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int train_no_avx2;
#endif
