/* Read an operation's numbers and put them into the layout that its kernel wants. */
#include "reader.h"

#include <math.h>
#include <stdlib.h>

fbnn_status fbnn_reserve(fbnn_model *m, uint64_t count, size_t size, void *to) {
    REQUIRE(count <= FBNN_MAX_MEMORY / size, FBNN_ERROR_LIMIT);
    m->weight_bytes += count * size;
    REQUIRE(m->weight_bytes <= FBNN_MAX_MEMORY, FBNN_ERROR_LIMIT);
    void *memory = calloc(count ? (size_t)count : 1, size);
    REQUIRE(memory, FBNN_ERROR_MEMORY);
    memcpy(to, &memory, sizeof memory);
    return FBNN_OK;
}

/* Read n floats into new memory for `padded` ones; the rest is zero. */
static fbnn_status take_floats(cursor *file, fbnn_model *m, size_t n, size_t padded,
                               float **to) {
    const uint8_t *from;
    TRY(take(file, (uint64_t)n * 4, &from));
    TRY(fbnn_reserve(m, padded, sizeof(float), to));
    for (size_t i = 0; i < n; i++) {
        (*to)[i] = float_at(from + 4 * i);
        REQUIRE(isfinite((*to)[i]), FBNN_ERROR_VALUE);
    }
    return FBNN_OK;
}

static void copy_bit(uint8_t *to, size_t to_bit, const uint8_t *from, uint64_t bit) {
    to[to_bit / 8] |= (uint8_t)((from[bit / 8] >> (bit % 8) & 1) << (to_bit % 8));
}

/* Put filter `c` of a dense binary convolution into the kernel's layout. */
static void place_filter(const operation *op, const kernel_set *k, uint32_t c,
                         const uint8_t *patch) {
    size_t steps = op->patch_bytes / k->step_bytes;
    uint8_t *block = op->bit_weights + c / k->lanes * op->patch_bytes * k->lanes;
    for (size_t s = 0; s < steps; s++)
        memcpy(block + (s * k->lanes + c % k->lanes) * k->step_bytes,
               patch + s * k->step_bytes, k->step_bytes);
}

static fbnn_status take_dense_bits(cursor *file, operation *op, fbnn_model *m) {
    uint32_t taps = op->kernel_h * op->kernel_w, channels = op->in.channels;
    const uint8_t *from;
    uint64_t bits = (uint64_t)op->out.channels * op->fan_in;
    TRY(take(file, (bits + 7) / 8, &from));
    op->patch_bytes =
        round_up(raw_patch_bytes(taps, channels), m->kernels->step_bytes);
    TRY(fbnn_reserve(m, (uint64_t)op->padded * op->patch_bytes, 1, &op->bit_weights));
    uint8_t *patch = malloc(op->patch_bytes);
    REQUIRE(patch, FBNN_ERROR_MEMORY);
    size_t tap_bits = channels < 8 ? channels : pixel_bytes(channels) * 8;
    for (uint32_t c = 0; c < op->out.channels; c++) {
        memset(patch, 0, op->patch_bytes);
        uint64_t bit = (uint64_t)c * op->fan_in;
        for (uint32_t t = 0; t < taps; t++)
            for (uint32_t i = 0; i < channels; i++)
                copy_bit(patch, t * tap_bits + i, from, bit++);
        place_filter(op, m->kernels, c, patch);
    }
    free(patch);
    return FBNN_OK;
}

/* Depthwise weights: [tap][channel bits], repeated for the pixels of a segment. */
static fbnn_status take_depthwise_bits(cursor *file, operation *op, fbnn_model *m) {
    uint32_t taps = op->fan_in, channels = op->in.channels;
    const uint8_t *from;
    TRY(take(file, ((uint64_t)channels * taps + 7) / 8, &from));
    size_t pixel = pixel_bytes(channels), copies = depthwise_segment(op);
    size_t row = pixel * copies;
    TRY(fbnn_reserve(m, (uint64_t)taps * row, 1, &op->bit_weights));
    for (uint32_t t = 0; t < taps; t++) {
        uint8_t *first = op->bit_weights + t * row;
        for (uint32_t c = 0; c < channels; c++)
            copy_bit(first, c, from, (uint64_t)c * taps + t);
        for (size_t x = 1; x < copies; x++)
            memcpy(first + x * pixel, first, pixel);
    }
    return FBNN_OK;
}

/* bit = (sum >= t) ^ flip, where sum = fan_in - 2 * mismatches, becomes
 * bit = (mismatches <= floor((fan_in - t) / 2)) ^ flip. A threshold above fan_in is
 * never reached: that is "always", flipped. */
