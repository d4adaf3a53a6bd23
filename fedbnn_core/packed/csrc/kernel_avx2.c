/* The kernel set for x86-64 with AVX2 and FMA. */
#include "kernels.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "target.h"
FBNN_FOR("avx2,fma")

typedef struct {
    __m256 low, high;
} v16;

#define BOTH_HALVES(low_value, high_value)                                             \
    v16 r;                                                                             \
    r.low = (low_value);                                                               \
    r.high = (high_value);                                                             \
    return r

static inline v16 v16_load(const float *from) {
    BOTH_HALVES(_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8));
}
static inline void v16_store(float *to, v16 v) {
    _mm256_storeu_ps(to, v.low);
    _mm256_storeu_ps(to + 8, v.high);
}
static inline v16 v16_set1(float x) {
    BOTH_HALVES(_mm256_set1_ps(x), _mm256_set1_ps(x));
}
static inline v16 v16_add(v16 a, v16 b) {
    BOTH_HALVES(_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high));
}
static inline v16 v16_mul(v16 a, v16 b) {
    BOTH_HALVES(_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high));
}
static inline v16 v16_fma(v16 a, v16 b, v16 c) {
    BOTH_HALVES(_mm256_fmadd_ps(a.low, b.low, c.low),
                _mm256_fmadd_ps(a.high, b.high, c.high));
}
static inline v16 v16_min(v16 a, v16 b) {
    BOTH_HALVES(_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high));
}
static inline v16 v16_max(v16 a, v16 b) {
    BOTH_HALVES(_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high));
}
static inline unsigned v16_not_negative(v16 v) {
    const __m256 zero = _mm256_setzero_ps();
    int low = _mm256_movemask_ps(_mm256_cmp_ps(v.low, zero, _CMP_GE_OQ));
    int high = _mm256_movemask_ps(_mm256_cmp_ps(v.high, zero, _CMP_GE_OQ));
    return (unsigned)(low | high << 8);
}
static inline __m256 signed_sum8(const uint16_t *counts, __m256i fan_in) {
    __m256i c = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)counts));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(fan_in, _mm256_slli_epi32(c, 1)));
}
static inline v16 v16_signed_sum(const uint16_t *counts, uint32_t fan_in) {
    const __m256i n = _mm256_set1_epi32((int)fan_in);
    BOTH_HALVES(signed_sum8(counts, n), signed_sum8(counts + 8, n));
}

typedef struct {
    __m256d low, high;
} d8;

static inline d8 d8_of(__m256d low, __m256d high) {
    d8 r = {low, high};
    return r;
}
static inline d8 d8_widen(const float *from) {
    return d8_of(_mm256_cvtps_pd(_mm_loadu_ps(from)),
                 _mm256_cvtps_pd(_mm_loadu_ps(from + 4)));
}
static inline void d8_narrow(float *to, d8 v) {
    _mm_storeu_ps(to, _mm256_cvtpd_ps(v.low));
    _mm_storeu_ps(to + 4, _mm256_cvtpd_ps(v.high));
}
static inline void d8_store(double *to, d8 v) {
    _mm256_storeu_pd(to, v.low);
    _mm256_storeu_pd(to + 4, v.high);
}
static inline d8 d8_set1(double x) {
    return d8_of(_mm256_set1_pd(x), _mm256_set1_pd(x));
}
static inline d8 d8_add(d8 a, d8 b) {
    return d8_of(_mm256_add_pd(a.low, b.low), _mm256_add_pd(a.high, b.high));
}
static inline d8 d8_mul(d8 a, d8 b) {
    return d8_of(_mm256_mul_pd(a.low, b.low), _mm256_mul_pd(a.high, b.high));
}
static inline d8 d8_fma(d8 a, d8 b, d8 c) {
    return d8_of(_mm256_fmadd_pd(a.low, b.low, c.low),
                 _mm256_fmadd_pd(a.high, b.high, c.high));
}

#define CONV_TILE 4
#include "float_kernels.h"

typedef __m256i bitvec;

static inline bitvec bitvec_load(const uint8_t *from) {
    return _mm256_loadu_si256((const __m256i *)from);
}
static inline bitvec bitvec_zero(void) { return _mm256_setzero_si256(); }
static inline bitvec bitvec_xor(bitvec a, bitvec b) { return _mm256_xor_si256(a, b); }
static inline bitvec bitvec_and(bitvec a, bitvec b) { return _mm256_and_si256(a, b); }
static inline bitvec bitvec_or(bitvec a, bitvec b) { return _mm256_or_si256(a, b); }

static inline void bitvec_counts(const bitvec *planes, size_t n_taps, uint16_t *counts,
                                 size_t bytes) {
    const __m256i select = _mm256_setr_epi16(1, 2, 4, 8, 16, 32, 64, 128, 256, 512,
                                             1024, 2048, 4096, 8192, 16384, -32768);
    uint16_t words[8][16];
    int used = 0;
    for (; used < 8 && n_taps >> used; used++)
        _mm256_storeu_si256((__m256i *)words[used], planes[used]);
    for (size_t at = 0; at < bytes; at += 2) {
        __m256i count = _mm256_setzero_si256();
        for (int j = used - 1; j >= 0; j--) {
            /* A set bit's lane becomes -1; count = 2 * count + bit. */
            __m256i bits = _mm256_set1_epi16((short)words[j][at / 2]);
            __m256i set = _mm256_cmpeq_epi16(_mm256_and_si256(bits, select), select);
            count = _mm256_sub_epi16(_mm256_add_epi16(count, count), set);
        }
        if (bytes - at >= 2)
            _mm256_storeu_si256((__m256i *)(counts + at * 8), count);
        else
            _mm_storeu_si128((__m128i *)(counts + at * 8),
                             _mm256_castsi256_si128(count));
    }
}

