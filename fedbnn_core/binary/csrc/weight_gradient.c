/* Gradient of the weights: sums over pixels of g times the signs of the inputs. */
#include <stdlib.h>
#include <string.h>

#include "patches.h"

enum { STEPS = 128 }; /* four pixels each: a panel of 16 columns has 8 KB */

static void interleave(const uint8_t *restrict a, const uint8_t *restrict b,
                       const uint8_t *restrict c, const uint8_t *restrict d, size_t n,
                       uint8_t *restrict out) {
    for (size_t i = 0; i < n; i++) {
        out[4 * i] = a[i];
        out[4 * i + 1] = b[i];
        out[4 * i + 2] = c[i];
        out[4 * i + 3] = d[i];
    }
}

/* g of `n` outputs from `first` on as [tile][step][row of the tile][4 pixels], so that a
 * tile is read from front to back; the row behind the channels holds ones, whose
 * products are the columns' sums. `line` has room for a step of all tiles. */
static void pack_rows(const geometry *g, const uint8_t *rounded, size_t first, size_t n,
                      size_t tiles, size_t rows, uint8_t *packed, uint8_t *line,
                      const uint8_t *zeros) {
    size_t image = first / (g->ho * g->wo), y = first / g->wo % g->ho, x = first % g->wo;
    size_t tile_bytes = (n + 3) / 4 * 4 * rows;
    for (size_t at = 0; at < n; at += 4, packed += 4 * rows) {
        const uint8_t *from[4] = {zeros, zeros, zeros, zeros};
        for (size_t j = 0; j < 4 && at + j < n; j++) {
            from[j] = rounded +
                      ((image * g->hg + g->low + y) * g->wg + g->low + x) * g->co4;
            if (++x == g->wo) x = 0, y++;
            if (y == g->ho) y = 0, image++;
        }
        interleave(from[0], from[1], from[2], from[3], g->co, line);
        memset(line + 4 * g->co, 1, 4);
        for (size_t t = 0; t < tiles; t++)
            memcpy(packed + t * tile_bytes, line + t * 4 * rows, 4 * rows);
    }
}

typedef int32_t four
    __attribute__((vector_size(4 * sizeof(int32_t)), aligned(4), may_alias));

static void add_columns(const int32_t *part, size_t n, int32_t *sums) {
    for (size_t i = 0; i < n; i += 4) *(four *)(sums + i) += *(const four *)(part + i);
}

/* dw[c][i][t] of column t * tap_bits + i, as torch lays weights out. `sums` is [block of
 * columns][row][column], `line` has room for the columns of one channel. */
static void unpack(const geometry *g, size_t tap_bits, size_t columns, size_t rows,
                   const int32_t *sums, float factor, float *restrict line,
                   float *restrict dw) {
    size_t taps = g->k * g->k, block = rows * COLUMNS;
    const int32_t *bias = sums + g->co * COLUMNS;
    for (size_t c = 0; c < g->co; c++, sums += COLUMNS) {
        for (size_t at = 0, from = 0; at < columns; at += COLUMNS, from += block)
            for (size_t i = 0; i < COLUMNS; i++)
                line[at + i] =
                    (float)(sums[from + i] - ZERO * bias[from + i]) * factor;
        for (size_t i = 0; i < g->ci; i++)
            for (size_t t = 0; t < taps; t++) *dw++ = line[t * tap_bits + i];
    }
}

int train_weight_gradient(const train_kernels *k, const geometry *g,
                          const uint8_t *rounded, const uint8_t *bits, float factor,
                          float *dw) {
    if (g->depthwise)
        return train_depthwise_weight_gradient(k, g, rounded, bits, factor, dw);
    patch_source p;
    train_patches_of(&p, g, 2); /* two bytes are the columns of a panel */
    size_t bytes = p.op.patch_bytes, columns = bytes * 8, pixels = g->n * p.pixels;
    size_t tiles = (g->co + k->rows) / k->rows, rows = tiles * k->rows;
    size_t most = pixels < 4 * STEPS ? (pixels + 3) / 4 * 4 : 4 * STEPS;
    int32_t *sums = calloc(rows * columns, sizeof *sums);
    uint8_t *patches = calloc(most, bytes), *fours = malloc(most * bytes);
    uint8_t *packed = malloc(most * rows), *line = calloc(rows, 4);
    float *values = malloc(columns * sizeof *values);
    uint8_t *zeros = malloc(g->co4);
    size_t panel_bytes = most * COLUMNS, tile_sums = k->rows * COLUMNS;
    int8_t *panel = malloc(2 * panel_bytes);
    p.room = malloc(fbnn_gather_bytes(&p.op) + 1);
    int done = sums && patches && fours && packed && line && values &&
               zeros && panel && p.room;
    if (zeros) memset(zeros, ZERO, g->co4);
    const ptrdiff_t start = 0;
    for (size_t first = 0; done && first < pixels; first += most) {
        size_t n = pixels - first < most ? pixels - first : most, steps = (n + 3) / 4;
        train_gather(&p, bits, first, n, patches);
        pack_rows(g, rounded, first, n, tiles, k->rows, packed, line, zeros);
        for (size_t s = 0; s < steps; s++) {
            const uint8_t *at = patches + 4 * s * bytes;
            interleave(at, at + bytes, at + 2 * bytes, at + 3 * bytes, bytes,
                       fours + 4 * s * bytes);
        }
        size_t both;
        for (size_t c = 0; c < columns; c += both * COLUMNS) {
            both = k->product_pairs && columns - c > COLUMNS ? 2 : 1;
            for (size_t i = 0; i < both; i++)
                k->expand(fours + (c + i * COLUMNS) / 2, 4 * bytes, steps,
                          panel + i * panel_bytes);
            for (size_t t = 0; t < tiles; t++) {
                int32_t part[2 * MAX_ROWS * COLUMNS];
                const uint8_t *from[MAX_ROWS];
                for (size_t r = 0; r < k->rows; r++)
                    from[r] = packed + (t * steps * k->rows + r) * 4;
                if (both == 2)
                    k->product_pairs(from, k->rows, 4 * k->rows, &start, 1, steps, panel,
                                     panel_bytes, part);
                else
                    k->products(from, k->rows, 4 * k->rows, &start, 1, steps, panel, part);
                for (size_t i = 0; i < both; i++)
                    add_columns(part + i * tile_sums, tile_sums,
                                sums + (c + i * COLUMNS) * rows + t * tile_sums);
            }
        }
    }
    if (done) unpack(g, p.tap_bits, columns, rows, sums, factor, values, dw);
    free(sums);
    free(patches);
    free(fours);
    free(packed);
    free(line);
    free(values);
    free(zeros);
    free(panel);
    free(p.room);
    return done;
}
