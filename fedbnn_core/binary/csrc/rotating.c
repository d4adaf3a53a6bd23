/* Rotations of a layer, learnt: its matrices laid out for the kernels. */
#include <stdlib.h>
#include <string.h>

#include "train.h"

/* Copy rows of n values, `from` and `to` values apart. */
static void copy_rows(float *to, size_t to_row, const float *from, size_t from_row,
                      size_t n) {
    for (size_t i = 0; i < n; i++)
        memcpy(to + i * to_row, from + i * from_row, n * sizeof *to);
}

int train_turn(const train_kernels *k, turning l, float *r1, float *r2,
               float *deviation) {
    const size_t s1 = l.stride1 = whole_lanes(l.n1);
    const size_t s2 = l.stride2 = whole_lanes(l.n2);
    const size_t widest = s1 > s2 ? s1 : s2, high = l.n2 * s1, wide = l.n1 * s2;
    l.square = widest * widest;
    const size_t matrices = l.square * 4 + 2 * high + l.n1 * s1 + l.n2 * s2;
    float *memory = calloc(matrices + l.filters * (high + wide), sizeof *memory);
    if (!memory) return 0;
    l.room = memory;
    l.v = l.room + 4 * l.square;
    l.b = l.v + high;
    float *own1 = l.b + high, *own2 = own1 + l.n1 * s1;
    l.half = own2 + l.n2 * s2;
    l.signs = l.half + l.filters * high;
    copy_rows(own1, s1, r1, l.n1, l.n1);
    copy_rows(own2, s2, r2, l.n2, l.n2);
    *deviation = k->turn(&l, own1, own2);
    copy_rows(r1, l.n1, own1, s1, l.n1);
    copy_rows(r2, l.n2, own2, s2, l.n2);
    free(memory);
    return 1;
}
