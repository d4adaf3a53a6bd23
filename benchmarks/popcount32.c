/* Instructions that ways to count bits take on a chip without an instruction for it.
 *
 * Put this in the place of main.c in a project that `fedbnn export --target cortex-m` or
 * `--target riscv` wrote, and run `make qemu`. Prints hundredths of an instruction per
 * 32-bit word, calls included, for filters of 1, 9, 18 and 36 words: 3 x 3 windows of
 * 1, 32, 64 and 128 channels. */
#include "board.h"

enum { LONGEST = 36, TIMES = 1000 };
typedef uint32_t (*counter)(const uint32_t *, const uint32_t *, uint32_t);

static uint32_t a[LONGEST], b[LONGEST];
static uint8_t ones_of_byte[256];

static uint32_t table(const uint32_t *a, const uint32_t *b, uint32_t n) {
    uint32_t total = 0;
    for (; n; n--) {
        uint32_t x = *a++ ^ *b++;
        total += (uint32_t)ones_of_byte[x & 0xFF] + ones_of_byte[x >> 8 & 0xFF] +
                 ones_of_byte[x >> 16 & 0xFF] + ones_of_byte[x >> 24];
    }
    return total;
}

/* Fields of 2, 4 and 8 bits in one word; the sum of its bytes by a multiplication. */
static inline uint32_t ones(uint32_t x) {
    x -= x >> 1 & 0x55555555u;
    x = (x & 0x33333333u) + (x >> 2 & 0x33333333u);
    return ((x + (x >> 4)) & 0x0F0F0F0Fu) * 0x01010101u >> 24;
}

static uint32_t fields(const uint32_t *a, const uint32_t *b, uint32_t n) {
    uint32_t total = 0;
    for (; n; n--) total += ones(*a++ ^ *b++);
    return total;
}

static uint32_t builtin(const uint32_t *a, const uint32_t *b, uint32_t n) {
    uint32_t total = 0;
    for (; n; n--) total += (uint32_t)__builtin_popcount(*a++ ^ *b++);
    return total;
}

/* Bytes are added up before they are summed: at most 31 words. */
static uint32_t byte_sums(const uint32_t *a, const uint32_t *b, uint32_t n) {
    uint32_t total = 0;
    while (n) {
        uint32_t block = n < 31 ? n : 31, bytes = 0;
        for (n -= block; block; block--) {
            uint32_t x = *a++ ^ *b++;
            x -= x >> 1 & 0x55555555u;
            x = (x & 0x33333333u) + (x >> 2 & 0x33333333u);
            bytes += (x + (x >> 4)) & 0x0F0F0F0Fu;
        }
        bytes = (bytes & 0x00FF00FFu) + (bytes >> 8 & 0x00FF00FFu);
        total += (bytes + (bytes >> 16)) & 0xFFFFu;
    }
    return total;
}

#define ADD3(one, two, x, y, z)                                                          \
    do {                                                                                 \
        uint32_t half = (x) ^ (y);                                                       \
        two = ((x) & (y)) | (half & (z));                                                \
        one = half ^ (z);                                                                \
    } while (0)

/* Carry-save: three words become ones and twos. */
static uint32_t carry_save_3(const uint32_t *a, const uint32_t *b, uint32_t n) {
    uint32_t total = 0;
    while (n) {
        uint32_t block = n < 30 ? n : 30, bytes = 0;
        n -= block;
        for (; block >= 3; block -= 3, a += 3, b += 3) {
            uint32_t x = a[0] ^ b[0], y = a[1] ^ b[1], z = a[2] ^ b[2], one, two;
            ADD3(one, two, x, y, z);
            one -= one >> 1 & 0x55555555u;
            two -= two >> 1 & 0x55555555u;
            one = (one & 0x33333333u) + (one >> 2 & 0x33333333u);
            two = (two & 0x33333333u) + (two >> 2 & 0x33333333u);
            one += 2 * two;
            bytes += (one & 0x0F0F0F0Fu) + (one >> 4 & 0x0F0F0F0Fu);
        }
        for (; block; block--) {
            uint32_t x = *a++ ^ *b++;
            x -= x >> 1 & 0x55555555u;
            x = (x & 0x33333333u) + (x >> 2 & 0x33333333u);
            bytes += (x + (x >> 4)) & 0x0F0F0F0Fu;
        }
        bytes = (bytes & 0x00FF00FFu) + (bytes >> 8 & 0x00FF00FFu);
        total += (bytes + (bytes >> 16)) & 0xFFFFu;
    }
    return total;
}

