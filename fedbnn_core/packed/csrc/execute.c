#include "execute.h"

#include "gather.h"

#include <string.h>

typedef struct {
    const fbnn_model *model;
    const operation *op;
    const arena *a;
    uint8_t *scratch;
    int32_t *sums;
    size_t width;      /* columns of the output that are computed */
    size_t begin, end; /* this part's rows or positions of those */
} task;

/* Scratch is cut into regions that start at multiples of 64 bytes. */
static uint64_t region(uint64_t bytes) { return (bytes + 63) / 64 * 64; }

static uint64_t padded_row_bytes(const operation *op, uint64_t pixel) {
    return region((op->in.width + op->pad_left + op->pad_right) * pixel);
}

static uint64_t row_counts(const operation *op) {
    return (uint64_t)op->out.width * pixel_bytes(op->out.channels) * 8;
}

uint64_t fbnn_scratch_bytes(const operation *op) {
    switch (op->kind) {
    case OP_CONV:
        return op->kernel_h * padded_row_bytes(op, op->in.channels * sizeof(double)) +
               region((uint64_t)op->out.width * op->padded * sizeof(float));
    case OP_BCONV:
        if (op->flags & FLAG_DEPTHWISE)
            return op->kernel_h *
                       padded_row_bytes(op, pixel_bytes(op->in.channels)) +
                   region(row_counts(op) * sizeof(uint16_t) + 64);
        return region(CHUNK * op->patch_bytes) +
               region(CHUNK * op->padded * sizeof(uint16_t) + 64) +
               region(fbnn_gather_bytes(op));
    case OP_LINEAR:
        return region((uint64_t)op->fan_in * sizeof(double)) +
               region(op->padded * sizeof(float));
    default: return region(op->padded * sizeof(float));
    }
}

static epilogue epilogue_at(const task *t, size_t position) {
    const operation *op = t->op;
    size_t at = position * op->out.channels;
    epilogue e = {0};
    if (op->kind == OP_BCONV) e.bias = op->bias; /* other sums start with it */
    if (op->kind != OP_LAYERNORM) e.gain = op->gain, e.offset = op->offset;
    e.scale = op->scale;
    e.clamp = op->flags & FLAG_CLAMP;
    if (op->residual != FBNN_NO_SLOT) e.residual = t->a->floats[op->residual] + at;
    if (op->out_float != FBNN_NO_SLOT) e.out = t->a->floats[op->out_float] + at;
    if (op->out_bits != FBNN_NO_SLOT)
        e.bits = t->a->bits[op->out_bits] + position * pixel_bytes(op->out.channels);
    return e;
}

/* Finish n neighbouring positions of a binary convolution. */
static void finish_sums(const task *t, size_t position, size_t n,
                        const uint16_t *counts, size_t count_stride) {
    const operation *op = t->op;
    const kernel_set *k = t->model->kernels;
    size_t channels = op->out.channels, bytes = pixel_bytes(op->out.channels);
    if (t->sums)
        for (size_t i = 0; i < n * channels; i++)
            t->sums[position * channels + i] =
                (int32_t)op->fan_in -
                2 * counts[i / channels * count_stride + i % channels];
    if (op->flags & FLAG_THRESHOLD) {
        k->compare(counts, count_stride, n, op->thresholds, op->flips,
                   t->a->bits[op->out_bits] + position * bytes, bytes);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        epilogue e = epilogue_at(t, position + i);
        k->finish_counts(counts + i * count_stride, op->fan_in, channels, &e);
    }
}

static float input_value(const task *t, image input, size_t at, size_t c) {
    return input.pixels ? t->model->pixel_table[c * 256 + input.pixels[at]]
                        : input.normalized[at];
}

static void run_input(const task *t, image input) {
    const operation *op = t->op;
    size_t channels = op->in.channels, bytes = pixel_bytes(op->in.channels);
    if (op->out_float != FBNN_NO_SLOT) {
        float *out = t->a->floats[op->out_float];
        for (size_t i = t->begin; i < t->end; i++)
            for (size_t c = 0; c < channels; c++)
                out[i * channels + c] = input_value(t, input, i * channels + c, c);
    }
    if (op->out_bits != FBNN_NO_SLOT) {
        uint8_t *out = t->a->bits[op->out_bits];
        for (size_t i = t->begin; i < t->end; i++)
            for (size_t c = 0; c < channels; c += 8) {
                unsigned byte = 0;
                for (size_t b = 0; b < 8 && c + b < channels; b++) {
                    size_t at = i * channels + c + b;
                    byte |= (unsigned)(input_value(t, input, at, c + b) >= 0.0f) << b;
                }
                out[i * bytes + c / 8] = (uint8_t)byte;
            }
    }
}

