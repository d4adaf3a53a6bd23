/* Backward: round dL/dy, then its products with the signs of weights and inputs. */
#include <stdlib.h>
#include <string.h>

#include "patches.h"

const float *train_gradient_of(const norm_passes *passes, const geometry *g,
                               const norm_gradient *norm, size_t n, size_t at,
                               size_t *rows, float *room) {
    size_t row = g->wo * g->co;
    const char *y = norm->y;
    *rows = 1;
    if (y) y += (n * g->ho + at) * row * passes->size;
    if (norm->pool == POOL_NONE) {
        const float *dz = norm->dz + (n * g->ho + at) * row;
        if (!y) return dz;
        passes->gradient_row(norm, dz, y, g->wo, g->co, room);
    } else if (at + 1 < g->ho) {
        size_t window = (n * (g->ho / 2) + at / 2) * (g->wo / 2);
        *rows = 2;
        passes->gradient_rows(norm, norm->dz + window * g->co, y, g->wo, g->co, room);
    } else if (norm->pool == POOL_AFTER) {
        passes->gradient_row(norm, NULL, y, g->wo, g->co, room);
    } else {
        memset(room, 0, row * sizeof *room);
    }
    return room;
}

int train_round(const train_kernels *k, const geometry *g, const norm_gradient *norm,
                int levels, const uint32_t key[2], uint8_t *rounded, float *scale) {
    const norm_passes *passes = &k->norm[OF_SUMS];
    size_t row = g->wo * g->co, rows;
    float *room = malloc(2 * row * sizeof *room);
    if (!room) return 0;
    uint32_t most = 0;
    for (size_t n = 0; n < g->n; n++)
        for (size_t at = 0; at < g->ho; at += rows) {
            const float *dy = train_gradient_of(passes, g, norm, n, at, &rows, room);
            uint32_t bits = k->max_abs(dy, rows * row);
            most = bits > most ? bits : most;
        }
    float largest;
    memcpy(&largest, &most, sizeof largest);
    *scale = largest / (float)levels;
    memset(rounded, ZERO, train_gradient_bytes(g));
    /* No finite gradient: the scale carries the NaN or infinity on. */
    if (most == 0 || most >= 0x7F800000) {
        free(room);
        return 1;
    }
    float inverse = (float)levels / largest;
    for (size_t n = 0; n < g->n; n++)
        for (size_t at = 0; at < g->ho; at += rows) {
            const float *dy = train_gradient_of(passes, g, norm, n, at, &rows, room);
            for (size_t r = 0; r < rows; r++, dy += row) {
                uint8_t *to =
                    rounded + ((n * g->hg + g->low + at + r) * g->wg + g->low) * g->co4;
                uint32_t index = (uint32_t)((n * g->ho + at + r) * row);
                /* Without a gap between pixels a row is one call. */
                size_t step = g->co == g->co4 ? row : g->co;
                for (size_t c = 0; c < row; c += step, to += g->co4)
                    k->round(dy + c, step, index + (uint32_t)c, key, inverse, levels,
                             to);
            }
        }
    free(room);
    return 1;
}

/* Panels of weight signs: [block of 16 inputs][tap][outputs / 4][16][4], and 128
 * times the sum of each column, which storing g + 128 adds to its products. */
static void weight_panels(const geometry *g, const size_t *taps, size_t n_taps,
                          const int8_t *weights, int8_t *panels, int32_t *bias) {
    size_t filter = g->k * g->k * g->ci, blocks = (g->ci + COLUMNS - 1) / COLUMNS;
    for (size_t b = 0; b < blocks; b++) {
        size_t first = b * COLUMNS;
        size_t n = g->ci - first < COLUMNS ? g->ci - first : COLUMNS;
        int32_t *sum = bias + first;
        memset(sum, 0, COLUMNS * sizeof *sum);
        for (size_t t = 0; t < n_taps; t++)
            for (size_t o = 0; o < g->co4; o += 4, panels += 4 * COLUMNS) {
                size_t valid = g->co - o < 4 ? g->co - o : 4;
                if (valid < 4 || n < COLUMNS) memset(panels, 0, 4 * COLUMNS);
                for (size_t j = 0; j < valid; j++) {
                    const int8_t *w = weights + (o + j) * filter + taps[t] * g->ci + first;
                    for (size_t c = 0; c < n; c++) panels[4 * c + j] = w[c];
                }
                for (size_t c = 0; c < n; c++)
                    sum[c] += ZERO * (panels[4 * c] + panels[4 * c + 1] +
                                      panels[4 * c + 2] + panels[4 * c + 3]);
            }
    }
}

/* The inputs of one phase (their row and column modulo the stride) all meet the same
 * taps. A tile is some of their pixels times 16 or 32 channels; a panel stays in the cache
 * while the pixels of some images pass by. */
