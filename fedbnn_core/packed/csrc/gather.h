/* Gather the bits under a binary convolution's kernel into one patch. */
#ifndef FBNN_GATHER_H
#define FBNN_GATHER_H

#include "model.h"

typedef struct {
    const operation *op;
    const uint8_t *input;
    uint8_t ones[16384 / 8]; /* a pixel of padding: +1 in every channel */
    const uint8_t *rows;     /* few channels: padded rows without gaps, or NULL */
} gatherer;

void fbnn_one_padding(uint32_t channels, uint8_t *pixel);

/* Room that a gatherer needs for its rows. */
uint64_t fbnn_gather_bytes(const operation *op);
void fbnn_gather_begin(gatherer *g, const operation *op, const uint8_t *input,
                       uint8_t *room);
/* Write the patches of n outputs from (y, x) on, in rows of `width` outputs. */
void fbnn_gather(const gatherer *g, size_t y, size_t x, size_t width, size_t n,
                 uint8_t *patches);

#endif
