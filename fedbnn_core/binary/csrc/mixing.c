/* The mixed weight of a layer and its gradient: the rotation laid out for the kernels. */
#include <stdlib.h>

#include "train.h"

/* Memory for both matrices and four filters; NULL where there is none. R1^T X R2 or,
 * for the gradient, R1 X R2^T. */
static float *lay_out(mixing *m, const float *r1, const float *r2, int gradient) {
    const size_t n1 = m->n1, n2 = m->n2;
    m->stride = whole_lanes(n2);
    float *left = calloc(n1 * n1 + (n2 + 4 * n1) * m->stride, sizeof *left);
    if (!left) return NULL;
    float *right = left + n1 * n1;
    for (size_t i = 0; i < n1; i++)
        for (size_t j = 0; j < n1; j++)
            left[i * n1 + j] = gradient ? r1[i * n1 + j] : r1[j * n1 + i];
    for (size_t i = 0; i < n2; i++)
        for (size_t j = 0; j < n2; j++)
            right[i * m->stride + j] = gradient ? r2[j * n2 + i] : r2[i * n2 + j];
    m->left = left;
    m->right = right;
    return left;
}

int train_mix(const train_kernels *k, mixing m, const float *r1, const float *r2,
              float *mixed, float *moments, float *signs) {
    float *memory = lay_out(&m, r1, r2, 0);
    if (!memory) return 0;
    k->mix(&m, memory + m.n1 * m.n1 + m.n2 * m.stride, mixed, moments, signs);
    free(memory);
    return 1;
}

int train_mix_gradient(const train_kernels *k, mixing m, const float *r1,
                       const float *r2, const float *grad, const float *mixed,
                       const float *moments, float *dw, double sums[3]) {
    float *memory = lay_out(&m, r1, r2, 1);
    if (!memory) return 0;
    k->mix_gradient(&m, memory + m.n1 * m.n1 + m.n2 * m.stride, grad, mixed, moments, dw,
                    sums);
    free(memory);
    return 1;
}
