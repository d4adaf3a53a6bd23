/* Float kernels, written once over the 16-lane vector v16 that the including file
 * defines for its instruction set. Every sum has one fixed order and nothing is
 * contracted, so all instruction sets give the same bits. Included once per file. */
#include <math.h>
#include <string.h>


static inline v16 load_part(const float *from, size_t n) {
    float full[16] = {0};
    memcpy(full, from, n * sizeof(float));
    return v16_load(full);
}

/* gain, offset and scale are padded to whole vectors; the residual is not. */
static inline v16 finish(v16 v, size_t c, size_t n, const epilogue *e) {
    if (e->gain) v = v16_fma(v, v16_load(e->gain + c), v16_load(e->offset + c));
    if (e->scale) v = v16_mul(v, v16_load(e->scale + c));
    if (e->residual)
        v = v16_add(v, n == 16 ? v16_load(e->residual + c)
                               : load_part(e->residual + c, n));
    if (e->clamp) v = v16_min(v16_max(v, v16_set1(-1.0f)), v16_set1(1.0f));
    return v;
}

static inline void emit(v16 v, size_t c, size_t n, const epilogue *e) {
    if (e->out) {
        if (n == 16) {
            v16_store(e->out + c, v);
        } else {
            float full[16];
            v16_store(full, v);
            memcpy(e->out + c, full, n * sizeof(float));
        }
    }
    if (e->bits) {
        unsigned mask = v16_not_negative(v) & (0xFFFFu >> (16 - n));
        e->bits[c / 8] = (uint8_t)mask;
        if (n > 8) e->bits[c / 8 + 1] = (uint8_t)(mask >> 8);
    }
}

static void finish_counts(const uint16_t *counts, uint32_t fan_in, size_t channels,
                          const epilogue *e) {
    size_t c = 0;
    for (; c + 16 <= channels; c += 16)
        emit(finish(v16_signed_sum(counts + c, fan_in), c, 16, e), c, 16, e);
    if (c < channels) {
        uint16_t full[16] = {0};
        memcpy(full, counts + c, (channels - c) * sizeof(uint16_t));
        size_t n = channels - c;
        emit(finish(v16_signed_sum(full, fan_in), c, n, e), c, n, e);
    }
}

static void finish_floats(const float *values, size_t channels, const epilogue *e) {
    size_t c = 0;
    for (; c + 16 <= channels; c += 16)
        emit(finish(v16_load(values + c), c, 16, e), c, 16, e);
    if (c < channels) {
        size_t n = channels - c;
        emit(finish(load_part(values + c, n), c, n, e), c, n, e);
    }
}

/* `tile` neighbouring outputs share every weight that is loaded. */
static inline __attribute__((always_inline)) void
conv_tile(const float *input, size_t row_stride, size_t pixel_stride,
          const float *weights, const float *bias, size_t rows, size_t row_floats,
          size_t padded, float *out, const int tile) {
    for (size_t c = 0; c < padded; c += 16) {
        v16 sum[4];
        for (int p = 0; p < tile; p++) sum[p] = v16_load(bias + c);
        const float *w = weights + c;
        for (size_t row = 0; row < rows; row++) {
            const float *x = input + row * row_stride;
            for (size_t i = 0; i < row_floats; i++, w += padded) {
                v16 weight = v16_load(w);
                for (int p = 0; p < tile; p++) {
                    v16 value = v16_set1(x[i + (size_t)p * pixel_stride]);
                    sum[p] = v16_add(sum[p], v16_mul(value, weight));
                }
            }
        }
        for (int p = 0; p < tile; p++) v16_store(out + (size_t)p * padded + c, sum[p]);
    }
}

static void conv(const float *input, size_t row_stride, size_t pixel_stride, size_t n,
                 const float *weights, const float *bias, size_t rows,
                 size_t row_floats, size_t padded, float *out) {
    size_t p = 0;
    for (; p + 4 <= n; p += 4)
        conv_tile(input + p * pixel_stride, row_stride, pixel_stride, weights, bias,
                  rows, row_floats, padded, out + p * padded, 4);
    for (; p < n; p++)
        conv_tile(input + p * pixel_stride, row_stride, pixel_stride, weights, bias,
                  rows, row_floats, padded, out + p * padded, 1);
}

static inline float sum_lanes(v16 v) {
    float lane[16], sum = 0.0f;
    v16_store(lane, v);
    for (int i = 0; i < 16; i++) sum += lane[i];
    return sum;
}

static void layer_norm(const float *values, size_t channels, const float *gamma,
                       const float *beta, float epsilon, float *out) {
    size_t whole = channels / 16 * 16, rest = channels - whole;
    v16 sum = v16_set1(0.0f);
    for (size_t c = 0; c < whole; c += 16) sum = v16_add(sum, v16_load(values + c));
    if (rest) sum = v16_add(sum, load_part(values + whole, rest));
    float mean = sum_lanes(sum) / (float)channels;

    v16 squares = v16_set1(0.0f), centre = v16_set1(-mean);
    for (size_t c = 0; c < whole; c += 16) {
        v16 d = v16_add(v16_load(values + c), centre);
        squares = v16_add(squares, v16_mul(d, d));
    }
    if (rest) {
        float d[16] = {0};
        for (size_t i = 0; i < rest; i++) d[i] = values[whole + i] - mean;
        squares = v16_add(squares, v16_mul(v16_load(d), v16_load(d)));
    }
    float variance = sum_lanes(squares) / (float)channels;
    float deviation = sqrtf(variance + epsilon);
    v16 inverse = v16_set1(1.0f / deviation);

    for (size_t c = 0; c < whole; c += 16) {
        v16 d = v16_mul(v16_add(v16_load(values + c), centre), inverse);
        v16_store(out + c, v16_fma(d, v16_load(gamma + c), v16_load(beta + c)));
    }
    if (rest) {
        v16 d = v16_mul(v16_add(load_part(values + whole, rest), centre), inverse);
        float full[16];
        v16_store(full, v16_fma(d, v16_load(gamma + whole), v16_load(beta + whole)));
        memcpy(out + whole, full, rest * sizeof(float));
    }
}

static void add_rows(const float *values, size_t n, size_t channels, float *sum) {
    size_t c = 0;
    for (; c + 16 <= channels; c += 16) {
        v16 total = v16_set1(0.0f);
        for (size_t i = 0; i < n; i++)
            total = v16_add(total, v16_load(values + i * channels + c));
        v16_store(sum + c, total);
    }
    for (; c < channels; c++) {
        float total = 0.0f;
        for (size_t i = 0; i < n; i++) total += values[i * channels + c];
        sum[c] = total;
    }
}

static void max_rows(const float *values, size_t channels, float *maximum) {
    size_t c = 0;
    for (; c + 16 <= channels; c += 16)
        v16_store(maximum + c, v16_max(v16_load(values + c), v16_load(maximum + c)));
    for (; c < channels; c++)
        if (values[c] > maximum[c]) maximum[c] = values[c];
}
