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

/* All but the residual are padded to whole vectors. */
static inline v16 finish(v16 v, size_t c, size_t n, const epilogue *e) {
    if (e->bias) v = v16_add(v, v16_load(e->bias + c));
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

/* `tile` neighbouring outputs share every weight that is loaded. A product of two
 * floats is exact in a double, so a fused step rounds as two separate ones do. */
static inline __attribute__((always_inline)) void
conv_tile(const double *input, size_t row_stride, size_t pixel_stride,
          const float *weights, const float *bias, size_t rows, size_t row_values,
          size_t padded, float *out, const int tile, const int wide) {
    for (size_t c = 0; c < padded; c += 8 * (size_t)wide) {
        d8 sum[CONV_TILE][2];
        for (int p = 0; p < tile; p++)
            for (int v = 0; v < wide; v++) sum[p][v] = d8_widen(bias + c + 8 * v);
        const float *w = weights + c;
        for (size_t row = 0; row < rows; row++) {
            const double *x = input + row * row_stride;
            for (size_t i = 0; i < row_values; i++, w += padded)
                for (int v = 0; v < wide; v++) {
                    d8 weight = d8_widen(w + 8 * v);
                    for (int p = 0; p < tile; p++) {
                        d8 value = d8_set1(x[i + (size_t)p * pixel_stride]);
                        sum[p][v] = d8_fma(value, weight, sum[p][v]);
                    }
                }
        }
        for (int p = 0; p < tile; p++)
            for (int v = 0; v < wide; v++)
                d8_narrow(out + (size_t)p * padded + c + 8 * v, sum[p][v]);
    }
}

static void conv(const double *input, size_t row_stride, size_t pixel_stride, size_t n,
                 const float *weights, const float *bias, size_t rows,
                 size_t row_values, size_t padded, float *out) {
    size_t p = 0;
    for (; p + CONV_TILE <= n; p += CONV_TILE)
        conv_tile(input + p * pixel_stride, row_stride, pixel_stride, weights, bias,
                  rows, row_values, padded, out + p * padded, CONV_TILE, 1);
    for (; p < n; p++)
        conv_tile(input + p * pixel_stride, row_stride, pixel_stride, weights, bias,
                  rows, row_values, padded, out + p * padded, 1, 2);
}

typedef struct {
    d8 low, high;
} lanes;

static inline lanes widen(const float *values, size_t n) {
    float full[16] = {0};
    if (n < 16) values = memcpy(full, values, n * sizeof(float));
    lanes r = {d8_widen(values), d8_widen(values + 8)};
    return r;
}

static inline double sum_lanes(lanes v) {
    double lane[16], sum = 0.0;
    d8_store(lane, v.low);
    d8_store(lane + 8, v.high);
    for (int i = 0; i < 16; i++) sum += lane[i];
    return sum;
}

/* In double, so that the sign of the result does not depend on the order in which
 * another implementation sums. */
static void layer_norm(const float *values, size_t channels, const float *gamma,
                       const float *beta, float epsilon, float *out) {
    lanes sum = {d8_set1(0.0), d8_set1(0.0)};
    for (size_t c = 0; c < channels; c += 16) {
        lanes x = widen(values + c, channels - c);
        sum.low = d8_add(sum.low, x.low);
        sum.high = d8_add(sum.high, x.high);
    }
    double mean = sum_lanes(sum) / (double)channels;

    lanes squares = {d8_set1(0.0), d8_set1(0.0)};
    d8 centre = d8_set1(-mean);
    size_t whole = channels / 16 * 16, rest = channels - whole;
    for (size_t c = 0; c < whole; c += 16) {
        lanes x = widen(values + c, 16);
        d8 low = d8_add(x.low, centre), high = d8_add(x.high, centre);
        squares.low = d8_add(squares.low, d8_mul(low, low));
        squares.high = d8_add(squares.high, d8_mul(high, high));
    }
    double total = 0.0, lane[16];
    d8_store(lane, squares.low);
    d8_store(lane + 8, squares.high);
    for (size_t i = 0; i < 16; i++) {
        double d = i < rest ? values[whole + i] - mean : 0.0;
        total += lane[i] + d * d;
    }
    double deviation = sqrt(total / (double)channels + (double)epsilon);

    d8 inverse = d8_set1(1.0 / deviation);
    for (size_t c = 0; c < channels; c += 16) {
        lanes x = widen(values + c, channels - c);
        lanes g = widen(gamma + c, 16), b = widen(beta + c, 16);
        d8 low = d8_mul(d8_add(x.low, centre), inverse);
        d8 high = d8_mul(d8_add(x.high, centre), inverse);
        d8_narrow(out + c, d8_add(d8_mul(low, g.low), b.low));
        d8_narrow(out + c + 8, d8_add(d8_mul(high, g.high), b.high));
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
