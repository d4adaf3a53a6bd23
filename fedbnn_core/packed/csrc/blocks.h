/* Walk over patches and filters with the including file's tile_mismatches, which
 * handles up to 4 patches and 2 blocks of LANES filters: a tile of weights is used
 * four times per load, and a pair of blocks stays in the first cache level while
 * all patches pass by. */
static inline __attribute__((always_inline)) void
walk_patches(const uint8_t *patches, size_t patch_bytes, size_t n,
                 const uint8_t *weights, uint16_t *counts, size_t count_stride,
                 const int wide) {
    /* Tiles of equal size: 9 patches are 3 + 3 + 3, since 4 + 4 + 1 takes longer. */
    for (size_t tiles = (n + 3) / 4; tiles > 0; tiles--) {
        size_t tile = (n + tiles - 1) / tiles;
        switch (tile) {
        case 4:
            tile_mismatches(patches, patch_bytes, weights, counts, count_stride, 4,
                            wide);
            break;
        case 3:
            tile_mismatches(patches, patch_bytes, weights, counts, count_stride, 3,
                            wide);
            break;
        case 2:
            tile_mismatches(patches, patch_bytes, weights, counts, count_stride, 2,
                            wide);
            break;
        default:
            tile_mismatches(patches, patch_bytes, weights, counts, count_stride, 1,
                            wide);
        }
        patches += tile * patch_bytes;
        counts += tile * count_stride;
        n -= tile;
    }
}

static void block_mismatches(const uint8_t *patches, size_t patch_bytes, size_t n,
                             const uint8_t *weights, size_t blocks, uint16_t *counts,
                             size_t count_stride) {
    size_t b = 0;
    for (; b + 2 <= blocks; b += 2)
        walk_patches(patches, patch_bytes, n, weights + b * patch_bytes * LANES,
                     counts + b * LANES, count_stride, 2);
    if (b < blocks)
        walk_patches(patches, patch_bytes, n, weights + b * patch_bytes * LANES,
                     counts + b * LANES, count_stride, 1);
}
