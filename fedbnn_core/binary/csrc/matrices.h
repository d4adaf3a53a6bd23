/* Sums and matrix products in floats that every kernel set adds up in one order, so
 * that all give the same bits: a product of matrices adds up one output value at a time,
 * and a sum over many values has LANES partial sums. Every kernel file includes this. */

typedef float lanes
    __attribute__((vector_size(LANES * sizeof(float)), aligned(4), may_alias));
#define LANES_AT(v) (*(const lanes *)(v))
#define STORE_LANES(v, value) (*(lanes *)(v) = (value))

/* How many rows of a matrix product are added up at once, and what of each: two
 * registers, or a wide one. Eight wide sums hide each other's latency; four pairs are
 * what 16 registers hold. No sum depends on it. */
#ifdef WIDE_REGISTERS
enum { MATRIX_ROWS = 8, PAIR = 2 * LANES };
typedef float pair
    __attribute__((vector_size(PAIR * sizeof(float)), aligned(4), may_alias));
#define PAIR_AT(v) (*(const pair *)(v))
#define STORE_PAIR(v, value) (*(pair *)(v) = (value))
#define ADD_PRODUCT(sum, v, b) ((sum) += (v) * (b))
#else
#ifdef NARROW_REGISTERS
enum { MATRIX_ROWS = 4, PAIR = LANES };
#else
enum { MATRIX_ROWS = 4, PAIR = 2 * LANES };
#endif
typedef float half_pair
    __attribute__((vector_size(PAIR / 2 * sizeof(float)), aligned(4), may_alias));
typedef struct {
    half_pair low, high;
} pair;
#define HALF_AT(v) (*(const half_pair *)(v))
#define PAIR_AT(v) ((pair){HALF_AT(v), HALF_AT((v) + PAIR / 2)})
#define STORE_PAIR(v, value)                                                           \
    (*(half_pair *)(v) = (value).low, *(half_pair *)((v) + PAIR / 2) = (value).high)
#define ADD_PRODUCT(sum, v, b) ((sum).low += (v) * (b).low, (sum).high += (v) * (b).high)
#endif

static float sum_of_lanes(const float v[LANES]) {
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

static float sum_of(const float *v, size_t n) {
    lanes total = {0};
    float parts[LANES];
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) total += LANES_AT(v + i);
    STORE_LANES(parts, total);
    for (size_t j = 0; i + j < n; j++) parts[j] += v[i + j];
    return sum_of_lanes(parts);
}

static float dot(const float *a, const float *b, size_t n) {
    lanes total = {0};
    float parts[LANES];
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) total += LANES_AT(a + i) * LANES_AT(b + i);
    STORE_LANES(parts, total);
    for (size_t j = 0; i + j < n; j++) parts[j] += a[i + j] * b[i + j];
    return sum_of_lanes(parts);
}

/* What `sum_of` returns for a, and `dot` for a and b, in one pass. */
static void sum_and_dot(const float *a, const float *b, size_t n, float *sum,
                        float *product) {
    lanes total = {0}, products = {0};
    float parts[2][LANES];
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes value = LANES_AT(a + i);
        total += value;
        products += value * LANES_AT(b + i);
    }
    STORE_LANES(parts[0], total);
    STORE_LANES(parts[1], products);
    for (size_t j = 0; i + j < n; j++) {
        parts[0][j] += a[i + j];
        parts[1][j] += a[i + j] * b[i + j];
    }
    *sum = sum_of_lanes(parts[0]);
    *product = sum_of_lanes(parts[1]);
}

/* `dot` of a and b, a and c, d and b, in one pass. */
static void three_dots(const float *a, const float *b, const float *c, const float *d,
                       size_t n, float out[3]) {
    lanes ab = {0}, ac = {0}, db = {0};
    float parts[3][LANES];
    size_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        lanes ai = LANES_AT(a + i), bi = LANES_AT(b + i);
        ab += ai * bi;
        ac += ai * LANES_AT(c + i);
        db += LANES_AT(d + i) * bi;
    }
    STORE_LANES(parts[0], ab);
    STORE_LANES(parts[1], ac);
    STORE_LANES(parts[2], db);
    for (size_t j = 0; i + j < n; j++) {
        parts[0][j] += a[i + j] * b[i + j];
        parts[1][j] += a[i + j] * c[i + j];
        parts[2][j] += d[i + j] * b[i + j];
    }
    for (int k = 0; k < 3; k++) out[k] = sum_of_lanes(parts[k]);
}

/* Rows of c = a b: value k of row r of `a` lies at r * a_row + k * a_step; b and c have
 * rows of `stride` values, a multiple of LANES. */
static inline __attribute__((always_inline)) void
matrix_rows(const float *a, size_t a_row, size_t a_step, const float *b, float *c,
            size_t depth, size_t stride, const int rows) {
    size_t j = 0;
    for (; j + PAIR <= stride; j += PAIR) {
        pair sum[MATRIX_ROWS];
        memset(sum, 0, sizeof sum);
        for (size_t k = 0; k < depth; k++) {
            pair bk = PAIR_AT(b + k * stride + j);
            for (int r = 0; r < rows; r++)
                ADD_PRODUCT(sum[r], a[(size_t)r * a_row + k * a_step], bk);
        }
        for (int r = 0; r < rows; r++) STORE_PAIR(c + (size_t)r * stride + j, sum[r]);
    }
    if (j < stride) {
        lanes sum[MATRIX_ROWS] = {{0}};
        for (size_t k = 0; k < depth; k++) {
            lanes b0 = LANES_AT(b + k * stride + j);
            for (int r = 0; r < rows; r++) sum[r] += a[(size_t)r * a_row + k * a_step] * b0;
        }
        for (int r = 0; r < rows; r++) STORE_LANES(c + (size_t)r * stride + j, sum[r]);
    }
}

static inline __attribute__((always_inline)) void
all_matrix_rows(const float *a, size_t a_row, const size_t a_step, const float *b,
                float *c, size_t rows, size_t depth, size_t stride) {
    size_t r = 0;
    for (; r + MATRIX_ROWS <= rows; r += MATRIX_ROWS) {
        matrix_rows(a, a_row, a_step, b, c, depth, stride, MATRIX_ROWS);
        a += MATRIX_ROWS * a_row, c += MATRIX_ROWS * stride;
    }
    if (r + 4 <= rows) {
        matrix_rows(a, a_row, a_step, b, c, depth, stride, 4);
        r += 4, a += 4 * a_row, c += 4 * stride;
    }
    switch (rows - r) {
    case 3: matrix_rows(a, a_row, a_step, b, c, depth, stride, 3); break;
    case 2: matrix_rows(a, a_row, a_step, b, c, depth, stride, 2); break;
    case 1: matrix_rows(a, a_row, a_step, b, c, depth, stride, 1); break;
    default: break;
    }
}

/* c = a b; `a` has rows of `depth` values, `a_row` apart. */
static void matrix_product(const float *a, size_t a_row, const float *b, float *c,
                           size_t rows, size_t depth, size_t stride) {
    all_matrix_rows(a, a_row, 1, b, c, rows, depth, stride);
}

/* c = a^T b; `a` has `depth` rows, `a_step` apart. */
static void transposed_product(const float *a, size_t a_step, const float *b, float *c,
                               size_t rows, size_t depth, size_t stride) {
    all_matrix_rows(a, 1, a_step, b, c, rows, depth, stride);
}
