/* Depthwise convolutions of stride 1: every channel has one filter and meets no other.
 *
 * One image at a time is laid out with its padding, as bytes 0 and 1 or as int16, and
 * with its channels filled up to whole vectors. Output (y, x) then meets the k x k
 * pixels from (y, x) on: forward, and in the gradient of the input with the filter
 * turned around. */
#include <stdlib.h>
#include <string.h>

#include "train.h"

enum { FULL = 32 }; /* channels of the widest vector */

typedef struct {
    size_t channels;      /* of a pixel here */
    size_t height, width; /* with the padding */
} layout;

static size_t filled(const geometry *g) { return (g->ci + FULL - 1) / FULL * FULL; }

static layout padded(const geometry *g) {
    return (layout){filled(g), g->h + 2 * g->pad, g->w + 2 * g->pad};
}

/* Bits of a pixel as bytes 0 and 1. */
static void spread_bits(const uint64_t table[256], const uint8_t *bits, size_t channels,
                        uint8_t *out) {
    size_t whole = channels / 8;
    for (size_t b = 0; b < whole; b++) memcpy(out + 8 * b, &table[bits[b]], 8);
    for (size_t c = 8 * whole; c < channels; c++) out[c] = bits[c / 8] >> c % 8 & 1;
}

static void fill_table(uint64_t table[256]) {
    for (unsigned b = 0; b < 256; b++) {
        uint8_t spread[8];
        for (unsigned i = 0; i < 8; i++) spread[i] = b >> i & 1;
        memcpy(&table[b], spread, 8);
    }
}

/* One image's signs as bytes; padding is +1, a byte 1. */
static void spread_image(const geometry *g, const uint64_t table[256], layout in,
                         const uint8_t *bits, uint8_t *out) {
    size_t pixel = (g->ci + 7) / 8;
    for (size_t y = 0; y < g->h; y++) {
        uint8_t *to = out + ((y + g->pad) * in.width + g->pad) * in.channels;
        for (size_t x = 0; x < g->w; x++, bits += pixel, to += in.channels)
            spread_bits(table, bits, g->ci, to);
    }
}

/* [tap][channel] of weights whose channel c has tap t at c * taps + t. */
static int8_t *filters_by_tap(const geometry *g, const float *floats, const int8_t *signs,
                              size_t channels) {
    size_t taps = g->k * g->k;
    int8_t *out = calloc(taps, channels);
    for (size_t c = 0; out && c < g->ci; c++)
        for (size_t t = 0; t < taps; t++) {
            size_t at = c * taps + t;
            int positive = floats ? floats[at] >= 0.0f : signs[at] > 0;
            out[t * channels + c] = positive ? 1 : -1;
        }
    return out;
}

int train_depthwise_forward(const train_kernels *k, const geometry *g,
                            const uint8_t *bits, const float *weights, int16_t *y) {
    layout in = padded(g);
    size_t c = in.channels, taps = g->k * g->k, row = in.width * c;
    uint64_t table[256];
    fill_table(table);
    int8_t *filters = filters_by_tap(g, weights, NULL, c);
    uint8_t *signs = calloc(taps, c), *image = malloc(in.height * row);
    uint8_t *counts = malloc(g->wo * c);
    int done = filters && signs && image && counts;
    if (done) {
        for (size_t i = 0; i < taps * c; i++) signs[i] = filters[i] > 0;
        memset(image, 1, in.height * row);
        for (size_t n = 0; n < g->n; n++, bits += g->h * g->w * ((g->ci + 7) / 8)) {
            spread_image(g, table, in, bits, image);
            for (size_t at = 0; at < g->ho; at++) {
                k->depthwise_counts(image + at * row, signs, g->wo, row, g->k, c, counts);
                for (size_t x = 0; x < g->wo; x++, y += g->co)
                    for (size_t i = 0; i < g->co; i++)
                        y[i] = (int16_t)((int)taps - 2 * counts[x * c + i]);
            }
        }
    }
    free(filters);
    free(signs);
    free(image);
    free(counts);
    return done;
}

/* The stored g of one image, zeros around it too, as int16. */
static void widen_gradient(const geometry *g, const uint8_t *rounded, size_t channels,
                           int16_t *out) {
    for (size_t p = 0; p < g->hg * g->wg; p++, rounded += g->co4, out += channels)
        for (size_t i = 0; i < g->co; i++) out[i] = (int16_t)(rounded[i] - ZERO);
}

int train_depthwise_input_gradient(const train_kernels *k, const geometry *g,
                                   const uint8_t *rounded, const int8_t *weights,
                                   const uint8_t *slopes, float factor, float *dx) {
    size_t c = filled(g), taps = g->k * g->k, row = g->wg * c;
    int8_t *filters = filters_by_tap(g, NULL, weights, c);
    int16_t *turned = malloc(taps * c * sizeof *turned);
    int16_t *image = calloc(g->hg * row, sizeof *image);
    int16_t *sums = malloc(g->w * c * sizeof *sums);
    int done = filters && turned && image && sums;
    if (done) {
        for (size_t t = 0; t < taps; t++)
            for (size_t i = 0; i < c; i++)
                turned[t * c + i] = filters[(taps - 1 - t) * c + i];
        for (size_t n = 0; n < g->n; n++, rounded += g->hg * g->wg * g->co4) {
            widen_gradient(g, rounded, c, image);
            for (size_t at = 0; at < g->h; at++) {
                k->depthwise_sums(image + at * row, turned, g->w, row, g->k, c, sums);
                for (size_t x = 0; x < g->w; x++, dx += g->ci, slopes += g->ci)
                    for (size_t i = 0; i < g->ci; i++)
                        dx[i] = ((float)sums[x * c + i] * (float)slopes[i]) * factor;
            }
        }
    }
    free(filters);
    free(turned);
    free(image);
    free(sums);
    return done;
}

int train_depthwise_weight_gradient(const train_kernels *k, const geometry *g,
                                    const uint8_t *rounded, const uint8_t *bits,
                                    float factor, float *dw) {
    layout in = padded(g);
    size_t c = in.channels, taps = g->k * g->k, row = in.width * c, grad_row = g->wg * c;
    uint64_t table[256];
    fill_table(table);
    uint8_t *bytes = malloc(in.height * row);
    int16_t *image = malloc(in.height * row * sizeof *image);
    int16_t *gradient = calloc(g->hg * grad_row, sizeof *gradient);
    int32_t *sums = calloc(taps * c, sizeof *sums);
    int done = bytes && image && gradient && sums;
    if (done) {
        memset(bytes, 1, in.height * row);
        for (size_t n = 0; n < g->n; n++) {
            spread_image(g, table, in, bits + n * g->h * g->w * ((g->ci + 7) / 8), bytes);
            for (size_t i = 0; i < in.height * row; i++)
                image[i] = (int16_t)(2 * bytes[i] - 1);
            widen_gradient(g, rounded + n * g->hg * g->wg * g->co4, c, gradient);
            for (size_t at = 0; at < g->ho; at++)
                for (size_t t = 0; t < g->k; t++)
                    k->depthwise_correlate(
                        image + (at + t) * row,
                        gradient + (g->low + at) * grad_row + g->low * c, g->wo, g->k, c,
                        sums + t * g->k * c);
        }
        for (size_t i = 0; i < g->ci; i++)
            for (size_t t = 0; t < taps; t++) *dw++ = (float)sums[t * c + i] * factor;
    }
    free(bytes);
    free(image);
    free(gradient);
    free(sums);
    return done;
}