/* Copy input row `y` (which may lie outside) between its padding. */
static void pad_row(const operation *op, const uint8_t *input, long y, size_t pixel,
                    const uint8_t *padding, uint8_t *row) {
    size_t whole = op->in.width + op->pad_left + op->pad_right;
    int inside = y >= 0 && y < (long)op->in.height;
    for (size_t x = 0; x < whole; x++) {
        if (inside && x == op->pad_left) {
            memcpy(row + x * pixel, input + (size_t)y * op->in.width * pixel,
                   op->in.width * pixel);
            x += op->in.width - 1;
        } else {
            memcpy(row + x * pixel, padding, pixel);
        }
    }
}

static void run_conv(const task *t) {
    const operation *op = t->op;
    size_t channels = op->in.channels, values = op->in.width * channels;
    size_t row = padded_row_bytes(op, channels * sizeof(double));
    float *out = (float *)(void *)(t->scratch + op->kernel_h * row);
    for (size_t y = t->begin; y < t->end; y++) {
        for (size_t i = 0; i < op->kernel_h; i++) {
            long from = (long)(y * op->stride + i) - (long)op->pad_top;
            memset(t->scratch + i * row, 0, row); /* zero padding */
            if (from < 0 || from >= (long)op->in.height) continue;
            double *to = (double *)(void *)(t->scratch + i * row);
            to += op->pad_left * channels;
            const float *input = t->a->floats[op->input] + (size_t)from * values;
            for (size_t x = 0; x < values; x++) to[x] = input[x];
        }
        t->model->kernels->conv((const double *)(const void *)t->scratch,
                                row / sizeof(double), op->stride * channels,
                                op->out.width, op->weights, op->bias, op->kernel_h,
                                op->kernel_w * channels, op->padded, out);
        for (size_t x = 0; x < op->out.width; x++) {
            epilogue e = epilogue_at(t, y * op->out.width + x);
            t->model->kernels->finish_floats(out + x * op->padded, op->out.channels,
                                             &e);
        }
    }
}

static void run_depthwise(const task *t) {
    const operation *op = t->op;
    size_t pixel = pixel_bytes(op->in.channels), row = padded_row_bytes(op, pixel);
    size_t segment = depthwise_segment(op);
    uint16_t *counts = (uint16_t *)(void *)(t->scratch + op->kernel_h * row);
    uint8_t ones[16384 / 8];
    fbnn_one_padding(op->in.channels, ones);
    const uint8_t *taps[15 * 15];
    for (size_t y = t->begin; y < t->end; y++) {
        for (size_t i = 0; i < op->kernel_h; i++)
            pad_row(op, t->a->bits[op->input],
                    (long)(y * op->stride + i) - (long)op->pad_top, pixel, ones,
                    t->scratch + i * row);
        for (size_t x = 0; x < op->out.width; x += segment) {
            size_t n = op->out.width - x < segment ? op->out.width - x : segment;
            for (size_t i = 0; i < op->fan_in; i++)
                taps[i] = t->scratch + i / op->kernel_w * row +
                          (x * op->stride + i % op->kernel_w) * pixel;
            t->model->kernels->depthwise(taps, op->bit_weights, segment * pixel,
                                         op->fan_in, n * pixel,
                                         counts + x * pixel * 8);
        }
        finish_sums(t, y * op->out.width, op->out.width, counts, pixel * 8);
    }
}

static void run_bconv(const task *t) {
    const operation *op = t->op;
    const kernel_set *k = t->model->kernels;
    uint8_t *patches = t->scratch;
    uint16_t *counts = (uint16_t *)(void *)(patches + region(CHUNK * op->patch_bytes));
    gatherer g;
    fbnn_gather_begin(&g, op, t->a->bits[op->input],
                      (uint8_t *)counts +
                          region(CHUNK * op->padded * sizeof(uint16_t) + 64));
    memset(patches, 0, CHUNK * op->patch_bytes);
    size_t blocks = (op->out.channels + k->lanes - 1) / k->lanes;
    for (size_t begin = t->begin; begin < t->end; begin += CHUNK) {
        size_t n = t->end - begin < CHUNK ? t->end - begin : CHUNK;
        size_t y = begin / t->width, x = begin % t->width;
        fbnn_gather(&g, y, x, t->width, n, patches);
        k->mismatches(patches, op->patch_bytes, n, op->bit_weights, blocks, counts,
                      op->padded);
        for (size_t i = 0; i < n; y++, x = 0) {
            size_t run = t->width - x < n - i ? t->width - x : n - i;
            finish_sums(t, y * op->out.width + x, run, counts + i * op->padded,
                        op->padded);
            i += run;
        }
    }
}

/* OR of `size` bytes (at most 8) under the window; flipped twice it is an AND. */
static inline uint64_t any_of(const operation *op, const uint8_t *first, size_t pixel,
                              uint64_t flip, size_t size) {
    uint64_t any = 0;
    for (size_t r = 0; r < op->kernel_h; r++)
        for (size_t c = 0; c < op->kernel_w; c++) {
            uint64_t word = 0;
            memcpy(&word, first + (r * op->in.width + c) * pixel, size);
            any |= word ^ flip;
        }
    return any ^ flip;
}

