/* Mismatches of patches and filters with AVX2, two patches per table lookup.
 *
 * Row x0 | x1 << 4 of a table holds popcount(x0 ^ y) | popcount(x1 ^ y) << 4 for all
 * nibbles y: the nibbles of two patches select the row, and one byte shuffle looks up
 * the filters' nibbles of 32 output channels. Three lookups add at most 12 to a field
 * of 4 bits; then the fields are split and added to a byte sum per patch.
 *
 * Per 3 nibbles, 2 patches and 32 channels, which is 768 multiply-adds:
 *
 *                           cycles of   per cycle       per cycle
 *                     uses  latency     Zen 3           Skylake
 *   vpshufb           3     1           2               1
 *   vpaddb            4     1           4               3
 *   vpand             2     1           4               3
 *   vpsrlw            1     1           2               2
 *   vbroadcasti128    3     load        2               2
 *   movzx (offset)    3     load        3               2
 *
 * With the filters' nibbles, which are split once per 4 pairs of patches, that is 11.1
 * operations in vector registers and 3.4 loads into them. On Zen 3 the tile takes 4.1
 * cycles, 187 multiply-adds per cycle with its row offsets: 3.5 of at most 4 vector
 * instructions per cycle, loads included. A lookup per patch and nibble reaches 143. */

enum {
    PAIRS = 4,        /* in a tile: their 8 byte sums stay in registers */
    SEGMENT = 288,    /* bytes of a patch whose row offsets are made together */
    FLUSH_BYTES = 30, /* 20 groups of 3 nibbles add at most 240 to a byte */
    VECTOR = 16,      /* bytes of a patch that become row offsets at once */
};

static const uint8_t PAIR_MISMATCHES[256][16] __attribute__((aligned(64))) = {
#define N(y) (((y) & 1) + ((y) >> 1 & 1) + ((y) >> 2 & 1) + ((y) >> 3 & 1))
#define AT(x, y) N(((x) & 15) ^ (y)) | N((x) >> 4 ^ (y)) << 4
#define ROW(x)                                                                         \
    {AT(x, 0), AT(x, 1), AT(x, 2),  AT(x, 3),  AT(x, 4),  AT(x, 5),  AT(x, 6),         \
     AT(x, 7), AT(x, 8), AT(x, 9),  AT(x, 10), AT(x, 11), AT(x, 12), AT(x, 13),        \
     AT(x, 14), AT(x, 15)}
#define ROWS(x)                                                                        \
    ROW(x), ROW(x + 1), ROW(x + 2), ROW(x + 3), ROW(x + 4), ROW(x + 5), ROW(x + 6),    \
        ROW(x + 7), ROW(x + 8), ROW(x + 9), ROW(x + 10), ROW(x + 11), ROW(x + 12),     \
        ROW(x + 13), ROW(x + 14), ROW(x + 15)
    ROWS(0),   ROWS(16),  ROWS(32),  ROWS(48),  ROWS(64),  ROWS(80),  ROWS(96),
    ROWS(112), ROWS(128), ROWS(144), ROWS(160), ROWS(176), ROWS(192), ROWS(208),
    ROWS(224), ROWS(240)
#undef ROWS
#undef ROW
#undef AT
#undef N
};

static inline __m256i pair_row(uint16_t offset) {
    return _mm256_broadcastsi128_si256(
        _mm_load_si128((const __m128i *)((const uint8_t *)PAIR_MISMATCHES + offset)));
}

static inline __m256i low_nibbles(__m256i v) {
    return _mm256_and_si256(v, _mm256_set1_epi8(0x0F));
}

static inline __m256i high_nibbles(__m256i v) {
    return low_nibbles(_mm256_srli_epi16(v, 4));
}

static inline __m256i filters_at(const uint8_t *weights) {
    return _mm256_loadu_si256((const __m256i *)weights);
}

/* Look up nibble `at` of pair p; offsets are [nibble][pair]. */
static inline __m256i look_up(const uint16_t *offsets, int at, int p, __m256i filters) {
    return _mm256_shuffle_epi8(pair_row(offsets[at * PAIRS + p]), filters);
}

static inline void add_fields(__m256i *sums, __m256i fields) {
    sums[0] = _mm256_add_epi8(sums[0], low_nibbles(fields));
    sums[1] = _mm256_add_epi8(sums[1], high_nibbles(fields));
}

