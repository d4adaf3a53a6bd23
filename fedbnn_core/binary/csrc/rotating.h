/* Rotations of a layer, learnt from its weights: METHOD.md, Eq. 11 and 12. Every kernel
 * file includes this. */

enum { POLAR_STEPS = 8 };
static const float POLAR_LARGEST = 1.4f;

/* The factor U V^T of x = U S V^T, in place, and how far it is from orthogonal: the
 * Newton-Schulz iteration that rotation.py explains. `room` holds two such matrices. */
static float polar_factor(float *x, size_t n, size_t stride, float *room) {
    float *s = room, *step = room + n * stride;
    const float size = sqrtf(dot(x, x, n * stride));
    for (size_t i = 0; i < n * stride; i++) x[i] /= size;
    transposed_product(x, stride, x, s, n, n, stride);
    matrix_product(s, stride, s, step, n, n, stride);
    const float fourth = sqrtf(dot(step, step, n * stride));
    const float scale = POLAR_LARGEST / sqrtf(sqrtf(fourth));
    for (size_t i = 0; i < n * stride; i++) x[i] *= scale;
    for (int turn = 0; turn < POLAR_STEPS; turn++) {
        transposed_product(x, stride, x, s, n, n, stride);
        matrix_product(s, stride, s, step, n, n, stride);
        for (size_t i = 0; i < n * stride; i++) s[i] = 0.375f * step[i] - 1.25f * s[i];
        for (size_t i = 0; i < n; i++) s[i * stride + i] += 1.875f;
        matrix_product(x, stride, s, step, n, n, stride);
        memcpy(x, step, n * stride * sizeof *x);
    }
    transposed_product(x, stride, x, s, n, n, stride);
    float worst = 0.0f;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < n; j++) {
            const float off = fabsf(s[i * stride + j] - (i == j ? 1.0f : 0.0f));
            if (!(off <= worst)) worst = off; /* a NaN stays */
        }
    return worst;
}

/* Improve R1 (n1 rows of l->stride1) and R2 (n2 rows of l->stride2) of filters X by
 * steps of bi-rotation; return how far any factor was from orthogonal. */
static float turn(const turning *l, float *r1, float *r2) {
    const size_t n1 = l->n1, n2 = l->n2, n = n1 * n2;
    const size_t s1 = l->stride1, s2 = l->stride2;
    float *part = l->room, *sum = part + l->square, *room = sum + l->square;
    float worst = 0.0f;
    for (size_t f = 0; f < l->filters; f++) /* X^T R1 */
        transposed_product(l->x + f * n, n2, r1, l->half + f * n2 * s1, n2, n1, s1);
    for (size_t step = 0; step < l->iterations; step++) {
        /* V^T = R2^T (X^T R1), B = sign(V); the sum of V B^T. */
        memset(sum, 0, n1 * s1 * sizeof *sum);
        for (size_t f = 0; f < l->filters; f++) {
            float *v = l->v, *b = l->b, *signs = l->signs + f * n1 * s2;
            transposed_product(r2, s2, l->half + f * n2 * s1, v, n2, n2, s1);
            for (size_t i = 0; i < n2 * s1; i++) b[i] = v[i] >= 0.0f ? 1.0f : -1.0f;
            for (size_t i = 0; i < n1; i++)
                for (size_t j = 0; j < n2; j++) signs[i * s2 + j] = b[j * s1 + i];
            transposed_product(v, s1, b, part, n1, n2, s1);
            for (size_t i = 0; i < n1 * s1; i++) sum[i] += part[i];
        }
        for (size_t i = 0; i < n1; i++) /* what the signs of no value have left there */
            for (size_t j = n1; j < s1; j++) sum[i * s1 + j] = 0.0f;
        /* Eq. 11: D1^T = R1 sum_i V_i B_i^T, whose factor is R1. */
        matrix_product(r1, s1, sum, part, n1, n1, s1);
        memcpy(r1, part, n1 * s1 * sizeof *r1);
        float off = polar_factor(r1, n1, s1, room);
        if (!(off <= worst)) worst = off;
        /* Eq. 12: D2 = sum_i X_i^T R1 B_i, whose factor is R2. */
        memset(sum, 0, n2 * s2 * sizeof *sum);
        for (size_t f = 0; f < l->filters; f++) {
            float *half = l->half + f * n2 * s1;
            transposed_product(l->x + f * n, n2, r1, half, n2, n1, s1);
            matrix_product(half, s1, l->signs + f * n1 * s2, part, n2, n1, s2);
            for (size_t i = 0; i < n2 * s2; i++) sum[i] += part[i];
        }
        memcpy(r2, sum, n2 * s2 * sizeof *r2);
        off = polar_factor(r2, n2, s2, room);
        if (!(off <= worst)) worst = off;
    }
    return worst;
}
