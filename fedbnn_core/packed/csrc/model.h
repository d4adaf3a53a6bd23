/* The checked graph of a model, shared by the reader and the executor. */
#ifndef FBNN_MODEL_H
#define FBNN_MODEL_H

#include "fbnn.h"
#include "kernels.h"

enum { FBNN_SLOTS = 16, FBNN_NO_SLOT = 255 };

/* A file that needs more for its weights, or for one image, is refused. */
#define FBNN_MAX_MEMORY ((uint64_t)1 << 28)

typedef enum {
    OP_INPUT = 1,
    OP_CONV = 2,
    OP_BCONV = 3,
    OP_BITPOOL = 4,
    OP_MAXPOOL = 5,
    OP_LAYERNORM = 6,
    OP_MEAN = 7,
    OP_LINEAR = 8
} op_kind;

enum {
    FLAG_AFFINE = 1,
    FLAG_SCALE = 2,
    FLAG_CLAMP = 4,
    FLAG_THRESHOLD = 8,
    FLAG_BIAS = 16,
    FLAG_DEPTHWISE = 32,
    FLAG_INT8 = 64,
    FLAG_MASK = 128
};

typedef struct {
    uint32_t height, width, channels;
} shape;

typedef struct {
    uint8_t kind, flags;
    uint8_t input, residual, out_float, out_bits;
    uint32_t kernel_h, kernel_w, stride;
    uint32_t pad_top, pad_left, pad_bottom, pad_right;
    shape in, out;
    uint32_t used_h, used_w; /* rows and columns of the output that are ever read */
    uint32_t fan_in;      /* weights per output of a binary convolution */
    size_t patch_bytes;   /* bytes of one gathered patch, whole kernel steps */
    size_t padded;        /* output channels rounded up to whole kernel blocks */
    uint8_t *bit_weights; /* kernel layout; depthwise: [tap][channel bytes] */
    float *weights;       /* [input][padded output], CONV and LINEAR */
    float *bias;
    uint16_t *thresholds; /* bit = (mismatches <= threshold) ^ flip */
    uint8_t *flips;
    float *gain, *offset; /* AFFINE; LAYERNORM's gamma and beta */
    float *scale;
    uint8_t *mask; /* BITPOOL: channels that take the minimum */
    float epsilon;
} operation;

struct fbnn_model {
    shape input;
    uint32_t classes, operations;
    operation *ops;
    char *class_names; /* each ends in a NUL */
    char **class_name;
    float *pixel_table; /* [channel][256] normalized values */
    const kernel_set *kernels;
    size_t float_slot[FBNN_SLOTS], bits_slot[FBNN_SLOTS]; /* sizes in bytes */
    size_t scratch_bytes;
    uint64_t weight_bytes, macs;
    unsigned threads;
    struct arena *arenas; /* one per thread */
    void **arena_memory;
    uint64_t activation_bytes;
    struct pool *pool;
};

/* Positions whose patches are gathered together: their patches and counts stay in
 * the first two cache levels, while the weights are read once per chunk. */
enum { CHUNK = 32 };

static inline size_t round_up(size_t value, size_t multiple) {
    return (value + multiple - 1) / multiple * multiple;
}

static inline size_t pixel_bytes(uint32_t channels) { return (channels + 7) / 8; }

static inline size_t positions(shape s) { return (size_t)s.height * s.width; }

/* Channels below 8 are gathered bit by bit, so that a tap does not fill a byte. */
static inline size_t raw_patch_bytes(uint32_t taps, uint32_t channels) {
    return channels < 8 ? ((size_t)taps * channels + 7) / 8
                        : taps * pixel_bytes(channels);
}

/* Pixels of a row that a depthwise convolution handles at once: their repeated
 * weights (1 KiB per tap) stay in the first cache level. */
static inline size_t depthwise_segment(const operation *op) {
    size_t fitting = 1024 / pixel_bytes(op->in.channels);
    if (op->stride != 1 || fitting < 1) return 1;
    return fitting < op->out.width ? fitting : op->out.width;
}

fbnn_status fbnn_read(fbnn_model *model, const uint8_t *file, size_t size);

#endif