static fbnn_status take_thresholds(cursor *file, operation *op, fbnn_model *m) {
    const uint8_t *from, *flips;
    size_t channels = op->out.channels, lanes = op->padded;
    TRY(take(file, channels * 2, &from));
    TRY(take(file, pixel_bytes(op->out.channels), &flips));
    TRY(fbnn_reserve(m, lanes, sizeof(uint16_t), &op->thresholds));
    TRY(fbnn_reserve(m, lanes / 8, 1, &op->flips));
    int32_t n = (int32_t)op->fan_in;
    for (size_t c = 0; c < lanes; c++) {
        unsigned flip = 1; /* lanes behind the last channel: constantly 0 */
        op->thresholds[c] = UINT16_MAX;
        if (c < channels) {
            uint32_t raw = u16_at(from + 2 * c);
            int32_t t = raw < 0x8000 ? (int32_t)raw : (int32_t)raw - 0x10000;
            REQUIRE(t >= -n && t <= n + 1, FBNN_ERROR_VALUE);
            flip = flips[c / 8] >> (c % 8) & 1;
            if (t == n + 1)
                flip ^= 1;
            else
                op->thresholds[c] = (uint16_t)((n - t) / 2);
        }
        op->flips[c / 8] |= (uint8_t)(flip << (c % 8));
    }
    return FBNN_OK;
}

/* Float convolution weights, stored [row][x][channel][output]. */
static fbnn_status take_conv_weights(cursor *file, operation *op, fbnn_model *m) {
    size_t inputs = (size_t)op->kernel_h * op->kernel_w * op->in.channels;
    const uint8_t *from;
    TRY(take(file, (uint64_t)inputs * op->out.channels * 4, &from));
    TRY(fbnn_reserve(m, (uint64_t)inputs * op->padded, sizeof(float), &op->weights));
    for (size_t i = 0; i < inputs; i++)
        for (size_t c = 0; c < op->out.channels; c++) {
            float w = float_at(from + 4 * (i * op->out.channels + c));
            REQUIRE(isfinite(w), FBNN_ERROR_VALUE);
            op->weights[i * op->padded + c] = w;
        }
    return FBNN_OK;
}

/* Linear weights, stored [output][input], as floats or as int8 with one scale per
 * output; kept transposed, so that outputs are neighbours. */
static fbnn_status take_linear_weights(cursor *file, operation *op, fbnn_model *m) {
    size_t inputs = positions(op->in) * op->in.channels, outputs = op->out.channels;
    int int8 = op->flags & FLAG_INT8;
    const uint8_t *from, *scales = NULL;
    TRY(take(file, (uint64_t)inputs * outputs * (int8 ? 1 : 4), &from));
    if (int8) TRY(take(file, outputs * 4, &scales));
    TRY(fbnn_reserve(m, (uint64_t)inputs * op->padded, sizeof(float), &op->weights));
    for (size_t c = 0; c < outputs; c++)
        for (size_t i = 0; i < inputs; i++) {
            size_t at = c * inputs + i;
            float w = int8 ? (float)(from[at] < 128 ? from[at] : from[at] - 256) *
                                 float_at(scales + 4 * c)
                           : float_at(from + 4 * at);
            REQUIRE(isfinite(w), FBNN_ERROR_VALUE);
            op->weights[i * op->padded + c] = w;
        }
    return FBNN_OK;
}

fbnn_status fbnn_take_tensors(cursor *file, operation *op, fbnn_model *m) {
    size_t channels = op->out.channels, padded = op->padded;
    const uint8_t *from;
    switch (op->kind) {
    case OP_CONV: TRY(take_conv_weights(file, op, m)); break;
    case OP_LINEAR: TRY(take_linear_weights(file, op, m)); break;
    case OP_BCONV:
        TRY(op->flags & FLAG_DEPTHWISE ? take_depthwise_bits(file, op, m)
                                       : take_dense_bits(file, op, m));
        break;
    case OP_LAYERNORM: {
        TRY(take(file, 4, &from));
        op->epsilon = float_at(from);
        REQUIRE(isfinite(op->epsilon) && op->epsilon >= 0.0f, FBNN_ERROR_VALUE);
        TRY(take_floats(file, m, channels, padded, &op->gain));
        TRY(take_floats(file, m, channels, padded, &op->offset));
        break;
    }
    default: break;
    }
    /* Float sums start with the bias, be it zero. */
    if (op->kind == OP_CONV || op->kind == OP_LINEAR || op->flags & FLAG_BIAS)
        TRY(take_floats(file, m, op->flags & FLAG_BIAS ? channels : 0, padded, &op->bias));
    if (op->flags & FLAG_THRESHOLD) TRY(take_thresholds(file, op, m));
    if (op->flags & FLAG_AFFINE) {
        TRY(take_floats(file, m, channels, padded, &op->gain));
        TRY(take_floats(file, m, channels, padded, &op->offset));
    }
    if (op->flags & FLAG_SCALE) TRY(take_floats(file, m, channels, padded, &op->scale));
    if (op->flags & FLAG_MASK) {
        TRY(take(file, pixel_bytes(op->out.channels), &from));
        TRY(fbnn_reserve(m, pixel_bytes(op->out.channels), 1, &op->mask));
        memcpy(op->mask, from, pixel_bytes(op->out.channels));
        if (channels % 8) /* bits behind the last channel stay 0 */
            op->mask[channels / 8] &= (uint8_t)((1u << channels % 8) - 1);
    }
    return FBNN_OK;
}

