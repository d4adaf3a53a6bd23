/* Passes over pixels in plain C; every kernel file includes them, so that the compiler
 * vectorizes them for its instruction set. The inner loop runs over channels: no sum
 * is reordered, and all sets give the same bits. (Measured, AVX2: 1 to 2 values a
 * cycle where a pass reads memory once.) */
#include <float.h>
#include <math.h>
#include <string.h>

#include "depthwise_passes.h"
#include "matrices.h"
#include "mixing.h"
#include "rotating.h"

static void slopes(const float *x, size_t n, float steep, float limit, uint8_t *out) {
    for (size_t i = 0; i < n; i++) {
        float a = x[i] < 0.0f ? -x[i] : x[i];
        float v = 255.0f - a * steep;
        v = v > 0.0f ? v : 0.0f;
        v = a < limit ? v : 0.0f;
        out[i] = (uint8_t)(int32_t)(v + 0.5f);
    }
}

static void signed_sums(const uint16_t *counts, size_t count_stride, size_t n,
                        size_t channels, int fan_in, int16_t *y) {
    for (size_t p = 0; p < n; p++, counts += count_stride, y += channels)
        for (size_t c = 0; c < channels; c++) y[c] = (int16_t)(fan_in - 2 * counts[c]);
}

#define Y int16_t
#define WIDE int32_t
#define OF_Y(name) name##_of_sums
#include "norm_passes.h"
#define Y float
#define WIDE float
#define OF_Y(name) name##_of_floats
#include "norm_passes.h"

/* Exact: sums of squares go to float64 before 32 bits overflow, and stay whole there
 * below 2^53. */
static void moments_of_sums(const void *values, size_t pixels, size_t channels,
                            size_t bound, int32_t *part, double *restrict sums,
                            double *restrict squares) {
    const int16_t *restrict y = values;
    int32_t *restrict part_sums = part, *restrict part_squares = part + channels;
    size_t group = (size_t)INT32_MAX / (bound * bound);
    if (group < 1) group = 1;
    for (size_t first = 0; first < pixels; first += group) {
        size_t n = pixels - first < group ? pixels - first : group;
        memset(part, 0, 2 * channels * sizeof *part);
        for (size_t p = 0; p < n; p++, y += channels)
            for (size_t c = 0; c < channels; c++) {
                int32_t v = y[c];
                part_sums[c] += v;
                part_squares[c] += v * v;
            }
        for (size_t c = 0; c < channels; c++) {
            sums[c] += part_sums[c];
            squares[c] += part_squares[c];
        }
    }
}

static void moments_of_floats(const void *values, size_t pixels, size_t channels,
                              size_t bound, int32_t *part, double *restrict sums,
                              double *restrict squares) {
    const float *restrict y = values;
    (void)bound, (void)part;
    for (size_t p = 0; p < pixels; p++, y += channels)
        for (size_t c = 0; c < channels; c++) {
            double v = (double)y[c];
            sums[c] += v;
            squares[c] += v * v;
        }
}

static uint32_t max_abs(const float *v, size_t n) {
    uint32_t most = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, v + i, sizeof bits);
        bits &= 0x7FFFFFFF;
        most = bits > most ? bits : most;
    }
    return most;
}

/* The random number of counter i is a hash of i and the key: 24 bits, two rounds of
 * multiply and shift. */
static void round_values(const float *restrict v, size_t n, uint32_t index,
                         const uint32_t key[2], float inverse, int levels,
                         uint8_t *restrict out) {
    const uint32_t first = index + key[0], second = key[1];
    for (size_t i = 0; i < n; i++) {
        uint32_t h = first + (uint32_t)i;
        h ^= h >> 16;
        h *= 0x7FEB352Du;
        h ^= h >> 15;
        h ^= second;
        h *= 0x846CA68Bu;
        h ^= h >> 16;
        float u = (float)(int32_t)(h >> 8) * 0x1p-24f;
        float r = v[i] * inverse + u;
        int32_t q = (int32_t)r;
        q -= (float)q > r;
        q = q > levels ? levels : q;
        q = q < -levels ? -levels : q;
        out[i] = (uint8_t)(q + ZERO);
    }
}

static void scale_columns(const int32_t *restrict sums, const int32_t *restrict bias,
                          const uint8_t *restrict code, float factor, size_t n,
                          float *restrict out) {
    if (n == COLUMNS)
        for (size_t c = 0; c < COLUMNS; c++)
            out[c] = ((float)(sums[c] - bias[c]) * (float)code[c]) * factor;
    else
        for (size_t c = 0; c < n; c++)
            out[c] = ((float)(sums[c] - bias[c]) * (float)code[c]) * factor;
}

#ifndef OWN_EXPAND
static void expand(const uint8_t *fours, size_t stride, size_t steps, int8_t *panel) {
    for (size_t s = 0; s < steps; s++, fours += stride, panel += 4 * COLUMNS)
        for (size_t half = 0; half < 2; half++) {
            uint32_t four, signs[8];
            memcpy(&four, fours + 4 * half, sizeof four);
            for (uint32_t c = 0; c < 8; c++) {
                uint32_t negative = ~(four >> c) & 0x01010101u;
                signs[c] = ((negative << 8) - negative) | 0x01010101u;
            }
            memcpy(panel + 32 * half, signs, sizeof signs);
        }
}
#endif

static void clamped_sum(const float *restrict a, const float *restrict b, size_t n,
                        float *restrict out, uint8_t *restrict inside) {
    for (size_t i = 0; i < n; i++) {
        float v = a[i] + b[i];
        inside[i] = (uint8_t)((v > -1.0f) & (v < 1.0f));
        v = v < -1.0f ? -1.0f : v;
        out[i] = v > 1.0f ? 1.0f : v;
    }
}

static void mask(const float *restrict v, const uint8_t *restrict inside, size_t n,
                 float *restrict out) {
    for (size_t i = 0; i < n; i++) out[i] = inside[i] ? v[i] : 0.0f;
}

#define NORM_PASSES(kind, type)                                                        \
    {                                                                                  \
        .size = sizeof(type), .moments = moments_of_##kind, .affine = affine_of_##kind,\
        .pool_row = pool_row_of_##kind, .add_norm_sums = add_norm_sums_of_##kind,      \
        .gradient_row = gradient_row_of_##kind,                                        \
        .gradient_rows = gradient_rows_of_##kind,                                      \
    }

#define PASSES                                                                         \
    .slopes = slopes, .signed_sums = signed_sums,                                      \
    .norm = {NORM_PASSES(sums, int16_t), NORM_PASSES(floats, float)},                  \
    .max_abs = max_abs, .round = round_values, .scale_columns = scale_columns,         \
    .products = products, .expand = expand, .clamped_sum = clamped_sum, .mask = mask,  \
    .depthwise_counts = depthwise_counts, .depthwise_sums = depthwise_sums,            \
    .depthwise_correlate = depthwise_correlate, .mix = mix,                            \
    .mix_gradient = mix_gradient, .turn = turn