/* Three nibbles, from `at` on, of all pairs. */
static inline __attribute__((always_inline)) void
add_three(__m256i *sums, const uint16_t *offsets, int at, __m256i a, __m256i b,
          __m256i c, const int pairs) {
    for (int p = 0; p < pairs; p++) {
        __m256i fields = _mm256_add_epi8(look_up(offsets, at, p, a),
                                         look_up(offsets, at + 1, p, b));
        fields = _mm256_add_epi8(fields, look_up(offsets, at + 2, p, c));
        add_fields(sums + 2 * p, fields);
    }
}

/* Store 32 counts in the order of the channels, or add them to those there. */
static inline void store_counts(uint16_t *counts, __m256i even, __m256i odd, int add) {
    __m256i low = _mm256_unpacklo_epi16(even, odd);
    __m256i high = _mm256_unpackhi_epi16(even, odd);
    __m256i first = _mm256_permute2x128_si256(low, high, 0x20);
    __m256i last = _mm256_permute2x128_si256(low, high, 0x31);
    __m256i *to = (__m256i *)counts;
    if (add) {
        first = _mm256_add_epi16(first, _mm256_loadu_si256(to));
        last = _mm256_add_epi16(last, _mm256_loadu_si256(to + 1));
    }
    _mm256_storeu_si256(to, first);
    _mm256_storeu_si256(to + 1, last);
}

/* Counts of n patches (2 * pairs, or one less) with 32 filters over `bytes` bytes. */
static inline __attribute__((always_inline)) void
pair_tile(const uint16_t *offsets, const uint8_t *weights, size_t bytes,
          uint16_t *counts, size_t count_stride, size_t n, int add, const int pairs) {
    const __m256i zero = _mm256_setzero_si256();
    /* A word of `words` sums a whole word of byte sums, even + 256 * odd modulo 2^16;
     * with the odd sums apart, the even ones follow. */
    __m256i words[2 * PAIRS], odd[2 * PAIRS];
    for (int p = 0; p < 2 * pairs; p++) words[p] = odd[p] = zero;
    for (size_t k = 0; k < bytes;) {
        size_t end = bytes - k > FLUSH_BYTES ? k + FLUSH_BYTES : bytes;
        __m256i sums[2 * PAIRS];
        for (int p = 0; p < 2 * pairs; p++) sums[p] = zero;
        for (; k + 3 <= end; k += 3, weights += 3 * LANES, offsets += 6 * PAIRS) {
            __m256i w0 = filters_at(weights), w1 = filters_at(weights + LANES);
            add_three(sums, offsets, 0, low_nibbles(w0), high_nibbles(w0),
                      low_nibbles(w1), pairs);
            __m256i w2 = filters_at(weights + 2 * LANES);
            add_three(sums, offsets, 3, high_nibbles(w1), low_nibbles(w2),
                      high_nibbles(w2), pairs);
        }
        for (; k < end; k++, weights += LANES, offsets += 2 * PAIRS) {
            __m256i w = filters_at(weights);
            for (int p = 0; p < pairs; p++)
                add_fields(sums + 2 * p,
                           _mm256_add_epi8(look_up(offsets, 0, p, low_nibbles(w)),
                                           look_up(offsets, 1, p, high_nibbles(w))));
        }
        for (int p = 0; p < 2 * pairs; p++) {
            words[p] = _mm256_add_epi16(words[p], sums[p]);
            odd[p] = _mm256_add_epi16(odd[p], _mm256_srli_epi16(sums[p], 8));
        }
    }
    for (int p = 0; p < 2 * pairs; p++)
        if ((size_t)p < n)
            store_counts(counts + (size_t)p * count_stride,
                         _mm256_sub_epi16(words[p], _mm256_slli_epi16(odd[p], 8)),
                         odd[p], add);
}

/* Byte k of every pair, pair by pair within k, for 4 values of k in each vector. */
static inline void interleave(const __m128i pair[PAIRS], __m128i to[4]) {
    __m128i low01 = _mm_unpacklo_epi8(pair[0], pair[1]);
    __m128i low23 = _mm_unpacklo_epi8(pair[2], pair[3]);
    __m128i high01 = _mm_unpackhi_epi8(pair[0], pair[1]);
    __m128i high23 = _mm_unpackhi_epi8(pair[2], pair[3]);
    to[0] = _mm_unpacklo_epi16(low01, low23);
    to[1] = _mm_unpackhi_epi16(low01, low23);
    to[2] = _mm_unpacklo_epi16(high01, high23);
    to[3] = _mm_unpackhi_epi16(high01, high23);
}

