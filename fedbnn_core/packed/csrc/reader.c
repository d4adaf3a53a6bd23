/* Read an .fbnn file (FORMAT.md) into a checked graph.
 *
 * Nothing in the file is believed: every read is bounds-checked, every size is
 * computed in 64 bits and compared with the limits and with the bytes that are left
 * before memory is reserved for it. */
#include "reader.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    HEADER_BYTES = 60,
    RECORD_BYTES = 16,
    MAX_SIDE = 4096,
    MAX_CHANNELS = 16384,
    MAX_KERNEL = 15,
    MAX_STRIDE = 8,
    MAX_FAN_IN = 32766,
    MAX_OPERATIONS = 1024
};

static const uint64_t MAX_VALUES = (uint64_t)1 << 24; /* of one activation */
static const uint64_t MAX_MACS = (uint64_t)1 << 40;
static const uint8_t MAGIC[8] = {0x89, 'F', 'B', 'N', 'N', '\r', '\n', 0x1A};

typedef struct {
    shape floats[FBNN_SLOTS], bits[FBNN_SLOTS]; /* height 0: never written */
    unsigned slots;
} slot_shapes;

static fbnn_status check_flags(const operation *op) {
    static const uint8_t post = FLAG_AFFINE | FLAG_SCALE | FLAG_CLAMP | FLAG_BIAS;
    static const uint8_t allowed[] = {
        [OP_INPUT] = 0,
        [OP_CONV] = FLAG_AFFINE | FLAG_SCALE | FLAG_CLAMP | FLAG_BIAS,
        [OP_BCONV] = FLAG_AFFINE | FLAG_SCALE | FLAG_CLAMP | FLAG_THRESHOLD |
                     FLAG_BIAS | FLAG_DEPTHWISE,
        [OP_BITPOOL] = FLAG_MASK,
        [OP_MAXPOOL] = FLAG_AFFINE | FLAG_SCALE | FLAG_CLAMP,
        [OP_LAYERNORM] = 0,
        [OP_MEAN] = FLAG_AFFINE | FLAG_SCALE | FLAG_CLAMP,
        [OP_LINEAR] = FLAG_BIAS | FLAG_INT8,
    };
    REQUIRE(op->kind >= OP_INPUT && op->kind <= OP_LINEAR, FBNN_ERROR_GRAPH);
    REQUIRE(!(op->flags & ~allowed[op->kind]), FBNN_ERROR_GRAPH);
    int to_float = op->out_float != FBNN_NO_SLOT, to_bits = op->out_bits != FBNN_NO_SLOT;
    REQUIRE(to_float || to_bits, FBNN_ERROR_GRAPH);
    if (op->kind == OP_BITPOOL || op->flags & FLAG_THRESHOLD)
        REQUIRE(!to_float && !(op->flags & post) && op->residual == FBNN_NO_SLOT,
                FBNN_ERROR_GRAPH);
    if (op->kind == OP_INPUT || op->kind == OP_LAYERNORM || op->kind == OP_LINEAR)
        REQUIRE(op->residual == FBNN_NO_SLOT, FBNN_ERROR_GRAPH);
    return FBNN_OK;
}

static fbnn_status window(uint32_t size, uint32_t before, uint32_t after,
                          uint32_t kernel, uint32_t stride, uint32_t *out) {
    REQUIRE(before < kernel && after < kernel, FBNN_ERROR_GRAPH);
    REQUIRE(size + before + after >= kernel, FBNN_ERROR_GRAPH);
    *out = (size + before + after - kernel) / stride + 1;
    return FBNN_OK;
}

