/* The kernel set for x86-64 with AVX-512 and VPOPCNTDQ. */
#include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "target.h"
FBNN_FOR("avx2,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512vpopcntdq")

typedef __m512 v16;

static inline v16 v16_load(const float *from) { return _mm512_loadu_ps(from); }
static inline void v16_store(float *to, v16 v) { _mm512_storeu_ps(to, v); }
static inline v16 v16_set1(float x) { return _mm512_set1_ps(x); }
static inline v16 v16_add(v16 a, v16 b) { return _mm512_add_ps(a, b); }
static inline v16 v16_mul(v16 a, v16 b) { return _mm512_mul_ps(a, b); }
static inline v16 v16_fma(v16 a, v16 b, v16 c) { return _mm512_fmadd_ps(a, b, c); }
static inline v16 v16_min(v16 a, v16 b) { return _mm512_min_ps(a, b); }
static inline v16 v16_max(v16 a, v16 b) { return _mm512_max_ps(a, b); }
static inline unsigned v16_not_negative(v16 v) {
    return _mm512_cmp_ps_mask(v, _mm512_setzero_ps(), _CMP_GE_OQ);
}
static inline v16 v16_signed_sum(const uint16_t *counts, uint32_t fan_in) {
    __m512i c = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)counts));
    return _mm512_cvtepi32_ps(
        _mm512_sub_epi32(_mm512_set1_epi32((int)fan_in), _mm512_slli_epi32(c, 1)));
}

typedef __m512d d8;

static inline d8 d8_widen(const float *from) {
    return _mm512_cvtps_pd(_mm256_loadu_ps(from));
}
static inline void d8_narrow(float *to, d8 v) {
    _mm256_storeu_ps(to, _mm512_cvtpd_ps(v));
}
static inline void d8_store(double *to, d8 v) { _mm512_storeu_pd(to, v); }
static inline d8 d8_set1(double x) { return _mm512_set1_pd(x); }
static inline d8 d8_add(d8 a, d8 b) { return _mm512_add_pd(a, b); }
static inline d8 d8_mul(d8 a, d8 b) { return _mm512_mul_pd(a, b); }
static inline d8 d8_fma(d8 a, d8 b, d8 c) { return _mm512_fmadd_pd(a, b, c); }

#define CONV_TILE 8
#include "float_kernels.h"

typedef __m512i bitvec;

static inline bitvec bitvec_load(const uint8_t *from) {
    return _mm512_loadu_si512(from);
}
static inline bitvec bitvec_zero(void) { return _mm512_setzero_si512(); }
static inline bitvec bitvec_xor(bitvec a, bitvec b) { return _mm512_xor_si512(a, b); }
static inline bitvec bitvec_and(bitvec a, bitvec b) { return _mm512_and_si512(a, b); }
static inline bitvec bitvec_or(bitvec a, bitvec b) { return _mm512_or_si512(a, b); }

static inline void bitvec_counts(const bitvec *planes, size_t n_taps, uint16_t *counts,
                                 size_t bytes) {
    uint32_t words[8][16];
    int used = 0;
    for (; used < 8 && n_taps >> used; used++)
        _mm512_storeu_si512(words[used], planes[used]);
    for (size_t at = 0; at < bytes; at += 4) {
        __m512i count = _mm512_setzero_si512();
        for (int j = 0; j < used; j++)
            count = _mm512_mask_add_epi16(count, words[j][at / 4], count,
                                          _mm512_set1_epi16((short)(1 << j)));
        if (bytes - at >= 4) {
            _mm512_storeu_si512(counts + at * 8, count);
        } else {
            uint16_t full[32];
            _mm512_storeu_si512(full, count);
            memcpy(counts + at * 8, full, (bytes - at) * 8 * sizeof(uint16_t));
        }
    }
}

#include "depthwise.h"

/* Mismatches of `tile` patches with `wide` blocks of 16 filters: each weight is
 * loaded once per tile, each 32 bits of a patch are broadcast once per step. */
static inline __attribute__((always_inline)) void
tile_mismatches(const uint8_t *patches, size_t patch_bytes, const uint8_t *weights,
                uint16_t *counts, size_t count_stride, const int tile,
                const int wide) {
    __m512i sum[4][2];
    for (int p = 0; p < tile; p++)
        for (int b = 0; b < wide; b++) sum[p][b] = _mm512_setzero_si512();
    for (size_t k = 0; k < patch_bytes; k += 4) {
        __m512i filter[2];
        for (int b = 0; b < wide; b++)
            filter[b] =
                _mm512_loadu_si512(weights + (size_t)b * patch_bytes * 16 + k * 16);
        for (int p = 0; p < tile; p++) {
            int bits;
            memcpy(&bits, patches + (size_t)p * patch_bytes + k, sizeof bits);
            __m512i patch = _mm512_set1_epi32(bits);
            for (int b = 0; b < wide; b++)
                sum[p][b] = _mm512_add_epi32(
                    sum[p][b],
                    _mm512_popcnt_epi32(_mm512_xor_si512(patch, filter[b])));
        }
    }
    for (int p = 0; p < tile; p++)
        for (int b = 0; b < wide; b++)
            _mm256_storeu_si256(
                (__m256i *)(counts + (size_t)p * count_stride + (size_t)b * 16),
                _mm512_cvtepi32_epi16(sum[p][b]));
}

enum { LANES = 16 };
#include "blocks.h"

static inline uint32_t compare32(const uint16_t *counts, const uint16_t *thresholds) {
    return _mm512_cmple_epu16_mask(_mm512_loadu_si512(counts),
                                   _mm512_loadu_si512(thresholds));
}

#include "compare_x86.h"

const kernel_set fbnn_avx512 = {
    .name = "avx512",
    .lanes = LANES,
    .step_bytes = 4,
    .mismatches = block_mismatches,
    KERNEL_FUNCTIONS,
};

#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int fbnn_no_avx512;
#endif
