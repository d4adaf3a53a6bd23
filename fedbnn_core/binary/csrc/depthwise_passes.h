/* Passes of a depthwise convolution over one row of pixels; `passes.h` includes this.
 *
 * A vector holds channels, which here never meet: `channels` is a whole number of
 * vectors. One weight serves NEAR pixels while it is in a register. A count needs
 * k * k <= 255 and a sum k * k * 127 < 2^15. (Measured on a Cascade Lake with other work
 * on it, 7 x 7, 28 x 28, 96 channels: with AVX2 47 GMAC/s forward, 13 and 10 backward;
 * with wide registers 48, 29 and 28.) */

enum { NEAR = 4, TAPS = 7, LONGEST = 256 };
#ifdef WIDE_REGISTERS
enum { VECTOR = 64 };
#else
enum { VECTOR = 32 };
#endif
enum { BYTES = 32, SHORTS = VECTOR / 2 };
typedef uint8_t bytes __attribute__((vector_size(BYTES), aligned(1), may_alias));
typedef int16_t shorts __attribute__((vector_size(VECTOR), aligned(2), may_alias));

/* counts[x][c]: at how many taps the signs a and w, bytes 0 or 1, differ. */
static inline __attribute__((always_inline)) void
count_pixels(const uint8_t *a, const uint8_t *w, size_t row, size_t k, size_t channels,
             uint8_t *counts, const int pixels) {
    bytes sum[NEAR] = {{0}};
    for (size_t y = 0; y < k; y++, a += row)
        for (size_t x = 0; x < k; x++, w += channels) {
            bytes sign = *(const bytes *)w;
            for (int j = 0; j < pixels; j++)
                sum[j] += *(const bytes *)(a + (x + (size_t)j) * channels) ^ sign;
        }
    for (int j = 0; j < pixels; j++) *(bytes *)(counts + (size_t)j * channels) = sum[j];
}

static void depthwise_counts(const uint8_t *a, const uint8_t *w, size_t width,
                             size_t row, size_t k, size_t channels, uint8_t *counts) {
    for (size_t c = 0; c < channels; c += BYTES, a += BYTES, w += BYTES) {
        uint8_t *to = counts + c;
        size_t x = 0;
        for (; x + NEAR <= width; x += NEAR)
            count_pixels(a + x * channels, w, row, k, channels, to + x * channels, NEAR);
        for (; x < width; x++)
            count_pixels(a + x * channels, w, row, k, channels, to + x * channels, 1);
    }
}

/* sums[x][c] of the products q * w over the taps. */
static inline __attribute__((always_inline)) void
sum_pixels(const int16_t *q, const int16_t *w, size_t row, size_t k, size_t channels,
           int16_t *sums, const int pixels) {
    shorts sum[NEAR] = {{0}};
    for (size_t y = 0; y < k; y++, q += row)
        for (size_t x = 0; x < k; x++, w += channels) {
            shorts sign = *(const shorts *)w;
            for (int j = 0; j < pixels; j++)
                sum[j] += *(const shorts *)(q + (x + (size_t)j) * channels) * sign;
        }
    for (int j = 0; j < pixels; j++) *(shorts *)(sums + (size_t)j * channels) = sum[j];
}

static void depthwise_sums(const int16_t *q, const int16_t *w, size_t width, size_t row,
                           size_t k, size_t channels, int16_t *sums) {
    for (size_t c = 0; c < channels; c += SHORTS, q += SHORTS, w += SHORTS) {
        int16_t *to = sums + c;
        size_t x = 0;
        for (; x + NEAR <= width; x += NEAR)
            sum_pixels(q + x * channels, w, row, k, channels, to + x * channels, NEAR);
        for (; x < width; x++)
            sum_pixels(q + x * channels, w, row, k, channels, to + x * channels, 1);
    }
}

/* sums[t][c] += a[x + t][c] * q[x][c] over at most LONGEST pixels of a row. */
static inline __attribute__((always_inline)) void
correlate_taps(const int16_t *a, const int16_t *q, size_t width, size_t channels,
               int32_t *sums, const int taps) {
    shorts sum[TAPS] = {{0}};
    for (size_t x = 0; x < width; x++, a += channels, q += channels) {
        shorts g = *(const shorts *)q;
        for (int t = 0; t < taps; t++)
            sum[t] += *(const shorts *)(a + (size_t)t * channels) * g;
    }
    for (int t = 0; t < taps; t++)
        for (int i = 0; i < SHORTS; i++) sums[(size_t)t * channels + (size_t)i] += sum[t][i];
}

static void depthwise_correlate(const int16_t *a, const int16_t *q, size_t width,
                                size_t k, size_t channels, int32_t *sums) {
    for (size_t first = 0; first < width; first += LONGEST) {
        size_t n = width - first < LONGEST ? width - first : LONGEST;
        for (size_t c = 0; c < channels; c += SHORTS) {
            const int16_t *from = a + first * channels + c, *g = q + first * channels + c;
            int32_t *to = sums + c;
            size_t t = 0;
            for (; t + TAPS <= k; t += TAPS, from += TAPS * channels, to += TAPS * channels)
                correlate_taps(from, g, n, channels, to, TAPS);
            for (; t < k; t++, from += channels, to += channels)
                correlate_taps(from, g, n, channels, to, 1);
        }
    }
}
