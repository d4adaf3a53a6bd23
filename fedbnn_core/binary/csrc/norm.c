/* Batch norm over integer sums, with a 2 x 2 max-pool before or behind it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train.h"

/* The largest of 2 x 2 sums or, where flip is negative, the smallest. */
static void pool_all(const train_kernels *k, const geometry *g, const int16_t *y,
                     const float *flip, int16_t *out) {
    size_t row = g->wo * g->co;
    for (size_t n = 0; n < g->n; n++, y += g->ho * row)
        for (size_t at = 0; at + 1 < g->ho; at += 2, out += g->wo / 2 * g->co)
            k->pool_row(y + at * row, y + (at + 1) * row, g->wo / 2, g->co, flip, out);
}

static size_t pooled_pixels(const geometry *g) {
    return g->n * (g->ho / 2) * (g->wo / 2);
}

/* Exact: sums of squares go to float64 before 32 bits overflow, and stay whole there
 * below 2^53. */
static void moments(const train_kernels *k, const int16_t *y, size_t pixels,
                    const geometry *g, int32_t *part, double *sums, double *squares) {
    size_t c = g->co, bound = g->k * g->k * g->ci;
    size_t group = (size_t)INT32_MAX / (bound * bound);
    if (group < 1) group = 1;
    memset(sums, 0, c * sizeof *sums);
    memset(squares, 0, c * sizeof *squares);
    for (size_t first = 0; first < pixels; first += group) {
        size_t n = pixels - first < group ? pixels - first : group;
        memset(part, 0, 2 * c * sizeof *part);
        k->add_moments(y + first * c, n, c, part, part + c);
        for (size_t i = 0; i < c; i++) {
            sums[i] += part[i];
            squares[i] += part[c + i];
        }
    }
}

int train_normalize(const train_kernels *k, const geometry *g, const int16_t *y,
                    int pool, const float *gamma, const float *beta, double eps,
                    float *out, double *saved) {
    size_t c = g->co, pixels = g->n * g->ho * g->wo;
    double *mean = saved, *variance = saved + c, *inverse = saved + 2 * c;
    double *gain = saved + 3 * c;
    int32_t *part = malloc(2 * c * sizeof *part);
    float *coefficients = malloc(3 * c * sizeof *coefficients);
    int16_t *pooled = pool ? malloc(pooled_pixels(g) * c * sizeof *pooled + 1) : NULL;
    int done = part && coefficients && (!pool || pooled);
    if (done) {
        float *narrow = coefficients, *offset = coefficients + c, *flip = offset + c;
        for (size_t i = 0; i < c; i++)
            flip[i] = pool == POOL_AFTER && gamma[i] < 0.0f ? -1.0f : 1.0f;
        if (pool == POOL_BEFORE) {
            pool_all(k, g, y, flip, pooled);
            y = pooled;
            pixels = pooled_pixels(g);
        }
        moments(k, y, pixels, g, part, mean, variance);
        for (size_t i = 0; i < c; i++) {
            mean[i] /= (double)pixels;
            variance[i] = variance[i] / (double)pixels - mean[i] * mean[i];
            if (variance[i] < 0.0) variance[i] = 0.0;
            inverse[i] = 1.0 / sqrt(variance[i] + eps);
            gain[i] = (double)gamma[i] * inverse[i];
            narrow[i] = (float)gain[i];
            offset[i] = (float)((double)beta[i] - mean[i] * gain[i]);
        }
        if (pool == POOL_AFTER) {
            pool_all(k, g, y, flip, pooled);
            y = pooled;
            pixels = pooled_pixels(g);
        }
        k->affine(y, pixels, c, narrow, offset, out);
    }
    free(part);
    free(coefficients);
    free(pooled);
    return done;
}

int train_norm_gradient(const train_kernels *k, const geometry *g, const float *dz,
                        const int16_t *y, int pool, const float *gamma,
                        const double *saved, int levels, const uint32_t key[2],
                        uint8_t *rounded, float *scale, float *dgamma, float *dbeta) {
    size_t c = g->co, all = g->n * g->ho * g->wo;
    size_t pixels = pool ? pooled_pixels(g) : all;
    double count = (double)(pool == POOL_BEFORE ? pixels : all);
    const double *mean = saved, *inverse = saved + 2 * c, *gain = saved + 3 * c;
    double *sums = calloc(2 * c, sizeof *sums), *products = sums + c;
    float *coefficients = malloc(5 * c * sizeof *coefficients);
    int16_t *pooled = pool ? malloc(pixels * c * sizeof *pooled + 1) : NULL;
    int done = sums && coefficients && (!pool || pooled);
    if (done) {
        float *narrow = coefficients, *constant = narrow + c, *linear = constant + c;
        float *flip = linear + c, *centre = flip + c;
        for (size_t i = 0; i < c; i++) {
            flip[i] = pool == POOL_AFTER && gamma[i] < 0.0f ? -1.0f : 1.0f;
            centre[i] = (float)mean[i];
        }
        if (pool) pool_all(k, g, y, flip, pooled);
        k->add_norm_sums(dz, pool ? pooled : y, pixels, c, centre, sums, products);
        for (size_t i = 0; i < c; i++) {
            double slope = gain[i] * (inverse[i] * inverse[i]) * products[i] / -count;
            narrow[i] = (float)gain[i];
            linear[i] = (float)slope;
            constant[i] = (float)(gain[i] * sums[i] / -count - slope * mean[i]);
            dgamma[i] = (float)(products[i] * inverse[i]);
            dbeta[i] = (float)sums[i];
        }
        const norm_gradient norm = {dz, y, narrow, constant, linear, flip, pool};
        done = train_round(k, g, &norm, levels, key, rounded, scale);
    }
    free(sums);
    free(coefficients);
    free(pooled);
    return done;
}
