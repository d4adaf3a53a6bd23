/* Turn counts into bits, 32 channels at a time, with the including file's compare32. */
static inline uint32_t flips_at(const uint8_t *flips) {
    uint32_t word;
    memcpy(&word, flips, sizeof word);
    return word;
}

static void compare(const uint16_t *counts, size_t count_stride, size_t n,
                    const uint16_t *thresholds, const uint8_t *flips, uint8_t *bits,
                    size_t bytes) {
    size_t whole = bytes / 4 * 4;
    for (size_t p = 0; p < n; p++, counts += count_stride, bits += bytes) {
        for (size_t at = 0; at < whole; at += 4) {
            uint32_t word = compare32(counts + at * 8, thresholds + at * 8);
            word ^= flips_at(flips + at);
            memcpy(bits + at, &word, sizeof word);
        }
        if (whole < bytes) {
            uint32_t word = compare32(counts + whole * 8, thresholds + whole * 8);
            word ^= flips_at(flips + whole);
            memcpy(bits + whole, &word, bytes - whole);
        }
    }
}
