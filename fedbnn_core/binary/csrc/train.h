/* Training of binary convolutions in integers: what the files here share.
 *
 * y = conv(a, b), a and b in {-1, +1}. Backward, g = dL/dy is rounded to at most 8
 * bits, so that both products with it are sums of small integers: exact, and hence the
 * same on every kernel set. Tensors are channels-last (n, h, w, c). */
#ifndef FEDBNN_TRAIN_H
#define FEDBNN_TRAIN_H

#include <stddef.h>
#include <stdint.h>

#include "../../packed/csrc/kernels.h"

enum {
    COLUMNS = 16,  /* columns of one panel of +-1 */
    MAX_ROWS = 12, /* rows of the largest tile */
    ZERO = 128,    /* g is stored plus 128, as an unsigned byte */
    LANES = 8      /* rows of float matrices are whole groups of so many values */
};

static inline size_t whole_lanes(size_t n) { return (n + LANES - 1) / LANES * LANES; }

enum { POOL_NONE, POOL_AFTER, POOL_BEFORE };

/* A convolution with k x k taps, `pad` taps of +1 around the image. A depthwise one has
 * stride 1 and at most 15 x 15 taps. */
typedef struct {
    size_t n, h, w, ci, co, k, stride, pad;
    int depthwise;       /* a filter for each channel of its own */
    size_t fan_in;       /* products in one sum */
    size_t ho, wo;       /* size of the output */
    size_t co4;          /* output channels, whole groups of four */
    size_t low, hg, wg;  /* the stored g: `low` rows and columns of zeros in front */
} geometry;

/* Gradient of a batch norm's input: dy = gain * dz + constant + linear * y. */
typedef struct {
    const float *dz;
    const void *y; /* NULL: no batch norm, dy = dz */
    const float *gain, *constant, *linear;
    const float *flip; /* POOL_AFTER: -1 where the norm turns the order around */
    int pool;
} norm_gradient;

/* Passes of a batch norm over values y, which are int16 sums or floats. */
typedef struct {
    size_t size; /* bytes of a value */
    /* sums[c] += y, squares[c] += y * y; |y| <= bound; `part` has room for 2 channels. */
    void (*moments)(const void *y, size_t pixels, size_t channels, size_t bound,
                    int32_t *part, double *sums, double *squares);
    /* out = y * gain + offset; of 2 x 2 pixels, the largest. */
    void (*affine)(const void *y, size_t n, size_t channels, const float *gain,
                   const float *offset, float *out);
    void (*pool_row)(const void *upper, const void *lower, size_t n, size_t channels,
                     const float *flip, void *out);
    /* sums[c] += dz, products[c] += dz * (y - mean[c]) over n pixels. */
    void (*add_norm_sums)(const float *dz, const void *y, size_t n, size_t channels,
                          const float *mean, double *sums, double *products);
    /* One row of dy or, with a pool, the two rows of a row of windows. */
    void (*gradient_row)(const norm_gradient *g, const float *dz, const void *y,
                         size_t width, size_t channels, float *dy);
    void (*gradient_rows)(const norm_gradient *g, const float *dz, const void *y,
                          size_t width, size_t channels, float *dy);
} norm_passes;

enum { OF_SUMS, OF_FLOATS };

/* The weights of a binary layer: filters of n1 x n2 values, `taps` of them a channel. */
typedef struct {
    size_t filters, n1, n2, taps;
    size_t stride; /* n2, rounded up: a row of `right` and of what is computed */
    const float *w, *w_server, *z_server;
    const float *left, *right; /* a filter X turns to left * X * right */
    float lam, alpha, beta;
    float per_norm, eps;  /* a filter's deviation is norm * per_norm; + eps divides */
    float height, slope;  /* the surrogate's gradient: height - slope * |w~| */
} mixing;

