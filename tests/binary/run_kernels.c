/* Train convolutions of many shapes on one kernel set and print a hash of each result.
 * Arguments: the kernel set; without one, all sets are listed. */
#include <stdio.h>
#include <stdlib.h>

#include "../../fedbnn_core/binary/csrc/train.h"

static uint32_t state = 1;

static uint32_t draw(void) {
    state = state * 1664525u + 1013904223u;
    return state >> 8;
}

static void fill(float *to, size_t n) {
    for (size_t i = 0; i < n; i++) to[i] = ((float)draw() - 8388608.0f) * 0x1p-22f;
}

static uint64_t hash(uint64_t h, const void *data, size_t bytes) {
    const uint8_t *at = data;
    for (size_t i = 0; i < bytes; i++) h = (h ^ at[i]) * 1099511628211u;
    return h;
}

static uint64_t train(const train_kernels *k, const size_t numbers[9], int pool) {
    geometry g;
    if (!train_geometry(&g, numbers)) abort();
    size_t inputs = g.n * g.h * g.w * g.ci, weights = g.co * g.fan_in;
    size_t outputs = g.n * g.ho * g.wo * g.co;
    float *x = malloc(inputs * 4), *dx = malloc(inputs * 4), *w = malloc(weights * 4);
    float *dw = malloc(weights * 4), *z = malloc(outputs * 4), *dz = malloc(outputs * 4);
    float *parts = malloc(4 * g.co * 4), scale;
    double *saved = malloc(4 * g.co * 8);
    uint8_t *bits = malloc(train_sign_bytes(&g)), *slopes = malloc(inputs);
    uint8_t *rounded = malloc(train_gradient_bytes(&g));
    int8_t *signs = malloc(weights);
    int16_t *y = malloc(outputs * 2);
    const uint32_t key[2] = {7, 99};
    fill(x, inputs);
    fill(w, weights);
    fill(dz, outputs);
    fill(parts, 2 * g.co);
    for (size_t i = 0; i < weights; i++) signs[i] = w[i] >= 0.0f ? 1 : -1;
    train_signs(k, x, g.n * g.h * g.w, g.ci, 180.3f, 1.0f, bits, slopes);
    int done = train_forward(k, &g, bits, w, y) &&
               train_normalize(k, &g, OF_SUMS, y, pool, parts, parts + g.co, 1e-5, z,
                               saved) &&
               train_norm_gradient(k, &g, dz, y, pool, parts, saved, 127, key, rounded,
                                   &scale, parts + 2 * g.co, parts + 3 * g.co) &&
               train_input_gradient(k, &g, rounded, signs, slopes, scale, dx) &&
               train_weight_gradient(k, &g, rounded, bits, scale, dw);
    if (!done) abort();
    size_t shown = pool ? g.n * (g.ho / 2) * (g.wo / 2) * g.co : outputs;
    uint64_t h = 14695981039346656037u;
    h = hash(h, bits, train_sign_bytes(&g));
    h = hash(h, slopes, inputs);
    h = hash(h, y, outputs * 2);
    h = hash(h, z, shown * 4);
    h = hash(h, rounded, train_gradient_bytes(&g));
    h = hash(h, parts, 4 * g.co * 4);
    h = hash(h, dx, inputs * 4);
    h = hash(h, dw, weights * 4);
    /* The same norm over floats. */
    float *floats = malloc(outputs * 4);
    fill(floats, outputs);
    if (!train_normalize(k, &g, OF_FLOATS, floats, pool, parts, parts + g.co, 1e-5, z,
                         saved))
        abort();
    h = hash(h, z, shown * 4);
    float *dy = malloc(outputs * 4);
    if (!train_float_norm_gradient(k, &g, dz, floats, pool, parts, saved, dy,
                                   parts + 2 * g.co, parts + 3 * g.co))
        abort();
    h = hash(h, dy, outputs * 4);
    h = hash(h, parts, 4 * g.co * 4);
    free(floats), free(dy);
    void *all[] = {x, dx, w, dw, z, dz, parts, saved, bits, slopes, rounded, signs, y};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
    return h;
}

