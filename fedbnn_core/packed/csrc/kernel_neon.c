/* The kernel set for 64-bit ARM, whose CPUs all have NEON. */
#include "kernels.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#include <math.h>
#include <string.h>

typedef struct {
    float32x4_t q[4];
} v16;

#define EACH_QUARTER(expression)                                                       \
    v16 r;                                                                             \
    for (int i = 0; i < 4; i++) r.q[i] = (expression);                                 \
    return r

static inline v16 v16_load(const float *from) { EACH_QUARTER(vld1q_f32(from + 4 * i)); }
static inline void v16_store(float *to, v16 v) {
    for (int i = 0; i < 4; i++) vst1q_f32(to + 4 * i, v.q[i]);
}
static inline v16 v16_set1(float x) { EACH_QUARTER(vdupq_n_f32(x)); }
static inline v16 v16_add(v16 a, v16 b) { EACH_QUARTER(vaddq_f32(a.q[i], b.q[i])); }
static inline v16 v16_mul(v16 a, v16 b) { EACH_QUARTER(vmulq_f32(a.q[i], b.q[i])); }
static inline v16 v16_fma(v16 a, v16 b, v16 c) {
    EACH_QUARTER(vfmaq_f32(c.q[i], a.q[i], b.q[i]));
}
static inline v16 v16_min(v16 a, v16 b) { EACH_QUARTER(vminq_f32(a.q[i], b.q[i])); }
static inline v16 v16_max(v16 a, v16 b) { EACH_QUARTER(vmaxq_f32(a.q[i], b.q[i])); }
static inline unsigned v16_not_negative(v16 v) {
    const uint32_t weights[4] = {1, 2, 4, 8};
    const uint32x4_t weight = vld1q_u32(weights);
    unsigned mask = 0;
    for (int i = 0; i < 4; i++)
        mask |= vaddvq_u32(vandq_u32(vcgezq_f32(v.q[i]), weight)) << (4 * i);
    return mask;
}
static inline v16 v16_signed_sum(const uint16_t *counts, uint32_t fan_in) {
    const int32x4_t n = vdupq_n_s32((int32_t)fan_in);
    EACH_QUARTER(vcvtq_f32_s32(vsubq_s32(
        n, vshlq_n_s32(vreinterpretq_s32_u32(vmovl_u16(vld1_u16(counts + 4 * i))),
                       1))));
}

typedef struct {
    float64x2_t q[4];
} d8;

#define EACH_PAIR(expression)                                                          \
    d8 r;                                                                              \
    for (int i = 0; i < 4; i++) r.q[i] = (expression);                                 \
    return r

static inline d8 d8_widen(const float *from) {
    EACH_PAIR(vcvt_f64_f32(vld1_f32(from + 2 * i)));
}
static inline void d8_narrow(float *to, d8 v) {
    for (int i = 0; i < 4; i++) vst1_f32(to + 2 * i, vcvt_f32_f64(v.q[i]));
}
static inline void d8_store(double *to, d8 v) {
    for (int i = 0; i < 4; i++) vst1q_f64(to + 2 * i, v.q[i]);
}
static inline d8 d8_set1(double x) { EACH_PAIR(vdupq_n_f64(x)); }
static inline d8 d8_add(d8 a, d8 b) { EACH_PAIR(vaddq_f64(a.q[i], b.q[i])); }
static inline d8 d8_mul(d8 a, d8 b) { EACH_PAIR(vmulq_f64(a.q[i], b.q[i])); }
static inline d8 d8_fma(d8 a, d8 b, d8 c) {
    EACH_PAIR(vfmaq_f64(c.q[i], a.q[i], b.q[i]));
}

#define CONV_TILE 4
#include "float_kernels.h"

typedef uint8x16_t bitvec;

static inline bitvec bitvec_load(const uint8_t *from) { return vld1q_u8(from); }
static inline bitvec bitvec_zero(void) { return vdupq_n_u8(0); }
static inline bitvec bitvec_xor(bitvec a, bitvec b) { return veorq_u8(a, b); }
static inline bitvec bitvec_and(bitvec a, bitvec b) { return vandq_u8(a, b); }
static inline bitvec bitvec_or(bitvec a, bitvec b) { return vorrq_u8(a, b); }

