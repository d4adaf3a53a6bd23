/* Gradient of the weights: sums over pixels of g times the signs of the inputs. */
#include <stdlib.h>
#include <string.h>

#include "patches.h"

enum { STEPS = 256 }; /* four pixels each: a panel of 16 columns has 16 KB */

/* g of `n` outputs from `first` on as [tile of rows][step][row][4 pixels]; one more
 * row than there are channels holds ones, whose products are the columns' sums. */
static void pack_rows(const geometry *g, const uint8_t *rounded, size_t first, size_t n,
                      size_t tile_rows, size_t steps, uint8_t *packed) {
    size_t tiles = (g->co + tile_rows) / tile_rows, tile_bytes = steps * tile_rows * 4;
    for (size_t s = 0; s < steps; s++) {
        const uint8_t *from[4];
        static const uint8_t none[1] = {0};
        for (size_t j = 0; j < 4; j++) {
            size_t p = first + 4 * s + j, image = p / (g->ho * g->wo);
            size_t y = p / g->wo % g->ho, x = p % g->wo;
            from[j] = 4 * s + j < n
                          ? rounded + ((image * g->hg + g->low + y) * g->wg + g->low +
                                       x) * g->co4
                          : none;
        }
        int whole = 4 * s + 4 <= n;
        for (size_t t = 0; t < tiles; t++) {
            uint8_t *to = packed + t * tile_bytes + s * tile_rows * 4;
            for (size_t r = 0; r < tile_rows; r++, to += 4) {
                size_t c = t * tile_rows + r;
                if (c < g->co && whole) {
                    to[0] = from[0][c], to[1] = from[1][c];
                    to[2] = from[2][c], to[3] = from[3][c];
                } else {
                    for (size_t j = 0; j < 4; j++)
                        to[j] = c > g->co ? 0
                                : c == g->co ? 1
                                : from[j] != none ? from[j][c]
                                                  : ZERO;
                }
            }
        }
    }
}

/* dw[c][i][t] of column t * tap_bits + i, as torch lays weights out. */
static void unpack(const geometry *g, size_t tap_bits, size_t columns,
                   const int32_t *sums, float factor, float *dw) {
    size_t taps = g->k * g->k;
    const int32_t *bias = sums + g->co * columns;
    for (size_t c = 0; c < g->co; c++, sums += columns)
        for (size_t i = 0; i < g->ci; i++)
            for (size_t t = 0; t < taps; t++) {
                size_t column = t * tap_bits + i;
                *dw++ = (float)(sums[column] - ZERO * bias[column]) * factor;
            }
}

int train_weight_gradient(const train_kernels *k, const geometry *g,
                          const uint8_t *rounded, const uint8_t *bits, float factor,
                          float *dw) {
    patch_source p;
    train_patches_of(&p, g, 2); /* two bytes are the columns of a panel */
    size_t bytes = p.op.patch_bytes, columns = bytes * 8, pixels = g->n * p.pixels;
    size_t tiles = (g->co + k->rows) / k->rows, rows = tiles * k->rows;
    size_t most = pixels < 4 * STEPS ? (pixels + 3) / 4 * 4 : 4 * STEPS;
    int32_t *sums = calloc(rows * columns, sizeof *sums);
    uint8_t *patches = calloc(most, bytes), *packed = malloc(rows * most);
    int8_t *panel = malloc(most * COLUMNS);
    p.room = malloc(fbnn_gather_bytes(&p.op) + 1);
    int done = sums && patches && packed && panel && p.room;
    const ptrdiff_t start = 0;
    for (size_t first = 0; done && first < pixels; first += most) {
        size_t n = pixels - first < most ? pixels - first : most, steps = (n + 3) / 4;
        train_gather(&p, bits, first, n, patches);
        pack_rows(g, rounded, first, n, k->rows, steps, packed);
        for (size_t c = 0; c < columns; c += COLUMNS) {
            k->expand(patches + c / 8, bytes, steps, panel);
            for (size_t t = 0; t < tiles; t++) {
                int32_t part[MAX_ROWS * COLUMNS];
                const uint8_t *from[MAX_ROWS];
                for (size_t r = 0; r < k->rows; r++)
                    from[r] = packed + t * steps * k->rows * 4 + 4 * r;
                k->products(from, k->rows, 4 * k->rows, &start, 1, steps, panel, part);
                for (size_t r = 0; r < k->rows; r++) {
                    int32_t *to = sums + (t * k->rows + r) * columns + c;
                    for (size_t i = 0; i < COLUMNS; i++) to[i] += part[r * COLUMNS + i];
                }
            }
        }
    }
    if (done) unpack(g, p.tap_bits, columns, sums, factor, dw);
    free(sums);
    free(patches);
    free(packed);
    free(panel);
    free(p.room);
    return done;
}
