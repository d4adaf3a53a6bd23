/* Run a checked graph on one image. */
#ifndef FBNN_EXECUTE_H
#define FBNN_EXECUTE_H

#include "model.h"

/* Where one image's activations live, and room for one thread's intermediate values. */
typedef struct arena {
    float *floats[FBNN_SLOTS];
    uint8_t *bits[FBNN_SLOTS];
    uint8_t *scratch;
} arena;

typedef struct {
    const uint8_t *pixels;   /* raw, or */
    const float *normalized; /* ready-made */
} image;

/* Bytes of scratch that an operation needs. */
uint64_t fbnn_scratch_bytes(const operation *op);

/* Run part `part` of `parts` of an operation; `sums` (or NULL) receives the integers
 * of a binary convolution. */
void fbnn_execute(const fbnn_model *model, const operation *op, image input,
                  const arena *a, uint8_t *scratch, unsigned part, unsigned parts,
                  int32_t *sums);

#endif
