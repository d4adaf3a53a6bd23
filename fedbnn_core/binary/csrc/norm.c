/* Batch norm over integer sums or floats, with a 2 x 2 max-pool before or behind it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "train.h"

/* The largest of 2 x 2 values or, where flip is negative, the smallest. */
static void pool_all(const norm_passes *passes, const geometry *g, const void *values,
                     const float *flip, void *pooled) {
    size_t row = g->wo * g->co * passes->size;
    const char *y = values;
    char *out = pooled;
    for (size_t n = 0; n < g->n; n++, y += g->ho * row)
        for (size_t at = 0; at + 1 < g->ho; at += 2) {
            passes->pool_row(y + at * row, y + (at + 1) * row, g->wo / 2, g->co, flip,
                             out);
            out += g->wo / 2 * g->co * passes->size;
        }
}

static size_t pooled_pixels(const geometry *g) {
    return g->n * (g->ho / 2) * (g->wo / 2);
}

static void flips(const geometry *g, int pool, const float *gamma, float *flip) {
    for (size_t i = 0; i < g->co; i++)
        flip[i] = pool == POOL_AFTER && gamma[i] < 0.0f ? -1.0f : 1.0f;
}

int train_normalize(const train_kernels *k, const geometry *g, int type, const void *y,
                    int pool, const float *gamma, const float *beta, double eps,
                    float *out, double *saved) {
    const norm_passes *passes = &k->norm[type];
    size_t c = g->co, pixels = g->n * g->ho * g->wo;
    double *mean = saved, *variance = saved + c, *inverse = saved + 2 * c;
    double *gain = saved + 3 * c;
    int32_t *part = malloc(2 * c * sizeof *part);
    float *coefficients = malloc(3 * c * sizeof *coefficients);
    void *pooled = pool ? malloc(pooled_pixels(g) * c * passes->size + 1) : NULL;
    int done = part && coefficients && (!pool || pooled);
    if (done) {
        float *narrow = coefficients, *offset = coefficients + c, *flip = offset + c;
        flips(g, pool, gamma, flip);
        if (pool == POOL_BEFORE) {
            pool_all(passes, g, y, flip, pooled);
            y = pooled;
            pixels = pooled_pixels(g);
        }
        memset(mean, 0, 2 * c * sizeof *mean);
        passes->moments(y, pixels, c, g->fan_in, part, mean, variance);
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
            pool_all(passes, g, y, flip, pooled);
            y = pooled;
            pixels = pooled_pixels(g);
        }
        passes->affine(y, pixels, c, narrow, offset, out);
    }
    free(part);
    free(coefficients);
    free(pooled);
    return done;
}

/* dL/dgamma, dL/dbeta and what dL/dy = gain * dz + constant + linear * y needs. The
 * caller frees gain, behind which the other coefficients are; NULL if memory ran out. */
static float *coefficients_of(const norm_passes *passes, const geometry *g,
                              const float *gamma, const double *saved,
                              norm_gradient *norm, float *dgamma, float *dbeta) {
    int pool = norm->pool;
    size_t c = g->co, all = g->n * g->ho * g->wo;
    size_t pixels = pool ? pooled_pixels(g) : all;
    double count = (double)(pool == POOL_BEFORE ? pixels : all);
    const double *mean = saved, *inverse = saved + 2 * c, *gain = saved + 3 * c;
    double *sums = calloc(2 * c, sizeof *sums), *products = sums + c;
    float *narrow = malloc(5 * c * sizeof *narrow);
    void *pooled = pool ? malloc(pixels * c * passes->size + 1) : NULL;
    if (sums && narrow && (!pool || pooled)) {
        float *constant = narrow + c, *linear = constant + c;
        float *flip = linear + c, *centre = flip + c;
        flips(g, pool, gamma, flip);
        for (size_t i = 0; i < c; i++) centre[i] = (float)mean[i];
        if (pool) pool_all(passes, g, norm->y, flip, pooled);
        passes->add_norm_sums(norm->dz, pool ? pooled : norm->y, pixels, c, centre, sums,
                              products);
        for (size_t i = 0; i < c; i++) {
            double slope = gain[i] * (inverse[i] * inverse[i]) * products[i] / -count;
            narrow[i] = (float)gain[i];
            linear[i] = (float)slope;
            constant[i] = (float)(gain[i] * sums[i] / -count - slope * mean[i]);
            dgamma[i] = (float)(products[i] * inverse[i]);
            dbeta[i] = (float)sums[i];
        }
        norm->gain = narrow, norm->constant = constant, norm->linear = linear;
        norm->flip = flip;
    } else {
        free(narrow);
        narrow = NULL;
    }
    free(sums);
    free(pooled);
    return narrow;
}

int train_norm_gradient(const train_kernels *k, const geometry *g, const float *dz,
                        const int16_t *y, int pool, const float *gamma,
                        const double *saved, int levels, const uint32_t key[2],
                        uint8_t *rounded, float *scale, float *dgamma, float *dbeta) {
    norm_gradient norm = {.dz = dz, .y = y, .pool = pool};
    float *coefficients =
        coefficients_of(&k->norm[OF_SUMS], g, gamma, saved, &norm, dgamma, dbeta);
    int done = coefficients && train_round(k, g, &norm, levels, key, rounded, scale);
    free(coefficients);
    return done;
}

int train_float_norm_gradient(const train_kernels *k, const geometry *g,
                              const float *dz, const float *y, int pool,
                              const float *gamma, const double *saved, float *dy,
                              float *dgamma, float *dbeta) {
    const norm_passes *passes = &k->norm[OF_FLOATS];
    norm_gradient norm = {.dz = dz, .y = y, .pool = pool};
    float *coefficients = coefficients_of(passes, g, gamma, saved, &norm, dgamma, dbeta);
    int done = coefficients != NULL;
    size_t rows;
    for (size_t n = 0; done && n < g->n; n++)
        for (size_t at = 0; at < g->ho; at += rows)
            train_gradient_of(passes, g, &norm, n, at, &rows,
                              dy + (n * g->ho + at) * g->wo * g->co);
    free(coefficients);
    return done;
}