#include "depthwise.h"

/* Row x holds popcount(x ^ y) of all nibbles y: a patch's nibble selects the row, and
 * one byte shuffle looks up the filters' nibbles of 32 output channels. */
static const uint8_t NIBBLE_MISMATCHES[16][16] = {
#define ROW(x)                                                                         \
    {N(x), N(x ^ 1), N(x ^ 2), N(x ^ 3), N(x ^ 4), N(x ^ 5), N(x ^ 6), N(x ^ 7),       \
     N(x ^ 8), N(x ^ 9), N(x ^ 10), N(x ^ 11), N(x ^ 12), N(x ^ 13), N(x ^ 14),        \
     N(x ^ 15)}
#define N(y) (((y) & 1) + ((y) >> 1 & 1) + ((y) >> 2 & 1) + ((y) >> 3 & 1))
    ROW(0), ROW(1), ROW(2),  ROW(3),  ROW(4),  ROW(5),  ROW(6),  ROW(7),
    ROW(8), ROW(9), ROW(10), ROW(11), ROW(12), ROW(13), ROW(14), ROW(15)
#undef N
#undef ROW
};

static inline __m256i table_row(unsigned nibble) {
    return _mm256_broadcastsi128_si256(
        _mm_loadu_si128((const __m128i *)NIBBLE_MISMATCHES[nibble]));
}

/* Mismatches of `tile` patches with `wide` blocks of 32 filters. A step handles 8
 * bits of each patch and adds at most 8 to a byte: 31 steps fit before widening. */
static inline __attribute__((always_inline)) void
tile_mismatches(const uint8_t *patches, size_t patch_bytes, const uint8_t *weights,
                uint16_t *counts, size_t count_stride, const int tile,
                const int wide) {
    const __m256i nibble = _mm256_set1_epi8(0x0F), zero = _mm256_setzero_si256();
    __m256i total[4][2][2];
    for (int p = 0; p < tile; p++)
        for (int b = 0; b < wide; b++) total[p][b][0] = total[p][b][1] = zero;
    for (size_t k = 0; k < patch_bytes;) {
        size_t end = patch_bytes - k > 31 ? k + 31 : patch_bytes;
        __m256i sum[4][2];
        for (int p = 0; p < tile; p++)
            for (int b = 0; b < wide; b++) sum[p][b] = zero;
        for (; k < end; k++) {
            __m256i low[2], high[2];
            for (int b = 0; b < wide; b++) {
                __m256i w = _mm256_loadu_si256(
                    (const __m256i *)(weights + ((size_t)b * patch_bytes + k) * 32));
                low[b] = _mm256_and_si256(w, nibble);
                high[b] = _mm256_and_si256(_mm256_srli_epi16(w, 4), nibble);
            }
            for (int p = 0; p < tile; p++) {
                unsigned byte = patches[(size_t)p * patch_bytes + k];
                __m256i low_row = table_row(byte & 15), high_row = table_row(byte >> 4);
                for (int b = 0; b < wide; b++) {
                    sum[p][b] = _mm256_add_epi8(sum[p][b],
                                                _mm256_shuffle_epi8(low_row, low[b]));
                    sum[p][b] = _mm256_add_epi8(sum[p][b],
                                                _mm256_shuffle_epi8(high_row, high[b]));
                }
            }
        }
        for (int p = 0; p < tile; p++)
            for (int b = 0; b < wide; b++) {
                total[p][b][0] = _mm256_add_epi16(
                    total[p][b][0], _mm256_unpacklo_epi8(sum[p][b], zero));
                total[p][b][1] = _mm256_add_epi16(
                    total[p][b][1], _mm256_unpackhi_epi8(sum[p][b], zero));
            }
    }
    for (int p = 0; p < tile; p++)
        for (int b = 0; b < wide; b++) {
            __m256i *to = (__m256i *)(counts + (size_t)p * count_stride + 32 * (size_t)b);
            /* Unpacking worked within 128-bit halves; this restores channel order. */
            _mm256_storeu_si256(to, _mm256_permute2x128_si256(total[p][b][0],
                                                              total[p][b][1], 0x20));
            _mm256_storeu_si256(
                to + 1,
                _mm256_permute2x128_si256(total[p][b][0], total[p][b][1], 0x31));
        }
}

enum { LANES = 32 };
#include "blocks.h"

#include "pairs_avx2.h"

static inline __m256i not_above(const uint16_t *counts, const uint16_t *thresholds) {
    __m256i c = _mm256_loadu_si256((const __m256i *)counts);
    __m256i t = _mm256_loadu_si256((const __m256i *)thresholds);
    return _mm256_cmpeq_epi16(_mm256_min_epu16(c, t), c);
}

static inline uint32_t compare32(const uint16_t *counts, const uint16_t *thresholds) {
    __m256i packed = _mm256_packs_epi16(not_above(counts, thresholds),
                                        not_above(counts + 16, thresholds + 16));
    return (uint32_t)_mm256_movemask_epi8(_mm256_permute4x64_epi64(packed, 0xD8));
}

#include "compare_x86.h"

const kernel_set fbnn_avx2 = {
    .name = "avx2",
    .lanes = LANES,
    .step_bytes = 1,
    .mismatches = pair_mismatches,
    KERNEL_FUNCTIONS,
};

#if defined(__clang__)
#pragma clang attribute pop
#endif
#else
typedef int fbnn_no_avx2;
#endif
