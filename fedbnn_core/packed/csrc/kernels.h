/* What a kernel set offers; one set per instruction set, chosen when a model opens. */
#ifndef FBNN_KERNELS_H
#define FBNN_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* What follows an operation's raw value v, in this order, each part optional:
 * v += bias; v = fma(v, gain, offset); v *= scale; v += residual;
 * v = clamp(v, -1, 1).
 * One rounding in the affine part: torch's batch norm computes exactly this. */
typedef struct {
    const float *bias, *gain, *offset, *scale, *residual;
    int clamp;
    float *out;    /* NULL: not wanted */
    uint8_t *bits; /* NULL: not wanted; bit = v >= 0 */
} epilogue;

typedef struct {
    const char *name;
    /* Weights of binary convolutions: [block][step][lane][step_bytes], where a block
     * holds `lanes` output channels. */
    size_t lanes, step_bytes;

    /* counts[p * count_stride + c] = bits in which patch p and filter c differ. */
    void (*mismatches)(const uint8_t *patches, size_t patch_bytes, size_t n,
                       const uint8_t *weights, size_t blocks, uint16_t *counts,
                       size_t count_stride);
    /* For each of n positions: bit c = (counts[c] <= thresholds[c]) ^ flips[c].
     * thresholds and flips are padded to whole blocks of 32 channels; counts may be
     * read, but mean nothing, there. A position has `bytes` bytes of bits. */
    void (*compare)(const uint16_t *counts, size_t count_stride, size_t n,
                    const uint16_t *thresholds, const uint8_t *flips, uint8_t *bits,
                    size_t bytes);
    /* Depthwise: counts of 8 * bytes channels; taps[t] points to tap t's input bits,
     * its filters' bits start at weights + t * weight_stride. */
    void (*depthwise)(const uint8_t *const *taps, const uint8_t *weights,
                      size_t weight_stride, size_t n_taps, size_t bytes,
                      uint16_t *counts);

    /* v = fan_in - 2 * counts, then the epilogue. */
    void (*finish_counts)(const uint16_t *counts, uint32_t fan_in, size_t channels,
                          const epilogue *e);
    void (*finish_floats)(const float *values, size_t channels, const epilogue *e);
    /* out[p][c] = bias[c] + sum over (row, x, channel) in this order, in double and
     * rounded once; the input's values are floats that were widened. `padded` is a
     * multiple of 16; input rows are row_stride values apart. */
    void (*conv)(const double *input, size_t row_stride, size_t pixel_stride, size_t n,
                 const float *weights, const float *bias, size_t rows,
                 size_t row_values, size_t padded, float *out);
    /* gamma, beta and out have room for whole vectors of 16. */
    void (*layer_norm)(const float *values, size_t channels, const float *gamma,
                       const float *beta, float epsilon, float *out);
    void (*add_rows)(const float *values, size_t n, size_t channels, float *sum);
    void (*max_rows)(const float *values, size_t channels, float *maximum);
} kernel_set;

/* All kernel files use the same names for these functions. */
#define KERNEL_FUNCTIONS                                                               \
    .compare = compare, .depthwise = depthwise, .finish_counts = finish_counts,        \
    .finish_floats = finish_floats, .conv = conv, .layer_norm = layer_norm,            \
    .add_rows = add_rows, .max_rows = max_rows

extern const kernel_set fbnn_portable;
#if defined(__x86_64__)
extern const kernel_set fbnn_avx2, fbnn_avx512;
#elif defined(__aarch64__)
extern const kernel_set fbnn_neon;
#endif

/* NULL if the CPU has no such kernel set. */
const kernel_set *fbnn_find_kernels(const char *name);

#endif