/* Set op->out's height and width and what depends on the kernel window. */
static fbnn_status infer_shape(operation *op, uint64_t *macs) {
    int windowed = op->kind == OP_CONV || op->kind == OP_BCONV ||
                   op->kind == OP_BITPOOL || op->kind == OP_MAXPOOL;
    uint32_t padding = op->pad_top | op->pad_left | op->pad_bottom | op->pad_right;
    if (windowed) {
        REQUIRE(op->kernel_h >= 1 && op->kernel_h <= MAX_KERNEL && op->kernel_w >= 1 &&
                    op->kernel_w <= MAX_KERNEL && op->stride >= 1 &&
                    op->stride <= MAX_STRIDE,
                FBNN_ERROR_GRAPH);
        TRY(window(op->in.height, op->pad_top, op->pad_bottom, op->kernel_h, op->stride,
                   &op->out.height));
        TRY(window(op->in.width, op->pad_left, op->pad_right, op->kernel_w, op->stride,
                   &op->out.width));
    } else {
        REQUIRE(op->kernel_h == 0 && op->kernel_w == 0 && op->stride == 0,
                FBNN_ERROR_GRAPH);
        int single = op->kind == OP_MEAN || op->kind == OP_LINEAR;
        op->out.height = single ? 1 : op->in.height;
        op->out.width = single ? 1 : op->in.width;
    }
    if (op->kind != OP_CONV && op->kind != OP_BCONV)
        REQUIRE(padding == 0, FBNN_ERROR_GRAPH);
    int keeps_channels = !(op->kind == OP_CONV || op->kind == OP_LINEAR ||
                           (op->kind == OP_BCONV && !(op->flags & FLAG_DEPTHWISE)));
    REQUIRE(!keeps_channels || op->out.channels == op->in.channels, FBNN_ERROR_GRAPH);

    uint64_t inputs = (uint64_t)op->kernel_h * op->kernel_w *
                      (op->flags & FLAG_DEPTHWISE ? 1 : op->in.channels);
    if (op->kind == OP_LINEAR) inputs = (uint64_t)positions(op->in) * op->in.channels;
    if (op->kind == OP_BCONV) REQUIRE(inputs <= MAX_FAN_IN, FBNN_ERROR_LIMIT);
    op->fan_in = (uint32_t)inputs;
    *macs += (uint64_t)positions(op->out) * op->out.channels * (inputs + 1);
    REQUIRE((uint64_t)positions(op->out) * op->out.channels <= MAX_VALUES &&
                inputs <= MAX_VALUES && *macs <= MAX_MACS,
            FBNN_ERROR_LIMIT);
    return FBNN_OK;
}

static int reads_bits(const operation *op) {
    return op->kind == OP_BCONV || op->kind == OP_BITPOOL;
}

static fbnn_status connect_input(operation *op, const slot_shapes *s, shape image) {
    if (op->kind == OP_INPUT) {
        REQUIRE(op->input == FBNN_NO_SLOT, FBNN_ERROR_GRAPH);
        op->in = image;
        return FBNN_OK;
    }
    REQUIRE(op->input < s->slots, FBNN_ERROR_GRAPH);
    op->in = reads_bits(op) ? s->bits[op->input] : s->floats[op->input];
    REQUIRE(op->in.height, FBNN_ERROR_GRAPH);
    return FBNN_OK;
}

static int same_shape(shape a, shape b) {
    return a.height == b.height && a.width == b.width && a.channels == b.channels;
}

/* An output may replace its own residual (element by element), never its input. */
static fbnn_status connect_output(const operation *op, slot_shapes *s, fbnn_model *m) {
    if (op->residual != FBNN_NO_SLOT)
        REQUIRE(op->residual < s->slots && same_shape(s->floats[op->residual], op->out),
                FBNN_ERROR_GRAPH);
    if (op->out_float != FBNN_NO_SLOT) {
        REQUIRE(op->out_float < s->slots &&
                    (reads_bits(op) || op->out_float != op->input),
                FBNN_ERROR_GRAPH);
        s->floats[op->out_float] = op->out;
        size_t bytes = positions(op->out) * op->out.channels * sizeof(float);
        if (bytes > m->float_slot[op->out_float]) m->float_slot[op->out_float] = bytes;
    }
    if (op->out_bits != FBNN_NO_SLOT) {
        REQUIRE(op->out_bits < s->slots &&
                    (!reads_bits(op) || op->out_bits != op->input),
                FBNN_ERROR_GRAPH);
        s->bits[op->out_bits] = op->out;
        size_t bytes = positions(op->out) * pixel_bytes(op->out.channels);
        if (bytes > m->bits_slot[op->out_bits]) m->bits_slot[op->out_bits] = bytes;
    }
    return FBNN_OK;
}