/* Carry-save: nine words become one of ones, two of twos and one of fours. */
static uint32_t carry_save_9(const uint32_t *a, const uint32_t *b, uint32_t n) {
    uint32_t total = 0;
    for (; n >= 9; n -= 9, a += 9, b += 9) {
        uint32_t s0, s1, s2, c0, c1, c2, one, two, pair, four;
        ADD3(s0, c0, a[0] ^ b[0], a[1] ^ b[1], a[2] ^ b[2]);
        ADD3(s1, c1, a[3] ^ b[3], a[4] ^ b[4], a[5] ^ b[5]);
        ADD3(s2, c2, a[6] ^ b[6], a[7] ^ b[7], a[8] ^ b[8]);
        ADD3(one, two, s0, s1, s2);
        ADD3(pair, four, c0, c1, c2);
        one -= one >> 1 & 0x55555555u;
        two = (two & 0x55555555u) + (two >> 1 & 0x55555555u);
        pair = (pair & 0x55555555u) + (pair >> 1 & 0x55555555u);
        four -= four >> 1 & 0x55555555u;
        one = (one & 0x33333333u) + (one >> 2 & 0x33333333u);
        two = (two & 0x33333333u) + (two >> 2 & 0x33333333u);
        pair = (pair & 0x33333333u) + (pair >> 2 & 0x33333333u);
        four = (four & 0x33333333u) + (four >> 2 & 0x33333333u);
        two += pair + four; /* at most 12 */
        one = (one & 0x0F0F0F0Fu) + (one >> 4 & 0x0F0F0F0Fu);
        two = (two & 0x0F0F0F0Fu) + (two >> 4 & 0x0F0F0F0Fu);
        four = (four & 0x0F0F0F0Fu) + (four >> 4 & 0x0F0F0F0Fu);
        one += 2 * two + 2 * four; /* at most 72 a byte */
        total += (one & 0x00FF00FFu) + (one >> 8 & 0x00FF00FFu);
    }
    total = (total + (total >> 16)) & 0xFFFFu;
    for (; n; n--) total += ones(*a++ ^ *b++);
    return total;
}

static const struct {
    const char *name;
    counter count;
} ways[] = {{"table", table},           {"fields", fields},
            {"builtin", builtin},       {"byte sums", byte_sums},
            {"carry-save 3", carry_save_3}, {"carry-save 9", carry_save_9}};

static void print_number(uint32_t value) {
    char digits[12], *at = digits + sizeof digits;
    *--at = '\0';
    do *--at = (char)('0' + value % 10);
    while (value /= 10);
    board_print(" ");
    board_print(at);
}

int main(void) {
    static const uint32_t lengths[] = {1, 9, 18, LONGEST};
    for (uint32_t i = 0; i < 256; i++) ones_of_byte[i] = (uint8_t)ones(i);
    for (uint32_t i = 0, x = 1; i < 2 * LONGEST; i++) {
        x = x * 1664525u + 1013904223u;
        (i < LONGEST ? a : b)[i % LONGEST] = x;
    }
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        counter volatile count = ways[way].count;
        board_print(ways[way].name);
        for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
            uint32_t n = lengths[i], start, total;
            if (count(a, b, n) != fields(a, b, n)) return 1;
            start = board_instructions(0);
            for (int t = 0; t < TIMES; t++) count(a, b, n);
            total = board_instructions(start);
            print_number(total * 100 / TIMES / n);
        }
        board_print("\n");
    }
    return 0;
}
