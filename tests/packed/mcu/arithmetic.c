/* Read float triples and rows of products, write what fbnn.c makes of them.
 *
 * stdin: uint32 n, then n (x, gain, offset); uint32 rows, uint32 length, then per row
 * the bias, `length` values and `length` weights. stdout: n multiply-adds, then per row
 * the fast sum and the sum step by step. */
#include "fbnn.c"

#include <stdio.h>
#include <stdlib.h>

enum { LONGEST = 512 };

static uint32_t number_of(FILE *file) {
    uint32_t value;
    if (fread(&value, sizeof value, 1, file) != 1) exit(1);
    return value;
}

static void floats_of(FILE *file, float *to, uint32_t n) {
    if (fread(to, sizeof *to, n, file) != n) exit(1);
}

static void put(float value) { fwrite(&value, sizeof value, 1, stdout); }

int main(void) {
    static float values[LONGEST], rows[LONGEST];
    static parts patch[LONGEST];
    for (uint32_t n = number_of(stdin); n; n--) {
        float triple[3];
        floats_of(stdin, triple, 3);
        put(multiply_add(triple[0], triple[1], triple[2]));
    }
    uint32_t count = number_of(stdin), length = number_of(stdin);
    if (length > LONGEST) return 1;
    for (; count; count--) {
        float bias;
        floats_of(stdin, &bias, 1);
        floats_of(stdin, values, length);
        floats_of(stdin, rows, length);
        int32_t inputs = -1000, filters = -1000;
        for (uint32_t i = 0; i < length; i++) {
            patch[i] = split(values[i]);
            parts w = split(rows[i]);
            if (patch[i].m && patch[i].e > inputs) inputs = patch[i].e;
            if (w.m && w.e > filters) filters = w.e;
        }
        weights w = {rows, 0.0f, 0};
        put(sum_of_products(patch, &w, length, split(bias), inputs + filters));
        put(sum_in_order(patch, &w, length, split(bias)));
    }
    return 0;
}

/* fbnn.c refers to a network. */
const fbnn_network fbnn_model_data[1];
const size_t fbnn_model_size;