static fbnn_status take_operation(cursor *file, operation *op, slot_shapes *s,
                                  fbnn_model *m) {
    const uint8_t *r;
    TRY(take(file, RECORD_BYTES, &r));
    op->kind = r[0], op->flags = r[1];
    op->input = r[2], op->residual = r[3], op->out_float = r[4], op->out_bits = r[5];
    op->kernel_h = r[6], op->kernel_w = r[7], op->stride = r[8];
    op->pad_top = r[9], op->pad_left = r[10];
    op->pad_bottom = r[11], op->pad_right = r[12];
    op->out.channels = u16_at(r + 14);
    REQUIRE(r[13] == 0, FBNN_ERROR_GRAPH);
    REQUIRE(op->out.channels >= 1 && op->out.channels <= MAX_CHANNELS,
            FBNN_ERROR_GRAPH);
    TRY(check_flags(op));
    TRY(connect_input(op, s, m->input));
    TRY(infer_shape(op, &m->macs));
    size_t lanes = m->kernels->lanes > 32 ? m->kernels->lanes : 32;
    op->padded = round_up(op->out.channels, lanes);
    TRY(connect_output(op, s, m));
    return fbnn_take_tensors(file, op, m);
}

/* Valid UTF-8 without control characters, which could steer a terminal or break the
 * lines that a program prints. */
static int is_plain_text(const uint8_t *text, size_t left) {
    static const uint32_t smallest[] = {0, 0x80, 0x800, 0x10000};
    while (left) {
        uint8_t lead = *text;
        size_t more = lead < 0x80 ? 0 : lead < 0xE0 ? 1 : lead < 0xF0 ? 2 : 3;
        if ((lead >= 0x80 && lead < 0xC0) || lead >= 0xF8 || more >= left) return 0;
        uint32_t code = more ? lead & (0x3FU >> more) : lead;
        for (size_t i = 1; i <= more; i++) {
            if ((text[i] & 0xC0) != 0x80) return 0;
            code = code << 6 | (text[i] & 0x3FU);
        }
        int surrogate = code >= 0xD800 && code < 0xE000;
        int control = code < 0x20 || (code >= 0x7F && code < 0xA0);
        if (code < smallest[more] || code > 0x10FFFF || surrogate || control) return 0;
        text += more + 1;
        left -= more + 1;
    }
    return 1;
}

static fbnn_status take_class_names(cursor *file, fbnn_model *m) {
    REQUIRE(m->classes <= file->left, FBNN_ERROR_TRUNCATED);
    size_t longest = file->left < (size_t)m->classes * 255 ? file->left
                                                            : (size_t)m->classes * 255;
    TRY(fbnn_reserve(m, m->classes, sizeof(char *), &m->class_name));
    TRY(fbnn_reserve(m, longest + m->classes, 1, &m->class_names));
    char *to = m->class_names;
    for (uint32_t i = 0; i < m->classes; i++) {
        const uint8_t *length, *text;
        TRY(take(file, 1, &length));
        TRY(take(file, *length, &text));
        REQUIRE(is_plain_text(text, *length), FBNN_ERROR_TEXT);
        memcpy(to, text, *length);
        m->class_name[i] = to;
        to += *length + 1; /* the memory is zeroed */
    }
    return FBNN_OK;
}

/* Normalized value of every possible pixel: fma(pixel, scale, shift). */
static fbnn_status take_normalization(cursor *file, fbnn_model *m) {
    const uint8_t *scales, *shifts;
    TRY(take(file, (uint64_t)m->input.channels * 4, &scales));
    TRY(take(file, (uint64_t)m->input.channels * 4, &shifts));
    TRY(fbnn_reserve(m, (uint64_t)m->input.channels * 256, sizeof(float),
                     &m->pixel_table));
    for (uint32_t c = 0; c < m->input.channels; c++) {
        float scale = float_at(scales + 4 * c), shift = float_at(shifts + 4 * c);
        REQUIRE(isfinite(scale) && isfinite(shift) && scale > 0.0f, FBNN_ERROR_VALUE);
        for (int pixel = 0; pixel < 256; pixel++)
            m->pixel_table[c * 256 + (uint32_t)pixel] =
                fmaf((float)pixel, scale, shift);
    }
    return FBNN_OK;
}

