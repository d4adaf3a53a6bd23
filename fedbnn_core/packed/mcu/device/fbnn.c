#include "fbnn.h"

#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "network.c holds little-endian words"
#endif
#ifdef __FAST_MATH__
#error "compile fbnn.c without -ffast-math: its sums have a fixed order"
#endif
/* -Os makes calls of small steps, and puts inner loops among the variables of others. */
#ifdef __GNUC__
#define INLINE static inline __attribute__((always_inline))
#define SEPARATE static __attribute__((noinline))
#else
#define INLINE static inline
#define SEPARATE static
#endif
_Static_assert(sizeof(float) == 4 && sizeof(int) >= 4, "a chip with 32 bits");
_Static_assert(-3 >> 1 == -2, "shifts of negative numbers round down");

/* Float arithmetic with integers.
 *
 * The file format asks for sums in binary64 and for fused multiply-adds. Chips have
 * neither, so both are done here with 64-bit integers, and round as they would. */

typedef struct {
    int64_t m;
    int32_t e;
} number; /* m * 2^e; 2^60 <= |m| < 2^62, or 0 */

typedef struct {
    int32_t m;
    int32_t e;
} parts; /* of a float: m * 2^e; 2^23 <= |m| < 2^24, or 0 with an e below all others */

INLINE parts split(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t m = bits & 0x7FFFFFu;
    int32_t e = (int32_t)(bits >> 23 & 0xFF);
    if (e) {
        m |= 0x800000u;
    } else if (m) {
        for (e = 1; m < 0x800000u; e--) m <<= 1;
    } else {
        e = -1000;
    }
    parts p = {bits >> 31 ? -(int32_t)m : (int32_t)m, e - 150};
    return p;
}

static inline number widen(parts p) {
    number n = {(int64_t)p.m * ((int64_t)1 << 38), p.e - 38};
    return n;
}

/* Exact: 24 bits times 24 bits. */
static inline number product(parts a, parts b) {
    number n = {(int64_t)a.m * b.m * (1 << 14), a.e + b.e - 14};
    return n;
}

/* |m| < 2^63. Bits that are shifted out leave a trace in the lowest one, far below the
 * bits that rounding keeps: an operand loses bits only if it is 2^9 times smaller. */
static inline number add(number a, number b) {
    if (!a.m) return b;
    if (!b.m) return a;
    if (a.e < b.e) {
        number swap = a;
        a = b;
        b = swap;
    }
    int32_t shift = a.e - b.e < 62 ? a.e - b.e : 62;
    int64_t moved = b.m >> shift;
    if (b.m & (((int64_t)1 << shift) - 1)) moved |= 1;
    a.m += moved;
    return a;
}

static inline int length(uint64_t u) {
#ifdef __GNUC__
    return 64 - __builtin_clzll(u);
#else
    int n = 0;
    for (; u; u >>= 1) n++;
    return n;
#endif
}

/* Drop the lowest bits; to the nearest, halves to the even number. */
static inline uint64_t drop_bits(uint64_t u, int drop) {
    uint64_t half = (uint64_t)1 << (drop - 1), rest = u & (2 * half - 1);
    u >>= drop;
    return u + (rest > half || (rest == half && u & 1));
}

/* Round to 53 bits, as binary64 does. */
static inline number round_double(number a) {
    if (!a.m) return a;
    uint64_t u = a.m < 0 ? (uint64_t)0 - (uint64_t)a.m : (uint64_t)a.m;
    int n = length(u);
    if (n > 53) {
        u = drop_bits(u, n - 53) << (n - 53);
        n += (int)(u >> n);
    }
    if (n > 62) {
        u >>= n - 62;
    } else {
        u <<= 62 - n;
    }
    a.e += n - 62;
    a.m = a.m < 0 ? -(int64_t)u : (int64_t)u;
    return a;
}

