#include "fbnn.h"

#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "network.c holds little-endian words"
#endif
#ifdef __FAST_MATH__
#error "compile fbnn.c without -ffast-math: its sums have a fixed order"
#endif
_Static_assert(sizeof(float) == 4, "floats have 32 bits");
_Static_assert(-3 >> 1 == -2, "shifts of negative numbers round down");

/* ---- Float arithmetic with integers ------------------------------------------------
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
} parts; /* of a float: m * 2^e; 2^23 <= |m| < 2^24, or 0 */

static inline parts split(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t m = bits & 0x7FFFFFu;
    int32_t e = (int32_t)(bits >> 23 & 0xFF);
    if (e) {
        m |= 0x800000u;
    } else if (m) {
        for (e = 1; m < 0x800000u; e--) m <<= 1;
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

static inline number add_product(number sum, parts a, parts b) {
    return a.m && b.m ? round_double(add(sum, product(a, b))) : sum;
}

/* ---- Bits --------------------------------------------------------------------------- */

static int bit_at(const uint8_t *bits, uint32_t i) { return bits[i >> 3] >> (i & 7) & 1; }

/* Ones in a ^ b, words of 32 bits. Three words are added bit by bit into one of ones and
 * one of twos, which are counted together: fields of 2, 4, then 8 bits. */
static uint32_t mismatches(const uint32_t *a, const uint32_t *b, uint32_t n) {
    uint32_t total = 0;
    while (n) {
        uint32_t block = n < 30 ? n : 30, bytes = 0; /* 30 * 8 ones fit a byte */
        n -= block;
        for (; block >= 3; block -= 3, a += 3, b += 3) {
            uint32_t x = a[0] ^ b[0], y = a[1] ^ b[1], z = a[2] ^ b[2];
            uint32_t half = x ^ y, one = half ^ z, two = (x & y) | (half & z);
            one -= one >> 1 & 0x55555555u;
            two -= two >> 1 & 0x55555555u;
            one = (one & 0x33333333u) + (one >> 2 & 0x33333333u);
            two = (two & 0x33333333u) + (two >> 2 & 0x33333333u);
            one += 2 * two;
            bytes += (one & 0x0F0F0F0Fu) + (one >> 4 & 0x0F0F0F0Fu);
        }
        for (; block; block--) {
            uint32_t x = *a++ ^ *b++;
            x -= x >> 1 & 0x55555555u;
            x = (x & 0x33333333u) + (x >> 2 & 0x33333333u);
            bytes += (x + (x >> 4)) & 0x0F0F0F0Fu;
        }
        bytes = (bytes & 0x00FF00FFu) + (bytes >> 8 & 0x00FF00FFu);
        total += (bytes + (bytes >> 16)) & 0xFFFFu;
    }
    return total;
}

/* ---- Layers, one row of the output at a time ---------------------------------------- */

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

/* Collect what the output at column x sees; outside the input all bits are 1. */
static void gather(const task *t, uint32_t x, uint32_t *patch) {
    const fbnn_layer *l = t->layer;
    uint8_t *to = (uint8_t *)patch;
    uint32_t at = 0, channels = l->in_c;
    uint32_t words = (l->kernel_h * l->kernel_w * channels + 31) / 32;
    int whole_bytes = channels % 8 == 0 && !(l->flags & FBNN_IMAGE);
    memset(patch, 0, words * sizeof *patch);
    for (int32_t i = 0; i < l->kernel_h; i++) {
        int32_t row = (int32_t)(t->y * l->stride) + i - l->pad_top;
        for (int32_t j = 0; j < l->kernel_w; j++) {
            int32_t column = (int32_t)(x * l->stride) + j - l->pad_left;
            int inside = row >= 0 && row < l->in_h && column >= 0 && column < l->in_w;
            uint32_t v = (uint32_t)row, u = (uint32_t)column;
            if (whole_bytes) {
                if (inside)
                    memcpy(to, in_bits(t, v, u), channels / 8);
                else
                    memset(to, 0xFF, channels / 8);
                to += channels / 8;
                continue;
            }
            for (uint32_t c = 0; c < channels; c++, at++) {
                int bit = 1;
                if (inside && l->flags & FBNN_IMAGE)
                    bit = t->pixels[(v * l->in_w + u) * channels + c] >=
                          t->network->pixel_limits[c];
                else if (inside)
                    bit = bit_at(in_bits(t, v, u), c);
                to[at >> 3] = (uint8_t)(to[at >> 3] | (unsigned)bit << (at & 7));
            }
        }
    }
}

/* Ones in the weights of channel c that differ from what column x sees. */
static uint32_t depthwise(const task *t, const uint8_t *patch, uint32_t c) {
    const fbnn_layer *l = t->layer;
    uint32_t count = 0;
    for (uint32_t i = 0; i < l->fan_in; i++)
        count += (uint32_t)(bit_at(patch, i * l->in_c + c) ^
                            bit_at(l->weights, c * l->fan_in + i));
    return count;
}

static void run_bconv(const task *t) {
    const fbnn_layer *l = t->layer;
    uint32_t *patch = (uint32_t *)(void *)(t->arena + l->scratch);
    uint32_t words = (l->fan_in + 31) / 32, pixel = pixel_bytes(l->out_c);
    uint8_t *bits = t->arena + l->out_bits + t->y % l->out_rows * l->out_w * pixel;
    for (uint32_t x = 0; x < l->out_w; x++) {
        const uint32_t *weights = l->weights;
        unsigned byte = 0;
        gather(t, x, patch);
        for (uint32_t c = 0; c < l->out_c; c++) {
            uint32_t count;
            if (l->flags & FBNN_DEPTHWISE) {
                count = depthwise(t, (const uint8_t *)patch, c);
            } else {
                count = mismatches(patch, weights, words);
                weights += words;
            }
            if (!l->limits) {
                float sum = (float)((int32_t)l->fan_in - 2 * (int32_t)count);
                put_value(t, x, c, l->bias ? sum + l->bias[c] : sum);
                continue;
            }
            byte |= (unsigned)((int32_t)count <= l->limits[c]) << (c & 7);
            if ((c & 7) == 7 || c + 1 == l->out_c) {
                *bits++ = (uint8_t)(byte ^ l->flips[c >> 3]);
                byte = 0;
            }
        }
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
                int inside =
                    row >= 0 && row < l->in_h && column >= 0 && column < l->in_w;
                uint32_t v = (uint32_t)row, u = (uint32_t)column;
                for (uint32_t c = 0; c < l->in_c; c++) {
                    float value = 0.0f;
                    if (inside && l->flags & FBNN_IMAGE)
                        value = pixel_value(t, (v * l->in_w + u) * l->in_c + c, c);
                    else if (inside)
                        value = in_floats(t, v, u)[c];
                    *to++ = split(value);
                }
            }
        const float *weights = l->weights;
        for (uint32_t c = 0; c < l->out_c; c++) {
            number sum = {0, 0};
            if (l->bias) sum = widen(split(l->bias[c]));
            for (uint32_t i = 0; i < l->fan_in; i++)
                sum = add_product(sum, patch[i], split(*weights++));
            put_value(t, x, c, narrow(sum));
        }
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
    const float *values = in_floats(t, 0, 0), *weights = l->weights;
    const int8_t *small = l->weights;
    uint32_t n = (uint32_t)l->in_h * l->in_w;
    for (uint32_t o = 0; o < l->out_c; o++) {
        number sum = {0, 0};
        if (l->bias) sum = widen(split(l->bias[o]));
        for (uint32_t c = 0; c < l->in_c; c++)
            for (uint32_t i = 0; i < n; i++) {
                float w = l->weight_scale ? (float)*small++ * l->weight_scale[o]
                                          : *weights++;
                sum = add_product(sum, split(values[i * l->in_c + c]), split(w));
            }
        put_value(t, 0, o, narrow(sum));
    }
}

/* ---- The network -------------------------------------------------------------------- */

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
