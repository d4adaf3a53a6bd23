/* The kernel set for every CPU: plain C, 64 bits at a time. */
#include "kernels.h"

#include <math.h>
#include <string.h>

typedef struct {
    float lane[16];
} v16;

#define EACH_LANE(expression)                                                          \
    v16 r;                                                                             \
    for (int i = 0; i < 16; i++) r.lane[i] = (expression);                             \
    return r

static inline v16 v16_load(const float *from) {
    v16 r;
    memcpy(r.lane, from, sizeof r.lane);
    return r;
}
static inline void v16_store(float *to, v16 v) { memcpy(to, v.lane, sizeof v.lane); }
static inline v16 v16_set1(float x) { EACH_LANE(x); }
static inline v16 v16_add(v16 a, v16 b) { EACH_LANE(a.lane[i] + b.lane[i]); }
static inline v16 v16_mul(v16 a, v16 b) { EACH_LANE(a.lane[i] * b.lane[i]); }
static inline v16 v16_fma(v16 a, v16 b, v16 c) {
    EACH_LANE(fmaf(a.lane[i], b.lane[i], c.lane[i]));
}
static inline v16 v16_min(v16 a, v16 b) {
    EACH_LANE(a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i]);
}
static inline v16 v16_max(v16 a, v16 b) {
    EACH_LANE(a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i]);
}
static inline unsigned v16_not_negative(v16 v) {
    unsigned mask = 0;
    for (int i = 0; i < 16; i++) mask |= (unsigned)(v.lane[i] >= 0.0f) << i;
    return mask;
}
static inline v16 v16_signed_sum(const uint16_t *counts, uint32_t fan_in) {
    EACH_LANE((float)((int32_t)fan_in - 2 * (int32_t)counts[i]));
}

typedef struct {
    double lane[8];
} d8;

#define EACH_DOUBLE(expression)                                                        \
    d8 r;                                                                              \
    for (int i = 0; i < 8; i++) r.lane[i] = (expression);                              \
    return r

static inline d8 d8_widen(const float *from) { EACH_DOUBLE(from[i]); }
static inline void d8_narrow(float *to, d8 v) {
    for (int i = 0; i < 8; i++) to[i] = (float)v.lane[i];
}
static inline void d8_store(double *to, d8 v) { memcpy(to, v.lane, sizeof v.lane); }
static inline d8 d8_set1(double x) { EACH_DOUBLE(x); }
static inline d8 d8_add(d8 a, d8 b) { EACH_DOUBLE(a.lane[i] + b.lane[i]); }
static inline d8 d8_mul(d8 a, d8 b) { EACH_DOUBLE(a.lane[i] * b.lane[i]); }
/* Only for products of two floats, which are exact: one rounding either way. */
static inline d8 d8_fma(d8 a, d8 b, d8 c) {
    EACH_DOUBLE(a.lane[i] * b.lane[i] + c.lane[i]);
}

#define CONV_TILE 4
#include "float_kernels.h"

typedef uint64_t bitvec;

static inline bitvec bitvec_load(const uint8_t *from) {
    uint64_t word;
    memcpy(&word, from, sizeof word);
    return word;
}
static inline bitvec bitvec_zero(void) { return 0; }
static inline bitvec bitvec_xor(bitvec a, bitvec b) { return a ^ b; }
static inline bitvec bitvec_and(bitvec a, bitvec b) { return a & b; }
static inline bitvec bitvec_or(bitvec a, bitvec b) { return a | b; }

static inline void bitvec_counts(const bitvec *planes, size_t n_taps, uint16_t *counts,
                                 size_t bytes) {
    uint8_t plane[8][8];
    int used = 0;
    for (; used < 8 && n_taps >> used; used++)
        memcpy(plane[used], &planes[used], sizeof(bitvec));
    for (size_t i = 0; i < bytes * 8; i++) {
        unsigned count = 0;
        for (int j = 0; j < used; j++)
            count |= (unsigned)(plane[j][i / 8] >> (i % 8) & 1) << j;
        counts[i] = (uint16_t)count;
    }
}

#include "depthwise.h"

/* Bits set in each byte of x, in that byte. */
static inline uint64_t byte_counts(uint64_t x) {
    x -= x >> 1 & 0x5555555555555555u;
    x = (x & 0x3333333333333333u) + (x >> 2 & 0x3333333333333333u);
    return (x + (x >> 4)) & 0x0F0F0F0F0F0F0F0Fu;
}

static inline uint32_t sum_bytes(uint64_t x) {
    x = (x & 0x00FF00FF00FF00FFu) + (x >> 8 & 0x00FF00FF00FF00FFu);
    return (uint32_t)(x * 0x0001000100010001u >> 48);
}

static uint16_t differing_bits(const uint8_t *patch, const uint8_t *filter,
                               size_t bytes) {
    uint32_t total = 0;
    size_t i = 0;
    while (i < bytes) {
        /* 31 words add at most 248 to a byte. */
        size_t end = bytes - i > 31 * 8 ? i + 31 * 8 : bytes;
        uint64_t sum = 0;
        for (; i < end; i += 8)
            sum += byte_counts(bitvec_load(patch + i) ^ bitvec_load(filter + i));
        total += sum_bytes(sum);
    }
    return (uint16_t)total;
}

static void mismatches(const uint8_t *patches, size_t patch_bytes, size_t n,
                       const uint8_t *weights, size_t blocks, uint16_t *counts,
                       size_t count_stride) {
    for (size_t c = 0; c < blocks; c++)
        for (size_t p = 0; p < n; p++)
            counts[p * count_stride + c] = differing_bits(
                patches + p * patch_bytes, weights + c * patch_bytes, patch_bytes);
}

static void compare(const uint16_t *counts, size_t count_stride, size_t n,
                    const uint16_t *thresholds, const uint8_t *flips, uint8_t *bits,
                    size_t bytes) {
    for (size_t p = 0; p < n; p++, counts += count_stride, bits += bytes)
        for (size_t at = 0; at < bytes; at++) {
            unsigned byte = 0;
            for (size_t i = 0; i < 8; i++)
                byte |= (unsigned)(counts[at * 8 + i] <= thresholds[at * 8 + i]) << i;
            bits[at] = (uint8_t)(byte ^ flips[at]);
        }
}

const kernel_set fbnn_portable = {
    .name = "portable",
    .lanes = 1,
    .step_bytes = 8,
    .mismatches = mismatches,
    KERNEL_FUNCTIONS,
};
