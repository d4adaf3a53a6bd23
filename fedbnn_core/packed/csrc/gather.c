#include "gather.h"

#include <string.h>

void fbnn_one_padding(uint32_t channels, uint8_t *pixel) {
    memset(pixel, 0xFF, pixel_bytes(channels));
    if (channels % 8) pixel[channels / 8] = (uint8_t)((1u << channels % 8) - 1);
}

/* A kernel row of up to 25 bits lies within 4 bytes, wherever it starts. */
static int has_rows(const operation *op) {
    return op->in.channels < 8 && op->kernel_w * op->in.channels <= 25;
}

static size_t row_bytes(const operation *op) {
    size_t width = op->in.width + op->pad_left + op->pad_right;
    return (width * op->in.channels + 7) / 8 + 4;
}

uint64_t fbnn_gather_bytes(const operation *op) {
    size_t rows = op->in.height + op->pad_top + op->pad_bottom;
    return has_rows(op) ? (uint64_t)rows * row_bytes(op) : 0;
}

static void pack_row(const operation *op, const uint8_t *pixels, uint8_t one,
                     uint8_t *row) {
    uint32_t gathered = 0, filled = 0, channels = op->in.channels;
    size_t width = op->in.width + op->pad_left + op->pad_right;
    for (size_t x = 0; x < width; x++) {
        size_t at = x - op->pad_left; /* wraps around before the image */
        gathered |= (uint32_t)(pixels && at < op->in.width ? pixels[at] : one) << filled;
        filled += channels;
        if (filled >= 8) {
            *row++ = (uint8_t)gathered;
            gathered >>= 8;
            filled -= 8;
        }
    }
    *row++ = (uint8_t)gathered;
    memset(row, 0, 3);
}

void fbnn_gather_begin(gatherer *g, const operation *op, const uint8_t *input,
                       uint8_t *room) {
    g->op = op;
    g->input = input;
    g->rows = NULL;
    fbnn_one_padding(op->in.channels, g->ones);
    if (!has_rows(op)) return;
    size_t rows = op->in.height + op->pad_top + op->pad_bottom;
    for (size_t y = 0; y < rows; y++) {
        size_t at = y - op->pad_top;
        const uint8_t *pixels = at < op->in.height ? input + at * op->in.width : NULL;
        pack_row(op, pixels, g->ones[0], room + y * row_bytes(op));
    }
    g->rows = room;
}

static void gather_rows(const gatherer *g, size_t y, size_t x, uint8_t *patch) {
    const operation *op = g->op;
    uint32_t bits = op->kernel_w * op->in.channels, filled = 0;
    size_t first = x * op->stride * op->in.channels, stride = row_bytes(op);
    const uint8_t *from = g->rows + y * op->stride * stride + first / 8;
    uint64_t gathered = 0;
    for (uint32_t row = 0; row < op->kernel_h; row++, from += stride) {
        uint32_t word = (uint32_t)from[0] | (uint32_t)from[1] << 8 |
                        (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
        word = word >> first % 8 & ((1u << bits) - 1);
        gathered |= (uint64_t)word << filled;
        filled += bits;
        for (; filled >= 8; filled -= 8, gathered >>= 8) *patch++ = (uint8_t)gathered;
    }
    if (filled) *patch = (uint8_t)gathered;
}

/* memcpy with a call per patch row would take as long as the convolution itself. */
static inline void copy_bytes(uint8_t *to, const uint8_t *from, size_t n) {
    if (n >= 16) {
        for (size_t at = 0; at + 16 < n; at += 16) memcpy(to + at, from + at, 16);
        memcpy(to + n - 16, from + n - 16, 16); /* may overlap what was copied */
    } else if (n >= 8) {
        memcpy(to, from, 8);
        memcpy(to + n - 8, from + n - 8, 8);
    } else if (n >= 4) {
        memcpy(to, from, 4);
        memcpy(to + n - 4, from + n - 4, 4);
    } else {
        for (size_t at = 0; at < n; at++) to[at] = from[at];
    }
}

/* Eight channels or more: every tap is whole bytes. */
static void gather_bytes(const gatherer *g, size_t y, size_t x, uint8_t *patch) {
    const operation *op = g->op;
    size_t pixel = pixel_bytes(op->in.channels);
    long top = (long)(y * op->stride) - (long)op->pad_top;
    long left = (long)(x * op->stride) - (long)op->pad_left;
    int across = left >= 0 && left + (long)op->kernel_w <= (long)op->in.width;
    for (long row = top; row < top + (long)op->kernel_h; row++) {
        int inside = row >= 0 && row < (long)op->in.height;
        const uint8_t *from = g->input + row * (long)op->in.width * (long)pixel;
        if (inside && across) {
            copy_bytes(patch, from + left * (long)pixel, op->kernel_w * pixel);
            patch += op->kernel_w * pixel;
            continue;
        }
        for (long column = left; column < left + (long)op->kernel_w; column++) {
            int valid = inside && column >= 0 && column < (long)op->in.width;
            copy_bytes(patch, valid ? from + column * (long)pixel : g->ones, pixel);
            patch += pixel;
        }
    }
}

/* Fewer channels, whose taps share bytes, and a kernel too wide for gather_rows. */
static void gather_bits(const gatherer *g, size_t y, size_t x, uint8_t *patch) {
    const operation *op = g->op;
    long top = (long)(y * op->stride) - (long)op->pad_top;
    long left = (long)(x * op->stride) - (long)op->pad_left;
    uint32_t gathered = 0, filled = 0;
    for (long row = top; row < top + (long)op->kernel_h; row++)
        for (long column = left; column < left + (long)op->kernel_w; column++) {
            int valid = row >= 0 && row < (long)op->in.height && column >= 0 &&
                        column < (long)op->in.width;
            uint32_t bits =
                valid ? g->input[(size_t)row * op->in.width + (size_t)column] : g->ones[0];
            gathered |= bits << filled;
            filled += op->in.channels;
            if (filled >= 8) {
                *patch++ = (uint8_t)gathered;
                gathered >>= 8;
                filled -= 8;
            }
        }
    if (filled) *patch = (uint8_t)gathered;
}

void fbnn_gather(const gatherer *g, size_t y, size_t x, size_t width, size_t n,
                 uint8_t *patches) {
    for (size_t i = 0; i < n; i++, patches += g->op->patch_bytes) {
        if (g->rows)
            gather_rows(g, y, x, patches);
        else if (g->op->in.channels < 8)
            gather_bits(g, y, x, patches);
        else
            gather_bytes(g, y, x, patches);
        if (++x == width) x = 0, y++;
    }
}