static fbnn_status take_header(cursor *file, fbnn_model *m, slot_shapes *s) {
    const uint8_t *h;
    size_t size = file->left;
    REQUIRE(size >= 8 && memcmp(file->at, MAGIC, sizeof MAGIC) == 0, FBNN_ERROR_MAGIC);
    TRY(take(file, HEADER_BYTES, &h));
    REQUIRE(u16_at(h + 8) == 1 && u16_at(h + 10) == 0, FBNN_ERROR_VERSION);
    REQUIRE(u32_at(h + 12) == size, FBNN_ERROR_TRUNCATED);
    m->input.height = u16_at(h + 48), m->input.width = u16_at(h + 50);
    m->input.channels = u16_at(h + 52);
    m->classes = u16_at(h + 54), m->operations = u16_at(h + 56);
    s->slots = h[58];
    REQUIRE(m->input.height >= 1 && m->input.height <= MAX_SIDE && m->input.width >= 1 &&
                m->input.width <= MAX_SIDE && m->input.channels >= 1 &&
                m->input.channels <= MAX_CHANNELS && m->classes >= 1 &&
                m->operations >= 1 && m->operations <= MAX_OPERATIONS &&
                s->slots >= 1 && s->slots <= FBNN_SLOTS,
            FBNN_ERROR_GRAPH);
    TRY(take_normalization(file, m));
    uint8_t name_bytes = h[59];
    TRY(take(file, name_bytes, &h)); /* the architecture's name is for people */
    REQUIRE(is_plain_text(h, name_bytes), FBNN_ERROR_TEXT);
    return FBNN_OK;
}

static int reads(const operation *op, uint8_t slot, int of_bits) {
    if (!of_bits && op->residual == slot) return 1;
    return op->kind != OP_INPUT && op->input == slot && reads_bits(op) == of_bits;
}

/* A pooling window that does not fit at the border leaves the last rows and columns of
 * its input unread: a convolution in front of it need not compute them. */
static void find_used(fbnn_model *m, uint32_t index) {
    operation *op = &m->ops[index];
    uint32_t height = 0, width = 0;
    for (int of_bits = 0; of_bits < 2; of_bits++) {
        uint8_t slot = of_bits ? op->out_bits : op->out_float;
        for (uint32_t i = index + 1; slot != FBNN_NO_SLOT && i < m->operations; i++) {
            const operation *next = &m->ops[i];
            if (reads(next, slot, of_bits)) {
                int pools = next->kind == OP_BITPOOL || next->kind == OP_MAXPOOL;
                uint32_t rows = pools ? (next->out.height - 1) * next->stride +
                                            next->kernel_h
                                      : op->out.height;
                uint32_t columns = pools ? (next->out.width - 1) * next->stride +
                                               next->kernel_w
                                         : op->out.width;
                if (rows > height) height = rows;
                if (columns > width) width = columns;
            }
            if ((of_bits ? next->out_bits : next->out_float) == slot) break;
        }
    }
    int convolves = op->kind == OP_BCONV || op->kind == OP_CONV;
    op->used_h = convolves && height ? height : op->out.height;
    op->used_w = convolves && height ? width : op->out.width;
}

/* On an error the caller releases what was reserved so far. */
fbnn_status fbnn_read(fbnn_model *m, const uint8_t *bytes, size_t size) {
    cursor file = {bytes, size};
    slot_shapes s;
    memset(&s, 0, sizeof s);
    TRY(take_header(&file, m, &s));
    TRY(take_class_names(&file, m));
    REQUIRE((uint64_t)m->operations * RECORD_BYTES <= file.left, FBNN_ERROR_TRUNCATED);
    TRY(fbnn_reserve(m, m->operations, sizeof(operation), &m->ops));
    for (uint32_t i = 0; i < m->operations; i++)
        TRY(take_operation(&file, &m->ops[i], &s, m));
    REQUIRE(file.left == 0, FBNN_ERROR_TRUNCATED);
    for (uint32_t i = 0; i < m->operations; i++) find_used(m, i);
    const operation *last = &m->ops[m->operations - 1];
    REQUIRE(last->out_float != FBNN_NO_SLOT && positions(last->out) == 1 &&
                last->out.channels == m->classes,
            FBNN_ERROR_GRAPH);
    return FBNN_OK;
}
