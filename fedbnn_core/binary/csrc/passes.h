/* Passes over pixels in plain C; every kernel file includes them, so that the compiler
 * vectorizes them for its instruction set. The inner loop runs over channels: no sum
 * is reordered, and all sets give the same bits. (Measured, AVX2: 1 to 2 values a
 * cycle where a pass reads memory once.) */
#include <float.h>
#include <math.h>
#include <string.h>

#include "mixing.h"

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

static void add_moments(const int16_t *restrict y, size_t n, size_t channels,
                        int32_t *restrict sums, int32_t *restrict squares) {
    for (size_t p = 0; p < n; p++, y += channels)
        for (size_t c = 0; c < channels; c++) {
            int32_t v = y[c];
            sums[c] += v;
            squares[c] += v * v;
        }
}

static void affine(const int16_t *restrict y, size_t n, size_t channels,
                   const float *restrict gain, const float *restrict offset,
                   float *restrict out) {
    for (size_t p = 0; p < n; p++, y += channels, out += channels)
        for (size_t c = 0; c < channels; c++)
            out[c] = (float)y[c] * gain[c] + offset[c];
}

static void pool_row(const int16_t *restrict upper, const int16_t *restrict lower,
                     size_t n, size_t channels, const float *restrict flip,
                     int16_t *restrict out) {
    for (size_t p = 0; p < n; p++, out += channels)
        for (size_t c = 0; c < channels; c++) {
            int32_t f = flip[c] < 0.0f ? -1 : 1;
            const int16_t *a = upper + 2 * p * channels, *b = lower + 2 * p * channels;
            int32_t m = f * a[c], v = f * a[channels + c];
            m = v > m ? v : m;
            v = f * b[c];
            m = v > m ? v : m;
            v = f * b[channels + c];
            m = v > m ? v : m;
            out[c] = (int16_t)(f * m);
        }
}

static void add_norm_sums(const float *restrict dz, const int16_t *restrict y, size_t n,
                          size_t channels, const float *restrict mean,
                          double *restrict sums, double *restrict products) {
    for (size_t p = 0; p < n; p++, dz += channels, y += channels)
        for (size_t c = 0; c < channels; c++) {
            float product = dz[c] * ((float)y[c] - mean[c]);
            sums[c] += (double)dz[c];
            products[c] += (double)product;
        }
}

static void gradient_row(const norm_gradient *g, const float *restrict dz,
                         const int16_t *restrict y, size_t width, size_t channels,
                         float *restrict dy) {
    const float *gain = g->gain, *constant = g->constant, *linear = g->linear;
    for (size_t x = 0; x < width; x++, y += channels, dy += channels) {
        if (dz) {
            for (size_t c = 0; c < channels; c++)
                dy[c] = gain[c] * dz[c] + (constant[c] + linear[c] * (float)y[c]);
            dz += channels;
        } else {
            for (size_t c = 0; c < channels; c++)
                dy[c] = constant[c] + linear[c] * (float)y[c];
        }
    }
}

/* Windows of 2 x 2: dz goes to the first of the largest values, as torch does. */
static void gradient_rows(const norm_gradient *g, const float *restrict dz,
                          const int16_t *restrict y, size_t width, size_t channels,
                          float *restrict dy) {
    const float *restrict gain = g->gain, *restrict constant = g->constant;
    const float *restrict linear = g->linear, *restrict flip = g->flip;
    size_t down = width * channels, windows = width / 2;
    int after = g->pool == POOL_AFTER;
    for (size_t x = 0; x < windows; x++, dz += channels) {
        const int16_t *restrict upper = y + 2 * x * channels;
        float *restrict to = dy + 2 * x * channels;
        for (size_t c = 0; c < channels; c++) {
            float v0 = upper[c], v1 = upper[channels + c];
            float v2 = upper[down + c], v3 = upper[down + channels + c];
            float f = after ? flip[c] : 1.0f;
            float f0 = f * v0, f1 = f * v1, f2 = f * v2, f3 = f * v3;
            float top = f0 > f1 ? f0 : f1, low = f2 > f3 ? f2 : f3;
            float most = top > low ? top : low;
            float z = gain[c] * dz[c];
            float dm = z + (constant[c] + linear[c] * (f * most));
            z = after ? z : dm;
            float k = after ? constant[c] : 0.0f, l = after ? linear[c] : 0.0f;
            int is0 = f0 == most, is1 = !is0 & (f1 == most);
            int is2 = !is0 & !is1 & (f2 == most), is3 = !is0 & !is1 & !is2;
            to[c] = (is0 ? z : 0.0f) + (k + l * v0);
            to[channels + c] = (is1 ? z : 0.0f) + (k + l * v1);
            to[down + c] = (is2 ? z : 0.0f) + (k + l * v2);
            to[down + channels + c] = (is3 ? z : 0.0f) + (k + l * v3);
        }
    }
    if (width % 2) /* the last column belongs to no window */
        for (size_t row = 0; row < 2; row++) {
            size_t at = row * down + (width - 1) * channels;
            for (size_t c = 0; c < channels; c++)
                dy[at + c] = after ? constant[c] + linear[c] * (float)y[at + c] : 0.0f;
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

#define PASSES                                                                         \
    .slopes = slopes, .signed_sums = signed_sums, .add_moments = add_moments,          \
    .affine = affine, .pool_row = pool_row, .add_norm_sums = add_norm_sums,            \
    .gradient_row = gradient_row, .gradient_rows = gradient_rows, .max_abs = max_abs,  \
    .round = round_values, .scale_columns = scale_columns, .products = products,       \
    .expand = expand, .clamped_sum = clamped_sum, .mask = mask,                      \
    .mix = mix, .mix_gradient = mix_gradient
