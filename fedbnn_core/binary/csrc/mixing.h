/* The mixed weight of a binary layer, filter by filter, and its gradient: METHOD.md,
 * Eq. 9, 10 and 17 to 21. Every kernel file includes this. A filter stays in the cache
 * from its first step to its last. */
/* z = std(lambda w + (1 - lambda) w_server) of a filter, given the mean and norm. */
static inline void standardize(const mixing *m, const float *w, const float *ws,
                               const float moments[2], float *z, size_t n) {
    const float mean = moments[0], inverse = 1.0f / (moments[1] * m->per_norm + m->eps);
    for (size_t i = 0; i < n; i++)
        z[i] = ((ws[i] + m->lam * (w[i] - ws[i])) - mean) * inverse;
}

/* w~ and its sign. */
static void mix(const mixing *m, float *scratch, float *mixed, float *moments,
                float *signs) {
    const size_t n1 = m->n1, n2 = m->n2, n = n1 * n2, stride = m->stride;
    const float both = m->alpha * m->beta, own = 1.0f - m->alpha;
    const float server = m->alpha - both, lam = m->lam;
    float *half = scratch, *turned = scratch + n1 * stride, *z = turned + n1 * stride;
    for (size_t f = 0; f < m->filters; f++, moments += 2, mixed += n, signs += n) {
        const float *w = m->w + f * n, *ws = m->w_server + f * n;
        const float *zs = m->z_server + f * n;
        for (size_t i = 0; i < n; i++) z[i] = ws[i] + lam * (w[i] - ws[i]);
        moments[0] = sum_of(z, n) / (float)n;
        for (size_t i = 0; i < n; i++) z[i] -= moments[0];
        moments[1] = sqrtf(dot(z, z, n));
        standardize(m, w, ws, moments, z, n);
        matrix_product(z, n2, m->right, half, n1, n2, stride);
        matrix_product(m->left, n1, half, turned, n1, n1, stride);
        for (size_t r = 0; r < n1; r++)
            for (size_t c = 0; c < n2; c++) {
                const size_t i = r * n2 + c;
                mixed[i] = own * z[i] + server * zs[i] + both * turned[r * stride + c];
            }
        const size_t taps = m->taps, channels = n / taps;
        for (size_t t = 0; t < taps; t++)
            for (size_t c = 0; c < channels; c++)
                signs[t * channels + c] = mixed[c * taps + t] >= 0.0f ? 1.0f : -1.0f;
    }
}

/* dL/dw of dL/dsign; sums receives dL/dalpha, dL/dbeta and dL/dlambda. */
static void mix_gradient(const mixing *m, float *scratch, const float *grad,
                         const float *mixed, const float *moments, float *dw,
                         double sums[3]) {
    const size_t n1 = m->n1, n2 = m->n2, n = n1 * n2, stride = m->stride;
    const float both = m->alpha * m->beta, own = 1.0f - m->alpha, lam = m->lam;
    const float height = m->height, slope = m->slope;
    float *half = scratch, *turned = scratch + n1 * stride, *g = turned + n1 * stride;
    float *z = g + n1 * stride;
    double with_z = 0.0, with_server = 0.0, with_turned = 0.0, fused = 0.0;
    for (size_t f = 0; f < m->filters; f++, mixed += n, grad += n, dw += n) {
        const float *w = m->w + f * n, *ws = m->w_server + f * n;
        const float norm = moments[2 * f + 1];
        standardize(m, w, ws, moments + 2 * f, z, n);
        for (size_t i = 0; i < n; i++) {
            const float a = mixed[i] < 0.0f ? -mixed[i] : mixed[i];
            const float v = height - slope * a;
            g[i] = grad[i] * (v > 0.0f ? v : 0.0f);
        }
        matrix_product(g, n2, m->right, half, n1, n2, stride);
        matrix_product(m->left, n1, half, turned, n1, n1, stride);
        if (stride != n2)
            for (size_t r = 1; r < n1; r++)
                memmove(turned + r * n2, turned + r * stride, n2 * sizeof *turned);
        float products[3], sum, with_own;
        three_dots(g, z, m->z_server + f * n, turned, n, products);
        with_z += (double)products[0];
        with_server += (double)products[1];
        with_turned += (double)products[2];
        for (size_t i = 0; i < n; i++) g[i] = own * g[i] + both * turned[i];
        sum_and_dot(g, z, n, &sum, &with_own);
        const float mean = sum / (float)n;
        const float tiny = norm > FLT_MIN ? norm : FLT_MIN;
        const float coupling = with_own / tiny * lam * m->per_norm;
        const float gain = lam / (norm * m->per_norm + m->eps);
        for (size_t i = 0; i < n; i++) {
            const float d = (g[i] - mean) * gain - z[i] * coupling;
            dw[i] = d;
            g[i] = w[i] - ws[i];
        }
        fused += (double)dot(dw, g, n);
    }
    const double from_server = with_turned - with_server;
    sums[0] = with_server - with_z + (double)m->beta * from_server;
    sums[1] = (double)m->alpha * from_server;
    sums[2] = fused / (lam > 1e-30f ? (double)lam : 1e-30);
}