/* Filters X of n1 x n2 values whose rotations are learnt, and room for it. */
typedef struct {
    size_t filters, n1, n2, iterations;
    size_t stride1, stride2; /* n1 and n2, rounded up: rows of what is computed */
    size_t square;           /* values of a matrix with the longer of these rows */
    const float *x;
    float *half, *signs; /* of all filters: X^T R1 and sign(R1^T X R2) */
    float *v, *b;        /* of a filter: (R1^T X R2)^T and its signs */
    float *room;         /* four square matrices */
} turning;

typedef struct {
    const char *name;
    const kernel_set *bits; /* XNOR and popcount, of the packed runtime */
    size_t rows;            /* rows of a full tile */

    /* out[r * COLUMNS + c] = sum over t < runs, s < steps, j < 4 of
     * rows[r][offsets[t] + s * row_step + j] * panel[t][s][c][j]; n <= rows. */
    void (*products)(const uint8_t *const *rows, size_t n, size_t row_step,
                     const ptrdiff_t *offsets, size_t runs, size_t steps,
                     const int8_t *panel, int32_t *out);
    /* The same for two panels, the second `panel_bytes` behind the first, to
     * out[(p * n + r) * COLUMNS + c]; NULL where two calls are as fast. */
    void (*product_pairs)(const uint8_t *const *rows, size_t n, size_t row_step,
                          const ptrdiff_t *offsets, size_t runs, size_t steps,
                          const int8_t *panel, size_t panel_bytes, int32_t *out);
    /* panel[s][c][j] = +-1 of bit c of the patch 4s + j. `fours` holds byte b of four
     * patches at 4b, and the next four patches `stride` bytes on. */
    void (*expand)(const uint8_t *fours, size_t stride, size_t steps, int8_t *panel);

    /* Surrogate gradient in 8 bits: 255 - |x| * steep, 0 below 0 and from limit on. */
    void (*slopes)(const float *x, size_t n, float steep, float limit, uint8_t *out);
    /* y = fan_in - 2 * counts. */
    void (*signed_sums)(const uint16_t *counts, size_t count_stride, size_t n,
                        size_t channels, int fan_in, int16_t *y);
    norm_passes norm[2]; /* of sums and of floats */
    /* The largest |v| as the bits of a float; a NaN is larger than all. */
    uint32_t (*max_abs)(const float *v, size_t n);
    /* Round v * inverse up or down at random; `index` is the first value's counter. */
    void (*round)(const float *v, size_t n, uint32_t index, const uint32_t key[2],
                  float inverse, int levels, uint8_t *out);
    /* out = ((sums - bias) * slopes) * factor over COLUMNS channels or fewer. */
    void (*scale_columns)(const int32_t *sums, const int32_t *bias,
                          const uint8_t *slopes, float factor, size_t n, float *out);
    /* out = a + b, clamped to [-1, 1]; inside[i] = 1 where it needed no clamp. */
    void (*clamped_sum)(const float *a, const float *b, size_t n, float *out,
                        uint8_t *inside);
    void (*mask)(const float *v, const uint8_t *inside, size_t n, float *out);
    /* Rows of a depthwise convolution, see depthwise_passes.h. */
    void (*depthwise_counts)(const uint8_t *a, const uint8_t *w, size_t width,
                             size_t row, size_t k, size_t channels, uint8_t *counts);
    void (*depthwise_sums)(const int16_t *q, const int16_t *w, size_t width, size_t row,
                           size_t k, size_t channels, int16_t *sums);
    void (*depthwise_correlate)(const int16_t *a, const int16_t *q, size_t width,
                                size_t k, size_t channels, int32_t *sums);
    /* w~ and its sign, the latter channels-last; of every filter mean and norm. */
    void (*mix)(const mixing *m, float *scratch, float *mixed, float *moments,
                float *signs);
    /* dL/dw of dL/dsign; dL/dalpha, dL/dbeta, dL/dlambda in `sums`. */
    void (*mix_gradient)(const mixing *m, float *scratch, const float *grad,
                         const float *mixed, const float *moments, float *dw,
                         double sums[3]);
    /* Improve R1 and R2; how far they were from orthogonal. */
    float (*turn)(const turning *l, float *r1, float *r2);
} train_kernels;