/* Maximum of bits: OR; channels in the mask take the minimum, an AND. */
static void run_bitpool(const task *t) {
    const operation *op = t->op;
    size_t pixel = pixel_bytes(op->in.channels);
    for (size_t i = t->begin; i < t->end; i++) {
        size_t y = i / op->out.width * op->stride, x = i % op->out.width * op->stride;
        uint8_t *out = t->a->bits[op->out_bits] + i * pixel;
        const uint8_t *first = t->a->bits[op->input] + (y * op->in.width + x) * pixel;
        for (size_t at = 0; at < pixel;) {
            size_t size = pixel - at >= 8 ? 8 : pixel - at >= 4 ? 4 : 1;
            uint64_t flip = 0, word;
            if (op->mask) memcpy(&flip, op->mask + at, size);
            /* Constant sizes let the compiler turn the copies into loads. */
            if (size == 8)
                word = any_of(op, first + at, pixel, flip, 8);
            else if (size == 4)
                word = any_of(op, first + at, pixel, flip, 4);
            else
                word = any_of(op, first + at, pixel, flip, 1);
            memcpy(out + at, &word, size);
            at += size;
        }
    }
}

static void run_maxpool(const task *t) {
    const operation *op = t->op;
    const kernel_set *k = t->model->kernels;
    float *values = (float *)(void *)t->scratch;
    size_t channels = op->in.channels, width = op->in.width;
    for (size_t i = t->begin; i < t->end; i++) {
        size_t y = i / op->out.width * op->stride, x = i % op->out.width * op->stride;
        const float *first = t->a->floats[op->input] + (y * width + x) * channels;
        memcpy(values, first, channels * sizeof(float));
        for (size_t r = 0; r < op->kernel_h; r++)
            for (size_t c = 0; c < op->kernel_w; c++)
                k->max_rows(first + (r * width + c) * channels, channels, values);
        epilogue e = epilogue_at(t, i);
        k->finish_floats(values, channels, &e);
    }
}

static void run_layer_norm(const task *t) {
    const operation *op = t->op;
    const kernel_set *k = t->model->kernels;
    float *values = (float *)(void *)t->scratch;
    size_t channels = op->in.channels;
    for (size_t i = t->begin; i < t->end; i++) {
        k->layer_norm(t->a->floats[op->input] + i * channels, channels, op->gain,
                      op->offset, op->epsilon, values);
        epilogue e = epilogue_at(t, i);
        k->finish_floats(values, channels, &e);
    }
}

static void run_mean(const task *t) {
    const operation *op = t->op;
    float *values = (float *)(void *)t->scratch;
    size_t n = positions(op->in);
    t->model->kernels->add_rows(t->a->floats[op->input], n, op->in.channels, values);
    for (size_t c = 0; c < op->in.channels; c++) values[c] /= (float)n;
    epilogue e = epilogue_at(t, 0);
    t->model->kernels->finish_floats(values, op->in.channels, &e);
}

/* The features are taken channel by channel, as torch's flatten does. */
static void run_linear(const task *t) {
    const operation *op = t->op;
    const kernel_set *k = t->model->kernels;
    double *features = (double *)(void *)t->scratch;
    float *out = (float *)(void *)(t->scratch + region(op->fan_in * sizeof(double)));
    const float *input = t->a->floats[op->input];
    size_t channels = op->in.channels, n = positions(op->in);
    for (size_t c = 0; c < channels; c++)
        for (size_t i = 0; i < n; i++) features[c * n + i] = input[i * channels + c];
    k->conv(features, 0, 0, 1, op->weights, op->bias, 1, op->fan_in, op->padded, out);
    epilogue e = epilogue_at(t, 0);
    k->finish_floats(out, op->out.channels, &e);
}

void fbnn_execute(const fbnn_model *m, const operation *op, image input, const arena *a,
                  uint8_t *scratch, unsigned part, unsigned parts, int32_t *sums) {
    int by_row = op->kind == OP_CONV || op->flags & FLAG_DEPTHWISE;
    size_t height = sums ? op->out.height : op->used_h;
    size_t width = sums ? op->out.width : op->used_w;
    uint64_t units = by_row ? height : (uint64_t)height * width;
    task t = {m, op, a, scratch, sums, width, 0, 0};
    t.begin = (size_t)(units * part / parts);
    t.end = (size_t)(units * (part + 1) / parts);
    if (t.begin == t.end) return;
    switch (op->kind) {
    case OP_INPUT: run_input(&t, input); break;
    case OP_CONV: run_conv(&t); break;
    case OP_BCONV: op->flags & FLAG_DEPTHWISE ? run_depthwise(&t) : run_bconv(&t); break;
    case OP_BITPOOL: run_bitpool(&t); break;
    case OP_MAXPOOL: run_maxpool(&t); break;
    case OP_LAYERNORM: run_layer_norm(&t); break;
    case OP_MEAN: run_mean(&t); break;
    case OP_LINEAR: run_linear(&t); break;
    default: break;
    }
}
