/* Forward: signs to bits, and the sums of their products. */
#include <stdlib.h>
#include <string.h>

#include "patches.h"

enum { PIXELS = 64 }; /* patches that are gathered at once */

enum { DEPTHWISE_TAPS = 15 };

int train_geometry(geometry *g, const size_t numbers[9]) {
    g->n = numbers[0], g->h = numbers[1], g->w = numbers[2];
    g->ci = numbers[3], g->co = numbers[4];
    g->k = numbers[5], g->stride = numbers[6], g->pad = numbers[7];
    if (!g->n || !g->h || !g->w || !g->ci || !g->co || !g->k || !g->stride) return 0;
    size_t groups = numbers[8];
    g->depthwise = groups > 1;
    if (g->depthwise && (groups != g->ci || g->co != g->ci || g->stride != 1)) return 0;
    if (g->depthwise && g->k > DEPTHWISE_TAPS) return 0;
    g->fan_in = g->k * g->k * (g->depthwise ? 1 : g->ci);
    if (g->ci > 16384 || g->pad >= g->k || g->fan_in > INT16_MAX) return 0;
    if (g->h + 2 * g->pad < g->k || g->w + 2 * g->pad < g->k) return 0;
    g->ho = (g->h + 2 * g->pad - g->k) / g->stride + 1;
    g->wo = (g->w + 2 * g->pad - g->k) / g->stride + 1;
    g->co4 = (g->co + 3) / 4 * 4;
    /* The gradient of input (y, x) reads outputs from (y + pad - k + 1) / stride to
     * (y + pad) / stride; those outside the output are zeros. */
    g->low = (g->k - 1 - g->pad + g->stride - 1) / g->stride;
    size_t last_y = (g->h - 1 + g->pad) / g->stride;
    size_t last_x = (g->w - 1 + g->pad) / g->stride;
    g->hg = g->low + (last_y + 1 > g->ho ? last_y + 1 : g->ho);
    g->wg = g->low + (last_x + 1 > g->wo ? last_x + 1 : g->wo);
    return 1;
}

size_t train_gradient_bytes(const geometry *g) { return g->n * g->hg * g->wg * g->co4; }

size_t train_sign_bytes(const geometry *g) {
    return g->n * g->h * g->w * ((g->ci + 7) / 8);
}

void train_signs(const train_kernels *k, const float *x, size_t pixels, size_t channels,
                 float steep, float limit, uint8_t *bits, uint8_t *slopes) {
    size_t bytes = (channels + 7) / 8;
    epilogue e = {0};
    if (slopes) k->slopes(x, pixels * channels, steep, limit, slopes);
    for (size_t p = 0; p < pixels; p++, x += channels, bits += bytes) {
        if (channels >= 8) {
            e.bits = bits;
            k->bits->finish_floats(x, channels, &e);
            continue;
        }
        unsigned byte = 0;
        for (size_t c = 0; c < channels; c++) byte |= (unsigned)(x[c] >= 0.0f) << c;
        *bits = (uint8_t)byte;
    }
}

void train_patches_of(patch_source *p, const geometry *g, size_t step_bytes) {
    memset(p, 0, sizeof *p);
    operation *op = &p->op;
    op->in.height = (uint32_t)g->h, op->in.width = (uint32_t)g->w;
    op->in.channels = (uint32_t)g->ci;
    op->kernel_h = op->kernel_w = (uint32_t)g->k;
    op->stride = (uint32_t)g->stride;
    op->pad_top = op->pad_left = op->pad_bottom = op->pad_right = (uint32_t)g->pad;
    p->tap_bits = g->ci < 8 ? g->ci : (g->ci + 7) / 8 * 8;
    op->patch_bytes = (g->k * g->k * p->tap_bits + 7) / 8;
    op->patch_bytes = (op->patch_bytes + step_bytes - 1) / step_bytes * step_bytes;
    p->image_bytes = g->h * g->w * ((g->ci + 7) / 8);
    p->pixels = g->ho * g->wo;
    p->width = g->wo;
    p->image = SIZE_MAX;
}