static inline void bitvec_counts(const bitvec *planes, size_t n_taps, uint16_t *counts,
                                 size_t bytes) {
    const uint8_t selectors[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    const uint8x8_t select = vld1_u8(selectors);
    uint8_t plane[8][16];
    int used = 0;
    for (; used < 8 && n_taps >> used; used++) vst1q_u8(plane[used], planes[used]);
    for (size_t at = 0; at < bytes; at++) {
        uint8x8_t count = vdup_n_u8(0);
        /* A set bit's lane becomes 255, i.e. -1; count = 2 * count + bit. */
        for (int j = used - 1; j >= 0; j--)
            count = vsub_u8(vadd_u8(count, count),
                            vtst_u8(vdup_n_u8(plane[j][at]), select));
        vst1q_u16(counts + at * 8, vmovl_u8(count));
    }
}

#include "depthwise.h"

/* Mismatches of `tile` patches with two blocks of 16 filters. A step handles 8 bits of
 * each patch and adds at most 8 to a byte: 31 steps fit before widening. */
static inline __attribute__((always_inline)) void
tile_mismatches(const uint8_t *patches, size_t patch_bytes, const uint8_t *weights,
                uint16_t *counts, size_t count_stride, const int tile,
                const int wide) {
    uint16x8_t total[4][2][2];
    for (int p = 0; p < tile; p++)
        for (int b = 0; b < wide; b++)
            total[p][b][0] = total[p][b][1] = vdupq_n_u16(0);
    for (size_t k = 0; k < patch_bytes;) {
        size_t end = patch_bytes - k > 31 ? k + 31 : patch_bytes;
        uint8x16_t sum[4][2];
        for (int p = 0; p < tile; p++)
            for (int b = 0; b < wide; b++) sum[p][b] = vdupq_n_u8(0);
        for (; k < end; k++) {
            uint8x16_t filter[2];
            for (int b = 0; b < wide; b++)
                filter[b] = vld1q_u8(weights + ((size_t)b * patch_bytes + k) * 16);
            for (int p = 0; p < tile; p++) {
                uint8x16_t patch = vld1q_dup_u8(patches + (size_t)p * patch_bytes + k);
                for (int b = 0; b < wide; b++)
                    sum[p][b] =
                        vaddq_u8(sum[p][b], vcntq_u8(veorq_u8(patch, filter[b])));
            }
        }
        for (int p = 0; p < tile; p++)
            for (int b = 0; b < wide; b++) {
                total[p][b][0] = vaddw_u8(total[p][b][0], vget_low_u8(sum[p][b]));
                total[p][b][1] = vaddw_high_u8(total[p][b][1], sum[p][b]);
            }
    }
    for (int p = 0; p < tile; p++)
        for (int b = 0; b < wide; b++) {
            uint16_t *to = counts + (size_t)p * count_stride + 16 * (size_t)b;
            vst1q_u16(to, total[p][b][0]);
            vst1q_u16(to + 8, total[p][b][1]);
        }
}

enum { LANES = 16 };
#include "blocks.h"

static void compare(const uint16_t *counts, size_t count_stride, size_t n,
                    const uint16_t *thresholds, const uint8_t *flips, uint8_t *bits,
                    size_t bytes) {
    const uint16_t weights[8] = {1, 2, 4, 8, 16, 32, 64, 128};
    const uint16x8_t weight = vld1q_u16(weights);
    for (size_t p = 0; p < n; p++, counts += count_stride, bits += bytes)
        for (size_t at = 0; at < bytes; at++) {
            uint16x8_t below =
                vcleq_u16(vld1q_u16(counts + at * 8), vld1q_u16(thresholds + at * 8));
            bits[at] = (uint8_t)(vaddvq_u16(vandq_u16(below, weight)) ^ flips[at]);
        }
}

const kernel_set fbnn_neon = {
    .name = "neon",
    .lanes = LANES,
    .step_bytes = 1,
    .mismatches = block_mismatches,
    KERNEL_FUNCTIONS,
};
#else
typedef int fbnn_no_neon;
#endif