/* Round to the nearest float. */
static float narrow(number a) {
    uint32_t bits = 0;
    if (a.m) {
        uint64_t u = a.m < 0 ? (uint64_t)0 - (uint64_t)a.m : (uint64_t)a.m;
        int32_t n = length(u), top = n - 1 + a.e; /* 2^top <= |a| < 2^(top + 1) */
        int32_t drop = n - 24, exponent = top + 126;
        if (exponent < 0) { /* a subnormal number has fewer bits */
            drop -= exponent;
            exponent = 0;
        }
        uint32_t m = 0;
        if (drop > 0)
            m = drop < 64 ? (uint32_t)drop_bits(u, drop) : 0;
        else
            m = (uint32_t)(u << -drop);
        /* A carry out of m moves into the exponent. */
        bits = top > 127 ? 0x7F800000u : ((uint32_t)exponent << 23) + m;
        if (a.m < 0) bits |= 0x80000000u;
    }
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* x * gain + offset, rounded once. */
static float multiply_add(float x, float gain, float offset) {
#ifdef __ARM_FEATURE_FMA
    return __builtin_fmaf(x, gain, offset);
#else
    return narrow(add(product(split(x), split(gain)), widen(split(offset))));
#endif
}

/* Weights of a float layer: they come as floats or as int8 with a unit. */
typedef struct {
    const void *at;
    float unit;
    int small;
} weights;

INLINE parts weight(const weights *w, uint32_t i) {
    if (w->small) return split((float)((const int8_t *)w->at)[i] * w->unit);
    return split(((const float *)w->at)[i]);
}

/* bias + a[0] w[0] + a[1] w[1] + ..., each step rounded as binary64 does it. */
SEPARATE float sum_in_order(const parts *a, const weights *w, uint32_t n, parts bias) {
    number sum = widen(bias);
    for (uint32_t i = 0; i < n; i++) {
        parts b = weight(w, i);
        if (a[i].m && b.m) sum = round_double(add(sum, product(a[i], b)));
    }
    return narrow(sum);
}

/* The same number, faster. With `top` no smaller than any product's exponent, products
 * are multiples of 2^top but for what is cut off, less than one unit each. Each of the n
 * steps in binary64 errs by 2^-53 of a sum below (n + 1) 2^48 units at most. If both
 * ends of that range round to the same float, that is the result. */
SEPARATE float sum_of_products(const parts *a, const weights *w, uint32_t n, parts bias,
                             int32_t top) {
    int32_t count = (int32_t)n + 1;
    if (count < 1 << 14) {
        int32_t shift = top - (bias.e - 24);
        if (shift < 0) {
            top -= shift;
            shift = 0;
        }
        int64_t sum = (int64_t)bias.m * (1 << 24) >> (shift < 63 ? shift : 63);
        for (uint32_t i = 0; i < n; i++) {
            if (!a[i].m) continue;
            parts b = weight(w, i);
            shift = top - a[i].e - b.e;
            sum += (int64_t)a[i].m * b.m >> (shift < 63 ? shift : 63);
        }
        int64_t doubt = ((int64_t)count * count >> 4) + 1;
        number low = {sum - doubt, top}, high = {sum + count + doubt, top};
        float result = narrow(low);
        if (result == narrow(high)) return result;
    }
    return sum_in_order(a, w, n, bias);
}

static int bit_at(const uint8_t *bits, uint32_t i) { return bits[i >> 3] >> (i & 7) & 1; }

/* Three words, bit by bit: x + y + z = one + 2 two. */
#define ADD3(one, two, x, y, z)                                                          \
    do {                                                                                 \
        uint32_t x_ = (x), y_ = (y), z_ = (z), half_ = x_ ^ y_;                          \
        one = half_ ^ z_;                                                                \
        two = (x_ & y_) | (half_ & z_);                                                  \
    } while (0)

/* Sums of neighbouring fields of 1, 2 and 4 bits. */
INLINE uint32_t pairs(uint32_t x) { return x - (x >> 1 & 0x55555555u); }
INLINE uint32_t fours(uint32_t x) {
    return (x & 0x33333333u) + (x >> 2 & 0x33333333u);
}
INLINE uint32_t bytes(uint32_t x) {
    return (x & 0x0F0F0F0Fu) + (x >> 4 & 0x0F0F0F0Fu);
}

INLINE uint32_t ones(uint32_t x) {
    x = fours(pairs(x));
    return ((x + (x >> 4)) & 0x0F0F0F0Fu) * 0x01010101u >> 24;
}

/* Ones in a ^ b. Nine words, as 3 x 3 windows make them, are added bit by bit into one
 * word of ones, two of twos and one of fours before anything is counted. */
INLINE uint32_t mismatches(const uint32_t *a, const uint32_t *b, uint32_t n) {
    uint32_t total = 0;
    for (; n >= 9; n -= 9, a += 9, b += 9) {
        uint32_t s0, s1, s2, c0, c1, c2, one, two, more, four;
        ADD3(s0, c0, a[0] ^ b[0], a[1] ^ b[1], a[2] ^ b[2]);
        ADD3(s1, c1, a[3] ^ b[3], a[4] ^ b[4], a[5] ^ b[5]);
        ADD3(s2, c2, a[6] ^ b[6], a[7] ^ b[7], a[8] ^ b[8]);
        ADD3(one, two, s0, s1, s2);
        ADD3(more, four, c0, c1, c2);
        four = fours(pairs(four));
        two = fours(pairs(two)) + fours(pairs(more)) + four; /* at most 12: 4 bits */
        one = bytes(fours(pairs(one))) + 2 * (bytes(two) + bytes(four));
        /* At most 144 of 65535 in each half. */
        total += (one & 0x00FF00FFu) + (one >> 8 & 0x00FF00FFu);
    }
    total = (total + (total >> 16)) & 0xFFFFu;
    for (; n >= 3; n -= 3, a += 3, b += 3) {
        uint32_t one, two;
        ADD3(one, two, a[0] ^ b[0], a[1] ^ b[1], a[2] ^ b[2]);
        one = bytes(fours(pairs(one)) + 2 * fours(pairs(two)));
        total += one * 0x01010101u >> 24;
    }
    for (; n; n--) total += ones(*a++ ^ *b++);
    return total;
}

/* For n filters, one behind the other. */
SEPARATE void count_mismatches(const uint32_t *patch, const uint32_t *filter,
                               uint32_t words, uint32_t n, uint16_t *counts) {
    if (words == 1) {
        for (uint32_t word = *patch; n; n--) *counts++ = (uint16_t)ones(word ^ *filter++);
        return;
    }
    for (; n; n--, filter += words)
        *counts++ = (uint16_t)mismatches(patch, filter, words);
}

/* Layers, one row of the output at a time. */

typedef struct {
    const fbnn_network *network;
    const fbnn_layer *layer;
    const uint8_t *pixels;
    uint8_t *arena;
    uint32_t y;
} task;

static inline uint32_t pixel_bytes(uint32_t channels) { return (channels + 7) / 8; }

static const float *in_floats(const task *t, uint32_t y, uint32_t x) {
    const fbnn_layer *l = t->layer;
    uint32_t at = (y % l->in_rows * l->in_w + x) * l->in_c;
    return (const float *)(const void *)(t->arena + l->input) + at;
}

static const uint8_t *in_bits(const task *t, uint32_t y, uint32_t x) {
    const fbnn_layer *l = t->layer;
    return t->arena + l->input +
           (y % l->in_rows * l->in_w + x) * pixel_bytes(l->in_c);
}

static float pixel_value(const task *t, uint32_t at, uint32_t c) {
    return multiply_add((float)t->pixels[at], t->network->pixel_scale[c],
                        t->network->pixel_shift[c]);
}

static void put_bit(const task *t, uint32_t x, uint32_t c, int bit) {
    const fbnn_layer *l = t->layer;
    uint8_t *to = t->arena + l->out_bits + c / 8 +
                  (t->y % l->out_rows * l->out_w + x) * pixel_bytes(l->out_c);
    if (c % 8 == 0) *to = 0;
    *to = (uint8_t)(*to | (unsigned)bit << c % 8);
}

/* Finish the raw value of channel c at column x and store it. */
static void put_value(const task *t, uint32_t x, uint32_t c, float v) {
    const fbnn_layer *l = t->layer;
    if (l->gain) v = multiply_add(v, l->gain[c], l->offset[c]);
    if (l->scale) {
        volatile float scaled = v * l->scale[c]; /* never fused with what follows */
        v = scaled;
    }
    if (l->residual != FBNN_NONE)
        v += ((const float *)(const void *)(t->arena + l->residual))
            [(t->y * l->out_w + x) * l->out_c + c];
    if (l->flags & FBNN_CLAMP) v = v > 1.0f ? 1.0f : v < -1.0f ? -1.0f : v;
    if (l->out_float != FBNN_NONE)
        ((float *)(void *)(t->arena + l->out_float))
            [(t->y % l->out_rows * l->out_w + x) * l->out_c + c] = v;
    if (l->out_bits != FBNN_NONE) put_bit(t, x, c, v >= 0.0f);
}

static void run_input(const task *t) {
    const fbnn_layer *l = t->layer;
    for (uint32_t x = 0; x < l->out_w; x++)
        for (uint32_t c = 0; c < l->out_c; c++)
            put_value(t, x, c, pixel_value(t, (t->y * l->in_w + x) * l->in_c + c, c));
}

static inline int outside(int32_t at, int32_t size) { return at < 0 || at >= size; }

/* Collect what the output at column x sees; outside the input all bits are 1. */
static void gather_bits(const task *t, uint32_t x, uint32_t *patch) {
    const fbnn_layer *l = t->layer;
    const uint16_t *limits = t->network->pixel_limits;
    uint32_t word = 0, filled = 0, channels = l->in_c, image = l->flags & FBNN_IMAGE;
    for (int32_t i = 0; i < l->kernel_h; i++) {
        int32_t row = (int32_t)(t->y * l->stride) + i - l->pad_top;
        int32_t column = (int32_t)(x * l->stride) - l->pad_left;
        for (int32_t end = column + l->kernel_w; column < end; column++) {
            const uint8_t *from = NULL;
            if (!outside(row, l->in_h) && !outside(column, l->in_w)) {
                uint32_t v = (uint32_t)row, u = (uint32_t)column;
                from = image ? t->pixels + (v * l->in_w + u) * channels : in_bits(t, v, u);
            }
            for (uint32_t c = 0; c < channels; c++) {
                uint32_t bit = 1;
                if (from) bit = image ? from[c] >= limits[c] : (uint32_t)bit_at(from, c);
                word |= bit << filled;
                if (++filled == 32) {
                    *patch++ = word;
                    word = filled = 0;
                }
            }
        }
    }
    if (filled) *patch = word;
}

/* The same for channels that fill whole bytes: a row of the window is one copy. */
static void gather_bytes(const task *t, uint32_t x, uint32_t *patch) {
    const fbnn_layer *l = t->layer;
    uint8_t *to = (uint8_t *)patch;
    int32_t pixel = l->in_c / 8, begin = (int32_t)(x * l->stride) - l->pad_left;
    int32_t end = begin + l->kernel_w, left = 0, right = 0;
    if (begin < 0) left = begin + l->kernel_w < 0 ? l->kernel_w : -begin;
    if (end > l->in_w) right = begin > l->in_w ? l->kernel_w : end - l->in_w;
    patch[(l->kernel_h * l->kernel_w * l->in_c + 31) / 32 - 1] = 0;
    for (int32_t i = 0; i < l->kernel_h; i++) {
        int32_t row = (int32_t)(t->y * l->stride) + i - l->pad_top;
        size_t size = (size_t)(l->kernel_w * pixel);
        if (left || right || outside(row, l->in_h)) memset(to, 0xFF, size);
        if (!outside(row, l->in_h) && left + right < l->kernel_w)
            memcpy(to + left * pixel, in_bits(t, (uint32_t)row, (uint32_t)(begin + left)),
                   (size_t)((l->kernel_w - left - right) * pixel));
        to += size;
    }
}

/* For n channels from c on, each with a filter and inputs of its own. */
static void count_depthwise(const fbnn_layer *l, const uint8_t *patch, uint32_t c,
                            uint32_t n, uint16_t *counts) {
    for (; n; n--, c++) {
        int count = 0;
        for (uint32_t i = 0; i < l->fan_in; i++)
            count += bit_at(patch, i * l->in_c + c) ^
                     bit_at(l->weights, c * l->fan_in + i);
        *counts++ = (uint16_t)count;
    }
}

static void finish_counts(const task *t, uint32_t x, uint32_t c, uint32_t n,
                          const uint16_t *counts) {
    const fbnn_layer *l = t->layer;
    for (uint32_t i = 0; i < n; i++) {
        float sum = (float)((int32_t)l->fan_in - 2 * (int32_t)counts[i]);
        put_value(t, x, c + i, l->bias ? sum + l->bias[c + i] : sum);
    }
}

static void run_bconv(const task *t) {
    const fbnn_layer *l = t->layer;
    uint32_t *patch = (uint32_t *)(void *)(t->arena + l->scratch);
    uint32_t words = (l->fan_in + 31) / 32, pixel = pixel_bytes(l->out_c);
    uint8_t *bits = t->arena + l->out_bits + t->y % l->out_rows * l->out_w * pixel;
    int whole_bytes = l->in_c % 8 == 0 && !(l->flags & FBNN_IMAGE);
    for (uint32_t x = 0; x < l->out_w; x++) {
        const uint32_t *filters = l->weights;
        if (whole_bytes)
            gather_bytes(t, x, patch);
        else
            gather_bits(t, x, patch);
        for (uint32_t c = 0; c < l->out_c; c += 8) { /* which make a byte of bits */
            uint16_t counts[8];
            uint32_t n = l->out_c - c < 8 ? l->out_c - c : 8;
            if (l->flags & FBNN_DEPTHWISE)
                count_depthwise(l, (const uint8_t *)patch, c, n, counts);
            else
                count_mismatches(patch, filters + c * words, words, n, counts);
            if (l->limits) {
                unsigned byte = 0;
                for (uint32_t i = 0; i < n; i++)
                    byte |= (unsigned)(counts[i] <= l->limits[c + i]) << i;
                *bits++ = (uint8_t)(byte ^ l->flips[c >> 3]);
            } else {
                finish_counts(t, x, c, n, counts);
            }
        }
    }
}

/* Sums of products, from a patch of the inputs. */
static void multiply(const task *t, uint32_t x, const parts *patch) {
    const fbnn_layer *l = t->layer;
    parts none = split(0.0f);
    int32_t top = none.e;
    for (uint32_t i = 0; i < l->fan_in; i++)
        if (patch[i].m && patch[i].e > top) top = patch[i].e;
    top += l->weight_exponent;
    for (uint32_t c = 0; c < l->out_c; c++) {
        parts bias = l->bias ? split(l->bias[c]) : none;
        weights w = {(const float *)l->weights + c * l->fan_in, 0.0f, 0};
        if (l->weight_scale) {
            w.at = (const int8_t *)l->weights + c * l->fan_in;
            w.unit = l->weight_scale[c];
            w.small = 1;
        }
        put_value(t, x, c, sum_of_products(patch, &w, l->fan_in, bias, top));
    }
}

static void run_conv(const task *t) {
    const fbnn_layer *l = t->layer;
    parts *patch = (parts *)(void *)(t->arena + l->scratch);
    for (uint32_t x = 0; x < l->out_w; x++) {
        parts *to = patch;
        for (int32_t i = 0; i < l->kernel_h; i++)
            for (int32_t j = 0; j < l->kernel_w; j++) {
                int32_t row = (int32_t)(t->y * l->stride) + i - l->pad_top;
                int32_t column = (int32_t)(x * l->stride) + j - l->pad_left;
                int padding = outside(row, l->in_h) || outside(column, l->in_w);
                uint32_t v = (uint32_t)row, u = (uint32_t)column;
                for (uint32_t c = 0; c < l->in_c; c++) {
                    float value = 0.0f;
                    if (!padding)
                        value = l->flags & FBNN_IMAGE
                                    ? pixel_value(t, (v * l->in_w + u) * l->in_c + c, c)
                                    : in_floats(t, v, u)[c];
                    *to++ = split(value);
                }
            }
        multiply(t, x, patch);
    }
}

/* Maximum of bits: OR; channels whose flip is set take the minimum, an AND. */
static void run_bitpool(const task *t) {
    const fbnn_layer *l = t->layer;
    uint32_t pixel = pixel_bytes(l->in_c);
    uint8_t *to = t->arena + l->out_bits + t->y % l->out_rows * l->out_w * pixel;
    for (uint32_t x = 0; x < l->out_w; x++)
        for (uint32_t at = 0; at < pixel; at++) {
            unsigned flip = l->flips ? l->flips[at] : 0, any = 0;
            for (uint32_t i = 0; i < l->kernel_h; i++)
                for (uint32_t j = 0; j < l->kernel_w; j++)
                    any |= flip ^
                           in_bits(t, t->y * l->stride + i, x * l->stride + j)[at];
            *to++ = (uint8_t)(any ^ flip);
        }
}

static void run_maxpool(const task *t) {
    const fbnn_layer *l = t->layer;
    for (uint32_t x = 0; x < l->out_w; x++)
        for (uint32_t c = 0; c < l->in_c; c++) {
            float most = in_floats(t, t->y * l->stride, x * l->stride)[c];
            for (uint32_t i = 0; i < l->kernel_h; i++)
                for (uint32_t j = 0; j < l->kernel_w; j++) {
                    float v = in_floats(t, t->y * l->stride + i, x * l->stride + j)[c];
                    if (v > most) most = v;
                }
            put_value(t, x, c, most);
        }
}

static void run_mean(const task *t) {
    const fbnn_layer *l = t->layer;
    const float *values = in_floats(t, 0, 0);
    uint32_t n = (uint32_t)l->in_h * l->in_w;
    for (uint32_t c = 0; c < l->in_c; c++) {
        float sum = 0.0f;
        for (uint32_t i = 0; i < n; i++) sum += values[i * l->in_c + c];
        put_value(t, 0, c, sum / (float)n);
    }
}

/* The features are taken channel by channel. */
static void run_linear(const task *t) {
    const fbnn_layer *l = t->layer;
    const float *values = in_floats(t, 0, 0);
    parts *patch = (parts *)(void *)(t->arena + l->scratch), *to = patch;
    uint32_t n = (uint32_t)l->in_h * l->in_w;
    for (uint32_t c = 0; c < l->in_c; c++)
        for (uint32_t i = 0; i < n; i++) *to++ = split(values[i * l->in_c + c]);
    multiply(t, 0, patch);
}

static void run_row(const task *t) {
    switch (t->layer->kind) {
    case FBNN_INPUT: run_input(t); break;
    case FBNN_CONV: run_conv(t); break;
    case FBNN_BCONV: run_bconv(t); break;
    case FBNN_BITPOOL: run_bitpool(t); break;
    case FBNN_MAXPOOL: run_maxpool(t); break;
    case FBNN_MEAN: run_mean(t); break;
    case FBNN_LINEAR: run_linear(t); break;
    default: break;
    }
}

/* Leave the logits in the arena. A convolution in front of a pooling layer only ever
 * holds the rows under the pooling window. */
static const float *run(fbnn_model *model, const uint8_t *pixels) {
    const fbnn_network *n = model->network;
    const fbnn_layer *last = n->layers + n->layer_count;
    for (const fbnn_layer *l = n->layers; l < last; l++) {
        int stream = l->flags & FBNN_STREAM;
        task first = {n, l, pixels, model->arena, 0};
        if (stream) l++;
        task t = {n, l, pixels, model->arena, 0};
        for (; t.y < l->out_h; t.y++) {
            if (stream)
                for (; first.y < t.y * l->stride + l->kernel_h; first.y++)
                    run_row(&first);
            run_row(&t);
        }
    }
    return (const float *)(const void *)(model->arena + n->logits);
}

fbnn_status fbnn_open(const void *network, size_t size, const fbnn_options *options,
                      fbnn_model **model) {
    (void)options;
    if (network != (const void *)fbnn_model_data || size != fbnn_model_size ||
        fbnn_model_data->magic != FBNN_MAGIC)
        return FBNN_ERROR_MAGIC;
    *model = fbnn_model_data->model;
    return FBNN_OK;
}

void fbnn_close(fbnn_model *model) { (void)model; }

fbnn_status fbnn_predict(fbnn_model *model, const uint8_t *pixels, size_t n,
                         int32_t *labels) {
    const fbnn_info *info = &model->network->info;
    for (size_t i = 0; i < n; i++) {
        const float *logits = run(model, pixels);
        unsigned best = 0;
        for (unsigned c = 1; c < info->classes; c++)
            if (logits[c] > logits[best]) best = c;
        labels[i] = (int32_t)best;
        pixels += (size_t)info->height * info->width * info->channels;
    }
    return FBNN_OK;
}

fbnn_status fbnn_logits(fbnn_model *model, const uint8_t *pixels, size_t n,
                        float *logits) {
    const fbnn_info *info = &model->network->info;
    for (size_t i = 0; i < n; i++) {
        memcpy(logits, run(model, pixels), info->classes * sizeof *logits);
        logits += info->classes;
        pixels += (size_t)info->height * info->width * info->channels;
    }
    return FBNN_OK;
}

fbnn_info fbnn_describe(const fbnn_model *model) { return model->network->info; }

const char *fbnn_class_name(const fbnn_model *model, unsigned label) {
    return label < model->network->info.classes ? model->network->class_names[label]
                                                : "";
}