static inline void store_offsets(uint16_t *to, __m128i rows) {
    _mm256_storeu_si256((__m256i *)to,
                        _mm256_slli_epi16(_mm256_cvtepu8_epi16(rows), 4));
}

/* Row offsets of VECTOR bytes of each patch, from byte k on. */
static inline void make_offsets(const uint8_t *const *patch, size_t k, uint16_t *to) {
    const __m128i low = _mm_set1_epi8(0x0F), high = _mm_set1_epi8((char)0xF0);
    __m128i low_rows[PAIRS], high_rows[PAIRS], x[4], y[4];
    for (int p = 0; p < PAIRS; p++) {
        __m128i a = _mm_loadu_si128((const __m128i *)(patch[2 * p] + k));
        __m128i b = _mm_loadu_si128((const __m128i *)(patch[2 * p + 1] + k));
        low_rows[p] = _mm_or_si128(_mm_and_si128(a, low),
                                   _mm_and_si128(_mm_slli_epi16(b, 4), high));
        high_rows[p] = _mm_or_si128(_mm_and_si128(_mm_srli_epi16(a, 4), low),
                                    _mm_and_si128(b, high));
    }
    interleave(low_rows, x);
    interleave(high_rows, y);
    to += k * 2 * PAIRS;
    for (int i = 0; i < 4; i++) {
        store_offsets(to + 8 * PAIRS * i, _mm_unpacklo_epi32(x[i], y[i]));
        store_offsets(to + 8 * PAIRS * i + 4 * PAIRS, _mm_unpackhi_epi32(x[i], y[i]));
    }
}

/* All blocks of filters for n patches, at most 2 * PAIRS, of at least VECTOR bytes. */
static void pair_blocks(const uint8_t *patches, size_t patch_bytes, size_t n,
                        const uint8_t *weights, size_t blocks, uint16_t *counts,
                        size_t count_stride) {
    uint16_t offsets[SEGMENT * 2 * PAIRS];
    const uint8_t *patch[2 * PAIRS]; /* the last one stands in for those missing */
    for (size_t p = 0; p < 2 * PAIRS; p++)
        patch[p] = patches + (p < n ? p : n - 1) * patch_bytes;
    size_t from = 0, bytes;
    for (size_t segments = (patch_bytes + SEGMENT - 1) / SEGMENT; segments > 0;
         segments--, from += bytes) {
        /* Segments of equal size: all have VECTOR bytes or more. */
        bytes = (patch_bytes - from + segments - 1) / segments;
        for (size_t k = 0; k + VECTOR <= bytes; k += VECTOR)
            make_offsets(patch, k, offsets);
        if (bytes % VECTOR) make_offsets(patch, bytes - VECTOR, offsets);
        for (size_t b = 0; b < blocks; b++) {
            const uint8_t *w = weights + (b * patch_bytes + from) * LANES;
            uint16_t *to = counts + b * LANES;
            int add = from > 0;
            switch ((n + 1) / 2) {
            case 4: pair_tile(offsets, w, bytes, to, count_stride, n, add, 4); break;
            case 3: pair_tile(offsets, w, bytes, to, count_stride, n, add, 3); break;
            case 2: pair_tile(offsets, w, bytes, to, count_stride, n, add, 2); break;
            default: pair_tile(offsets, w, bytes, to, count_stride, n, add, 1);
            }
        }
        for (size_t p = 0; p < 2 * PAIRS; p++) patch[p] += bytes;
    }
}

static void pair_mismatches(const uint8_t *patches, size_t patch_bytes, size_t n,
                            const uint8_t *weights, size_t blocks, uint16_t *counts,
                            size_t count_stride) {
    /* Too few to be worth row offsets: measured, a lookup per patch is faster. */
    if (n == 1 || patch_bytes < VECTOR) {
        block_mismatches(patches, patch_bytes, n, weights, blocks, counts,
                         count_stride);
        return;
    }
    for (size_t tiles = (n + 2 * PAIRS - 1) / (2 * PAIRS); tiles > 0; tiles--) {
        size_t tile = (n + tiles - 1) / tiles;
        pair_blocks(patches, patch_bytes, tile, weights, blocks, counts, count_stride);
        patches += tile * patch_bytes;
        counts += tile * count_stride;
        n -= tile;
    }
}