static void phase_gradient(const train_kernels *k, const geometry *g, size_t phase_y,
                           size_t phase_x, const ptrdiff_t *offsets, size_t n_taps,
                           const uint8_t *rounded, const int8_t *panels,
                           const int32_t *bias, const uint8_t *slopes, float factor,
                           float *dx) {
    size_t steps = g->co4 / 4, panel = n_taps * steps * 4 * COLUMNS;
    size_t high = (g->h - phase_y + g->stride - 1) / g->stride;
    size_t wide = (g->w - phase_x + g->stride - 1) / g->stride;
    size_t image_bytes = g->hg * g->wg * g->co4, images = (1 << 17) / image_bytes + 1;
    int32_t sums[2 * MAX_ROWS * COLUMNS];
    const uint8_t *rows[MAX_ROWS];
    size_t at[MAX_ROWS];
    for (size_t n0 = 0; n0 < g->n; n0 += images) {
        size_t some = g->n - n0 < images ? g->n - n0 : images, pixels = some * high * wide;
        size_t both;
        for (size_t b = 0; b * COLUMNS < g->ci; b += both) {
            size_t left = g->ci - b * COLUMNS, x = 0, y = 0, n = n0;
            both = k->product_pairs && left > COLUMNS ? 2 : 1;
            for (size_t first = 0; first < pixels;) {
                size_t count = pixels - first < k->rows ? pixels - first : k->rows;
                for (size_t r = 0; r < count; r++) {
                    rows[r] = rounded +
                              ((n * g->hg + g->low + y) * g->wg + g->low + x) * g->co4;
                    at[r] = ((n * g->h + y * g->stride + phase_y) * g->w +
                             x * g->stride + phase_x) * g->ci + b * COLUMNS;
                    if (++x == wide) x = 0, y++;
                    if (y == high) y = 0, n++;
                }
                if (both == 2)
                    k->product_pairs(rows, count, 4, offsets, n_taps, steps,
                                     panels + b * panel, panel, sums);
                else
                    k->products(rows, count, 4, offsets, n_taps, steps,
                                panels + b * panel, sums);
                for (size_t p = 0, c = 0; p < both; p++, c += COLUMNS) {
                    size_t columns = left - c < COLUMNS ? left - c : COLUMNS;
                    for (size_t r = 0; r < count; r++)
                        k->scale_columns(sums + (p * count + r) * COLUMNS,
                                         bias + b * COLUMNS + c, slopes + at[r] + c,
                                         factor, columns, dx + at[r] + c);
                }
                first += count;
            }
        }
    }
}

int train_input_gradient(const train_kernels *k, const geometry *g,
                         const uint8_t *rounded, const int8_t *weights,
                         const uint8_t *slopes, float factor, float *dx) {
    if (g->depthwise)
        return train_depthwise_input_gradient(k, g, rounded, weights, slopes, factor, dx);
    size_t taps = g->k * g->k, padded = (g->ci + COLUMNS - 1) / COLUMNS * COLUMNS;
    int8_t *panels = malloc(padded * taps * g->co4);
    int32_t *bias = malloc(padded * sizeof *bias);
    size_t *used = malloc(taps * sizeof *used);
    ptrdiff_t *offsets = malloc(taps * sizeof *offsets);
    int done = panels && bias && used && offsets;
    size_t s = g->stride;
    if (s > 1 && done) memset(dx, 0, g->n * g->h * g->w * g->ci * sizeof *dx);
    for (size_t phase = 0; done && phase < s * s; phase++) {
        size_t phase_y = phase / s, phase_x = phase % s, n_taps = 0;
        if (phase_y >= g->h || phase_x >= g->w) continue;
        for (size_t t = 0; t < taps; t++) {
            /* Output row = (row + pad - tap) / stride, where that is whole. */
            ptrdiff_t up = (ptrdiff_t)(phase_y + g->pad) - (ptrdiff_t)(t / g->k);
            ptrdiff_t left = (ptrdiff_t)(phase_x + g->pad) - (ptrdiff_t)(t % g->k);
            if (up % (ptrdiff_t)s || left % (ptrdiff_t)s) continue;
            offsets[n_taps] = (up / (ptrdiff_t)s * (ptrdiff_t)g->wg +
                               left / (ptrdiff_t)s) * (ptrdiff_t)g->co4;
            used[n_taps++] = t;
        }
        if (!n_taps) continue;
        weight_panels(g, used, n_taps, weights, panels, bias);
        phase_gradient(k, g, phase_y, phase_x, offsets, n_taps, rounded, panels, bias,
                       slopes, factor, dx);
    }
    free(panels);
    free(bias);
    free(used);
    free(offsets);
    return done;
}