/* NULL if there is no such kernel set or this CPU cannot run it; "auto": the best. */
const train_kernels *train_find(const char *name);
const char *const *train_names(void);

extern const train_kernels train_portable;
#if defined(__x86_64__)
extern const train_kernels train_avx2, train_vnni, train_vnni_avx2;
#elif defined(__aarch64__)
extern const train_kernels train_neon;
#endif

/* 0 where the numbers make no convolution that these files handle. */
int train_geometry(geometry *g, const size_t numbers[9]);
size_t train_gradient_bytes(const geometry *g);
size_t train_sign_bytes(const geometry *g);

/* The functions below return 0 where memory ran out. */
void train_signs(const train_kernels *k, const float *x, size_t pixels, size_t channels,
                 float steep, float limit, uint8_t *bits, uint8_t *slopes);
int train_forward(const train_kernels *k, const geometry *g, const uint8_t *bits,
                  const float *weights, int16_t *y);
/* The batch norm of y (sums or floats: `type`), pooled where `pool` says so, to `out`.
 * `saved` receives mean, biased variance, 1 / sigma and gain of the co channels. */
int train_normalize(const train_kernels *k, const geometry *g, int type, const void *y,
                    int pool, const float *gamma, const float *beta, double eps,
                    float *out, double *saved);
/* dL/dgamma, dL/dbeta and dL/dy of a normalized y, given dL/dout: rounded for sums,
 * as it is for floats. */
int train_norm_gradient(const train_kernels *k, const geometry *g, const float *dz,
                        const int16_t *y, int pool, const float *gamma,
                        const double *saved, int levels, const uint32_t key[2],
                        uint8_t *rounded, float *scale, float *dgamma, float *dbeta);
int train_float_norm_gradient(const train_kernels *k, const geometry *g,
                              const float *dz, const float *y, int pool,
                              const float *gamma, const double *saved, float *dy,
                              float *dgamma, float *dbeta);
/* Write rows of dy from row `at` of image `n` on, two if windows are there, to `room`;
 * or find them where they are. */
const float *train_gradient_of(const norm_passes *passes, const geometry *g,
                               const norm_gradient *norm, size_t n, size_t at,
                               size_t *rows, float *room);
int train_round(const train_kernels *k, const geometry *g, const norm_gradient *norm,
                int levels, const uint32_t key[2], uint8_t *rounded, float *scale);
int train_input_gradient(const train_kernels *k, const geometry *g,
                         const uint8_t *rounded, const int8_t *weights,
                         const uint8_t *slopes, float factor, float *dx);
int train_weight_gradient(const train_kernels *k, const geometry *g,
                          const uint8_t *rounded, const uint8_t *bits, float factor,
                          float *dw);

/* The same three of a depthwise convolution; the functions above call them. */
int train_depthwise_forward(const train_kernels *k, const geometry *g,
                            const uint8_t *bits, const float *weights, int16_t *y);
int train_depthwise_input_gradient(const train_kernels *k, const geometry *g,
                                   const uint8_t *rounded, const int8_t *weights,
                                   const uint8_t *slopes, float factor, float *dx);
int train_depthwise_weight_gradient(const train_kernels *k, const geometry *g,
                                    const uint8_t *rounded, const uint8_t *bits,
                                    float factor, float *dw);

/* `m` without left, right and stride; these follow from the layer's R1 and R2. */
int train_mix(const train_kernels *k, mixing m, const float *r1, const float *r2,
              float *mixed, float *moments, float *signs);
int train_mix_gradient(const train_kernels *k, mixing m, const float *r1,
                       const float *r2, const float *grad, const float *mixed,
                       const float *moments, float *dw, double sums[3]);
/* `l` with sizes and x only. R1 (n1 x n1) and R2 are improved in place. */
int train_turn(const train_kernels *k, turning l, float *r1, float *r2,
               float *deviation);

#endif