/* The mixed weight of filters of n1 x n2 values, and its gradient. */
static uint64_t mix_weights(const train_kernels *k, size_t filters, size_t n1, size_t n2,
                            size_t taps) {
    size_t n = filters * n1 * n2;
    float *in = malloc(4 * n * 4), *r1 = malloc(n1 * n1 * 4), *r2 = malloc(n2 * n2 * 4);
    float *mixed = malloc(n * 4), *signs = malloc(n * 4);
    float *dw = malloc(n * 4), *moments = malloc(filters * 8);
    double sums[3];
    fill(in, 4 * n);
    fill(r1, n1 * n1);
    fill(r2, n2 * n2);
    mixing m = {.filters = filters, .n1 = n1, .n2 = n2, .taps = taps,
                .w = in, .w_server = in + n, .z_server = in + 2 * n,
                .lam = 0.3f, .alpha = 0.7f, .beta = 0.4f, .per_norm = 0.2f,
                .eps = 1e-5f, .height = 1.4f, .slope = 0.9f};
    if (!train_mix(k, m, r1, r2, mixed, moments, signs) ||
        !train_mix_gradient(k, m, r1, r2, in + 3 * n, mixed, moments, dw, sums))
        abort();
    uint64_t h = hash(14695981039346656037u, mixed, n * 4);
    h = hash(hash(hash(h, signs, n * 4), moments, filters * 8), dw, n * 4);
    h = hash(h, sums, sizeof sums);
    free(in), free(r1), free(r2), free(mixed), free(signs), free(dw);
    free(moments);
    return h;
}

/* Rotations learnt from filters of n1 x n2 values. */
static uint64_t turn_weights(const train_kernels *k, size_t filters, size_t n1,
                             size_t n2) {
    size_t n = filters * n1 * n2;
    float *x = malloc(n * 4), *r1 = calloc(n1 * n1, 4), *r2 = calloc(n2 * n2, 4), off;
    fill(x, n);
    for (size_t i = 0; i < n1; i++) r1[i * n1 + i] = 1.0f;
    for (size_t i = 0; i < n2; i++) r2[i * n2 + i] = 1.0f;
    const turning l = {.filters = filters, .n1 = n1, .n2 = n2, .iterations = 3, .x = x};
    if (!train_turn(k, l, r1, r2, &off)) abort();
    uint64_t h = hash(14695981039346656037u, r1, n1 * n1 * 4);
    h = hash(hash(h, r2, n2 * n2 * 4), &off, sizeof off);
    free(x), free(r1), free(r2);
    return h;
}

int main(int count, char **arguments) {
    if (count < 2) {
        for (const char *const *name = train_names(); *name; name++) puts(*name);
        return 0;
    }
    const train_kernels *k = train_find(arguments[1]);
    if (!k) return 1;
    static const size_t shapes[][9] = {
        {2, 7, 7, 32, 16, 3, 1, 1, 1},  {3, 5, 6, 3, 5, 3, 1, 1, 1},
        {2, 8, 9, 17, 33, 3, 2, 1, 1},  {2, 9, 7, 64, 40, 1, 1, 0, 1},
        {1, 28, 28, 1, 32, 3, 1, 1, 1}, {2, 6, 6, 40, 9, 2, 2, 0, 1},
        {3, 8, 8, 12, 6, 5, 3, 2, 1},   {1, 7, 7, 2, 3, 7, 1, 3, 1},
        {9, 8, 8, 8, 13, 3, 1, 1, 1},   {2, 4, 4, 130, 20, 3, 1, 1, 1},
        {2, 9, 8, 40, 40, 7, 1, 3, 40}, {2, 5, 5, 7, 7, 3, 1, 1, 7}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        for (int pool = POOL_NONE; pool <= POOL_BEFORE; pool++)
            printf("%zu %d %016llx\n", i, pool,
                   (unsigned long long)train(k, shapes[i], pool));
    static const size_t layers[][4] = {
        {5, 16, 18, 9}, {7, 3, 3, 9}, {4, 7, 7, 49}, {3, 1, 2, 1}, {2, 24, 24, 9}};
    for (size_t i = 0; i < sizeof layers / sizeof layers[0]; i++) {
        const size_t *n = layers[i];
        printf("mix %zu %016llx\n", i,
               (unsigned long long)mix_weights(k, n[0], n[1], n[2], n[3]));
        printf("turn %zu %016llx\n", i,
               (unsigned long long)turn_weights(k, 40 * n[0], n[1], n[2]));
    }
    return 0;
}