void train_gather(patch_source *p, const uint8_t *bits, size_t first, size_t n,
                  uint8_t *patches) {
    while (n > 0) {
        size_t image = first / p->pixels, at = first % p->pixels;
        size_t count = p->pixels - at < n ? p->pixels - at : n;
        if (image != p->image) {
            const uint8_t *input = bits + image * p->image_bytes;
            fbnn_gather_begin(&p->gather, &p->op, input, p->room);
            p->image = image;
        }
        fbnn_gather(&p->gather, at / p->width, at % p->width, p->width, count, patches);
        patches += count * p->op.patch_bytes;
        first += count;
        n -= count;
    }
}

/* Write every step of a filter to its lane. */
static void place(const uint8_t *patch, size_t steps, size_t step_bytes, size_t lanes,
                  uint8_t *to) {
    if (step_bytes == 1)
        for (size_t s = 0; s < steps; s++) to[s * lanes] = patch[s];
    else if (step_bytes == 4)
        for (size_t s = 0; s < steps; s++) memcpy(to + s * lanes * 4, patch + s * 4, 4);
    else if (step_bytes == 8)
        for (size_t s = 0; s < steps; s++) memcpy(to + s * lanes * 8, patch + s * 8, 8);
    else
        for (size_t s = 0; s < steps; s++)
            memcpy(to + s * lanes * step_bytes, patch + s * step_bytes, step_bytes);
}

/* Filters as bits in the layout of the packed kernels. */
static void place_filters(const kernel_set *k, const geometry *g, const patch_source *p,
                          const float *weights, uint8_t *placed, uint8_t *patch) {
    size_t bytes = p->op.patch_bytes, taps = g->k * g->k;
    epilogue e = {0};
    for (size_t c = 0; c < g->co; c++) {
        memset(patch, 0, bytes);
        for (size_t t = 0; t < taps; t++, weights += g->ci) {
            if (g->ci >= 8) {
                e.bits = patch + t * p->tap_bits / 8;
                k->finish_floats(weights, g->ci, &e);
                continue;
            }
            for (size_t i = 0; i < g->ci; i++) {
                size_t bit = t * p->tap_bits + i;
                patch[bit / 8] |= (uint8_t)((weights[i] >= 0.0f) << bit % 8);
            }
        }
        uint8_t *block = placed + c / k->lanes * bytes * k->lanes;
        place(patch, bytes / k->step_bytes, k->step_bytes, k->lanes,
              block + c % k->lanes * k->step_bytes);
    }
}

int train_forward(const train_kernels *k, const geometry *g, const uint8_t *bits,
                  const float *weights, int16_t *y) {
    if (g->depthwise) return train_depthwise_forward(k, g, bits, weights, y);
    const kernel_set *xnor = k->bits;
    patch_source p;
    train_patches_of(&p, g, xnor->step_bytes);
    size_t bytes = p.op.patch_bytes, blocks = (g->co + xnor->lanes - 1) / xnor->lanes;
    size_t padded = blocks * xnor->lanes, pixels = g->n * p.pixels;
    uint8_t *placed = calloc(padded + PIXELS + 1, bytes);
    uint16_t *counts = malloc(PIXELS * padded * sizeof *counts);
    p.room = malloc(fbnn_gather_bytes(&p.op) + 1);
    int done = placed && counts && p.room;
    if (done) {
        uint8_t *patches = placed + padded * bytes, *patch = patches + PIXELS * bytes;
        place_filters(xnor, g, &p, weights, placed, patch);
        for (size_t first = 0; first < pixels; first += PIXELS) {
            size_t n = pixels - first < PIXELS ? pixels - first : PIXELS;
            train_gather(&p, bits, first, n, patches);
            xnor->mismatches(patches, bytes, n, placed, blocks, counts, padded);
            k->signed_sums(counts, padded, n, g->co, (int)g->fan_in,
                           y + first * g->co);
        }
    }
    free(placed);
    free(counts);
    free(p.room);
    return done;
}
