/* Depthwise binary convolution by bit-sliced counting, over the vector `bitvec` that
 * the including file defines: bit i of plane[j] is bit j of channel i's count. */

/* A full adder: *sum and *carry of three one-bit numbers per lane. */
static inline void full_adder(bitvec *sum, bitvec *carry, bitvec a, bitvec b) {
    bitvec half = bitvec_xor(*sum, a);
    *carry = bitvec_or(bitvec_and(*sum, a), bitvec_and(half, b));
    *sum = bitvec_xor(half, b);
}

static inline void ripple(bitvec *planes, int from, int to, bitvec carry) {
    for (int j = from; j < to; j++) {
        bitvec next = bitvec_and(planes[j], carry);
        planes[j] = bitvec_xor(planes[j], carry);
        carry = next;
    }
}

enum { PLANES = 8 }; /* counts of up to 255 taps (kernels of up to 15 x 15) */

static inline bitvec differing(const uint8_t *const *taps, const uint8_t *weights,
                               size_t stride, size_t tap, size_t at) {
    return bitvec_xor(bitvec_load(taps[tap] + at),
                      bitvec_load(weights + tap * stride + at));
}

static inline void count_block(const uint8_t *const *taps, const uint8_t *weights,
                               size_t stride, size_t n_taps, size_t at,
                               bitvec *planes) {
    for (int j = 0; j < PLANES; j++) planes[j] = bitvec_zero();
    size_t t = 0;
    for (; t + 4 <= n_taps; t += 4) {
        bitvec x[4], two_a, two_b, four;
        for (int i = 0; i < 4; i++)
            x[i] = differing(taps, weights, stride, t + (size_t)i, at);
        full_adder(&planes[0], &two_a, x[0], x[1]);
        full_adder(&planes[0], &two_b, x[2], x[3]);
        full_adder(&planes[1], &four, two_a, two_b);
        ripple(planes, 2, PLANES, four);
    }
    for (; t < n_taps; t++)
        ripple(planes, 0, PLANES, differing(taps, weights, stride, t, at));
}

static void depthwise(const uint8_t *const *taps, const uint8_t *weights,
                      size_t weight_stride, size_t n_taps, size_t bytes,
                      uint16_t *counts) {
    enum { WIDTH = sizeof(bitvec) };
    bitvec planes[PLANES];
    size_t at = 0;
    for (; at + WIDTH <= bytes; at += WIDTH) {
        count_block(taps, weights, weight_stride, n_taps, at, planes);
        bitvec_counts(planes, n_taps, counts + at * 8, WIDTH);
    }
    if (at < bytes) {
        /* The last bytes of a row: copied, so that nothing behind them is read. */
        uint8_t inputs[225][WIDTH], filters[225 * WIDTH];
        const uint8_t *rows[225];
        size_t rest = bytes - at;
        memset(filters, 0, n_taps * WIDTH);
        for (size_t t = 0; t < n_taps; t++) {
            memset(inputs[t], 0, WIDTH);
            memcpy(inputs[t], taps[t] + at, rest);
            memcpy(filters + t * WIDTH, weights + t * weight_stride + at, rest);
            rows[t] = inputs[t];
        }
        count_block(rows, filters, WIDTH, n_taps, 0, planes);
        bitvec_counts(planes, n_taps, counts + at * 8, rest);
    }
}
