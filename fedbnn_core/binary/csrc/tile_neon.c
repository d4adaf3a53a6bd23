/* The kernel set for 64-bit ARM, whose CPUs all have NEON. */
#include "train.h"

#if defined(__aarch64__)
#include <arm_neon.h>

#define NARROW_REGISTERS
#include "passes.h"

/* With g as a signed byte two SMULL make 16 products, ADDP and SADALP add the four of
 * each column: 16 MAC in four instructions. (SDOT would take one, but not every CPU
 * has it.) */
enum { ROWS = 4 };

static inline __attribute__((always_inline)) void
tile(const uint8_t *const *rows, size_t row_step, const ptrdiff_t *offsets, size_t runs,
     size_t steps, const int8_t *b, int32_t *out, const int n) {
    int32x4_t sum[ROWS][4];
    int32x4_t bias[4];
    for (int q = 0; q < 4; q++) {
        bias[q] = vdupq_n_s32(0);
        for (int r = 0; r < n; r++) sum[r][q] = vdupq_n_s32(0);
    }
    for (size_t t = 0; t < runs; t++) {
        ptrdiff_t at = offsets[t];
        for (size_t s = 0; s < steps; s++, at += (ptrdiff_t)row_step, b += 64) {
            int8x16_t signs[4];
            for (int q = 0; q < 4; q++) {
                signs[q] = vld1q_s8(b + 16 * q);
                bias[q] = vpadalq_s16(bias[q], vpaddlq_s8(signs[q]));
            }
            for (int r = 0; r < n; r++) {
                uint32_t four;
                memcpy(&four, rows[r] + at, sizeof four);
                /* Less 128: bytes from 0 to 255 become signed. */
                int8x16_t v = vreinterpretq_s8_u32(vdupq_n_u32(four ^ 0x80808080u));
                for (int q = 0; q < 4; q++) {
                    int16x8_t low = vmull_s8(vget_low_s8(v), vget_low_s8(signs[q]));
                    int16x8_t high = vmull_high_s8(v, signs[q]);
                    /* Columns 4q, 4q + 1 lie in `low`, the other two in `high`. */
                    sum[r][q] = vpadalq_s16(sum[r][q], vpaddq_s16(low, high));
                }
            }
        }
    }
    for (int r = 0; r < n; r++)
        for (int q = 0; q < 4; q++)
            vst1q_s32(out + r * COLUMNS + 4 * q,
                      vaddq_s32(sum[r][q], vshlq_n_s32(bias[q], 7)));
}

static void products(const uint8_t *const *rows, size_t n, size_t row_step,
                     const ptrdiff_t *offsets, size_t runs, size_t steps,
                     const int8_t *panel, int32_t *out) {
    for (; n >= 4; n -= 4, rows += 4, out += 4 * COLUMNS)
        tile(rows, row_step, offsets, runs, steps, panel, out, 4);
    for (; n > 0; n--, rows++, out += COLUMNS)
        tile(rows, row_step, offsets, runs, steps, panel, out, 1);
}

const train_kernels train_neon = {
    .name = "neon",
    .bits = &fbnn_neon,
    .rows = ROWS,
    PASSES,
};
#else
typedef int train_no_neon;
#endif
