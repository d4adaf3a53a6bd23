/* Patches of bits under a convolution's kernel, of a whole batch. */
#ifndef FEDBNN_PATCHES_H
#define FEDBNN_PATCHES_H

#include "../../packed/csrc/gather.h"
#include "train.h"

typedef struct {
    operation op; /* the packed runtime's view of the convolution */
    gatherer gather;
    size_t tap_bits; /* bits from one tap of a patch to the next */
    size_t image_bytes, pixels, width;
    size_t image; /* the image that `gather` is set up for */
    uint8_t *room;
} patch_source;

/* Patches are whole steps of `step_bytes`; the caller sets `room`. */
void train_patches_of(patch_source *p, const geometry *g, size_t step_bytes);
/* Write the patches of `n` outputs from `first` on, counted over all images. */
void train_gather(patch_source *p, const uint8_t *bits, size_t first, size_t n,
                  uint8_t *patches);

#endif
