/* The kernel set for every CPU: plain C. */
#include "train.h"

#define NARROW_REGISTERS
#include "passes.h"

static void products(const uint8_t *const *rows, size_t n, size_t row_step,
                     const ptrdiff_t *offsets, size_t runs, size_t steps,
                     const int8_t *panel, int32_t *out) {
    for (size_t r = 0; r < n; r++) {
        int32_t total[COLUMNS] = {0};
        const int8_t *b = panel;
        for (size_t t = 0; t < runs; t++) {
            const uint8_t *a = rows[r] + offsets[t];
            for (size_t s = 0; s < steps; s++, a += row_step, b += 4 * COLUMNS)
                for (size_t c = 0; c < COLUMNS; c++)
                    total[c] += a[0] * b[4 * c] + a[1] * b[4 * c + 1] +
                                a[2] * b[4 * c + 2] + a[3] * b[4 * c + 3];
        }
        memcpy(out + r * COLUMNS, total, sizeof total);
    }
}

const train_kernels train_portable = {
    .name = "portable",
    .bits = &fbnn_portable,
    .rows = 4,
    PASSES,
};
