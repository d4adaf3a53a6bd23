/* Passes of a batch norm over values y of type Y, whole sums or floats: `passes.h`
 * includes this once for each. WIDE holds -y and compares. */
static void OF_Y(affine)(const void *values, size_t n, size_t channels,
                         const float *restrict gain, const float *restrict offset,
                         float *restrict out) {
    const Y *restrict y = values;
    for (size_t p = 0; p < n; p++, y += channels, out += channels)
        for (size_t c = 0; c < channels; c++)
            out[c] = (float)y[c] * gain[c] + offset[c];
}

static void OF_Y(pool_row)(const void *upper, const void *lower, size_t n,
                           size_t channels, const float *restrict flip, void *pooled) {
    const Y *restrict up = upper, *restrict down = lower;
    Y *restrict out = pooled;
    for (size_t p = 0; p < n; p++, out += channels)
        for (size_t c = 0; c < channels; c++) {
            WIDE f = flip[c] < 0.0f ? -1 : 1;
            const Y *a = up + 2 * p * channels, *b = down + 2 * p * channels;
            WIDE m = f * a[c], v = f * a[channels + c];
            m = v > m ? v : m;
            v = f * b[c];
            m = v > m ? v : m;
            v = f * b[channels + c];
            m = v > m ? v : m;
            out[c] = (Y)(f * m);
        }
}

static void OF_Y(add_norm_sums)(const float *restrict dz, const void *values, size_t n,
                                size_t channels, const float *restrict mean,
                                double *restrict sums, double *restrict products) {
    const Y *restrict y = values;
    for (size_t p = 0; p < n; p++, dz += channels, y += channels)
        for (size_t c = 0; c < channels; c++) {
            float product = dz[c] * ((float)y[c] - mean[c]);
            sums[c] += (double)dz[c];
            products[c] += (double)product;
        }
}

static void OF_Y(gradient_row)(const norm_gradient *g, const float *restrict dz,
                               const void *values, size_t width, size_t channels,
                               float *restrict dy) {
    const Y *restrict y = values;
    const float *gain = g->gain, *constant = g->constant, *linear = g->linear;
    for (size_t x = 0; x < width; x++, y += channels, dy += channels) {
        if (dz) {
            for (size_t c = 0; c < channels; c++)
                dy[c] = gain[c] * dz[c] + (constant[c] + linear[c] * (float)y[c]);
            dz += channels;
        } else {
            for (size_t c = 0; c < channels; c++)
                dy[c] = constant[c] + linear[c] * (float)y[c];
        }
    }
}

/* Windows of 2 x 2: dz goes to the first of the largest values, as torch does. */
static void OF_Y(gradient_rows)(const norm_gradient *g, const float *restrict dz,
                                const void *values, size_t width, size_t channels,
                                float *restrict dy) {
    const Y *restrict y = values;
    const float *restrict gain = g->gain, *restrict constant = g->constant;
    const float *restrict linear = g->linear, *restrict flip = g->flip;
    size_t down = width * channels, windows = width / 2;
    int after = g->pool == POOL_AFTER;
    for (size_t x = 0; x < windows; x++, dz += channels) {
        const Y *restrict upper = y + 2 * x * channels;
        float *restrict to = dy + 2 * x * channels;
        for (size_t c = 0; c < channels; c++) {
            float v0 = upper[c], v1 = upper[channels + c];
            float v2 = upper[down + c], v3 = upper[down + channels + c];
            float f = after ? flip[c] : 1.0f;
            float f0 = f * v0, f1 = f * v1, f2 = f * v2, f3 = f * v3;
            float top = f0 > f1 ? f0 : f1, low = f2 > f3 ? f2 : f3;
            float most = top > low ? top : low;
            float z = gain[c] * dz[c];
            float dm = z + (constant[c] + linear[c] * (f * most));
            z = after ? z : dm;
            float k = after ? constant[c] : 0.0f, l = after ? linear[c] : 0.0f;
            int is0 = f0 == most, is1 = !is0 & (f1 == most);
            int is2 = !is0 & !is1 & (f2 == most), is3 = !is0 & !is1 & !is2;
            to[c] = (is0 ? z : 0.0f) + (k + l * v0);
            to[channels + c] = (is1 ? z : 0.0f) + (k + l * v1);
            to[down + c] = (is2 ? z : 0.0f) + (k + l * v2);
            to[down + channels + c] = (is3 ? z : 0.0f) + (k + l * v3);
        }
    }
    if (width % 2) /* the last column belongs to no window */
        for (size_t row = 0; row < 2; row++) {
            size_t at = row * down + (width - 1) * channels;
            for (size_t c = 0; c < channels; c++)
                dy[at + c] = after ? constant[c] + linear[c] * (float)y[at + c] : 0.0f;
        }
}

#undef Y
#undef WIDE
#undef OF_Y
