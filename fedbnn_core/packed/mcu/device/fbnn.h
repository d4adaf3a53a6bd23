/* Run one of FedBNN's 1-bit networks on a microcontroller.
 *
 *     fbnn_model *model;
 *     if (fbnn_open(fbnn_model_data, fbnn_model_size, NULL, &model) != FBNN_OK) return 1;
 *     int32_t label;
 *     fbnn_predict(model, pixels, 1, &label);
 *     fbnn_close(model);
 *
 * Add fbnn.h, fbnn.c and network.c to a project: C11, little-endian, and no more of
 * the C library than memcpy and memset. Nothing is allocated: the weights are const,
 * the activations lie in one static arena. A model is used by one thread at a time. */
#ifndef FBNN_H
#define FBNN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The network of this export goes here. */

/* The numbers are those of the hosted runtime. */
typedef enum {
    FBNN_OK = 0,
    FBNN_ERROR_MAGIC = 1 /* not the network.c of this export */
} fbnn_status;

typedef struct fbnn_model fbnn_model;

/* For source compatibility; there is one kernel and one thread. */
typedef struct {
    const char *kernel;
    unsigned threads;
} fbnn_options;

typedef struct {
    unsigned height, width, channels, classes;
    uint32_t arena_bytes; /* RAM of the activations */
    uint32_t macs;        /* multiply-accumulates of one image */
} fbnn_info;

fbnn_status fbnn_open(const void *network, size_t size, const fbnn_options *options,
                      fbnn_model **model);
void fbnn_close(fbnn_model *model);

/* Raw pixels, n images of height x width x channels bytes, channels last -> n class
 * numbers. */
fbnn_status fbnn_predict(fbnn_model *model, const uint8_t *pixels, size_t n,
                         int32_t *labels);
/* As above -> n x classes logits. */
fbnn_status fbnn_logits(fbnn_model *model, const uint8_t *pixels, size_t n,
                        float *logits);

fbnn_info fbnn_describe(const fbnn_model *model);
const char *fbnn_class_name(const fbnn_model *model, unsigned label);

/* What network.c holds; use the functions above instead. */

enum {
    FBNN_INPUT = 1,
    FBNN_CONV,
    FBNN_BCONV,
    FBNN_BITPOOL,
    FBNN_MAXPOOL,
    FBNN_MEAN = 7,
    FBNN_LINEAR
};

enum {
    FBNN_CLAMP = 1,     /* results lie between -1 and 1 */
    FBNN_DEPTHWISE = 2, /* output channel c sees input channel c */
    FBNN_IMAGE = 4,     /* reads the image, normalized on the way */
    FBNN_STREAM = 8     /* the next layer takes each row as soon as it is there */
};

#define FBNN_NONE 0xFFFFFFFFu

typedef struct {
    uint8_t kind, flags;
    uint8_t kernel_h, kernel_w, stride, pad_top, pad_left;
    uint16_t in_h, in_w, in_c, out_h, out_w, out_c;
    uint16_t in_rows, out_rows; /* of the buffers: row y is at y modulo that */
    int16_t weight_exponent;    /* of the largest float weight, with 24 bits behind */
    uint32_t fan_in;            /* inputs of an output value */
    /* Places in the arena, or FBNN_NONE. */
    uint32_t input, residual, out_float, out_bits, scratch;
    const void *weights; /* BCONV: words [out][(fan_in + 31) / 32]; CONV: float
                            [out][row][column][in]; LINEAR: [out][in] */
    const float *weight_scale; /* LINEAR: weights are int8, this is their unit */
    const float *bias, *gain, *offset, *scale;
    const int16_t *limits; /* BCONV: bit = (mismatches <= limit) ^ flip */
    const uint8_t *flips;  /* ...; BITPOOL: channels that take the minimum */
} fbnn_layer;

typedef struct {
    uint32_t magic;
    fbnn_info info;
    const float *pixel_scale, *pixel_shift;
    const uint16_t *pixel_limits; /* bit of a pixel = pixel >= limit */
    const fbnn_layer *layers;
    uint32_t layer_count;
    uint32_t logits; /* place in the arena */
    const char *const *class_names;
    fbnn_model *model;
} fbnn_network;

struct fbnn_model {
    const fbnn_network *network;
    uint8_t *arena; /* aligned for floats */
};

#define FBNN_MAGIC 0x314E4246u
extern const fbnn_network fbnn_model_data[1];
extern const size_t fbnn_model_size;

#ifdef __cplusplus
}
#endif
#endif
