/* Walk over patches and filters with the including file's tile_mismatches, which
 * handles up to 4 patches and 2 blocks of LANES filters: a tile of weights is used
 * four times per load, and a pair of blocks stays in the first cache level while
 * all patches pass by. */
static inline __attribute__((always_inline)) void
block_mismatches(const uint8_t *patches, size_t patch_bytes, size_t n,
                 const uint8_t *weights, uint16_t *counts, size_t count_stride,
                 const int wide) {
    size_t p = 0;
    for (; p + 4 <= n; p += 4)
        tile_mismatches(patches + p * patch_bytes, patch_bytes, weights,
                        counts + p * count_stride, count_stride, 4, wide);
    for (; p < n; p++)
        tile_mismatches(patches + p * patch_bytes, patch_bytes, weights,
                        counts + p * count_stride, count_stride, 1, wide);
}

static void mismatches(const uint8_t *patches, size_t patch_bytes, size_t n,
                       const uint8_t *weights, size_t blocks, uint16_t *counts,
                       size_t count_stride) {
    size_t b = 0;
    for (; b + 2 <= blocks; b += 2)
        block_mismatches(patches, patch_bytes, n, weights + b * patch_bytes * LANES,
                         counts + b * LANES, count_stride, 2);
    if (b < blocks)
        block_mismatches(patches, patch_bytes, n, weights + b * patch_bytes * LANES,
                         counts + b * LANES, count_stride, 1);
}
