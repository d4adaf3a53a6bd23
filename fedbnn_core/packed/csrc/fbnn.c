/* The public functions: open, run, close. */
#include "execute.h"
#include "threads.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_THREADS = 256 };

static int cpu_has(const kernel_set *k) {
#if defined(__x86_64__)
    if (k == &fbnn_avx512)
        return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512vpopcntdq") &&
               __builtin_cpu_supports("fma");
    if (k == &fbnn_avx2)
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return k != NULL;
}

static const kernel_set *const KERNEL_SETS[] = {
#if defined(__x86_64__)
    &fbnn_avx512, &fbnn_avx2,
#elif defined(__aarch64__)
    &fbnn_neon,
#endif
    &fbnn_portable, NULL};

const kernel_set *fbnn_find_kernels(const char *name) {
    int any = !name || strcmp(name, "auto") == 0;
    for (size_t i = 0; KERNEL_SETS[i]; i++)
        if (cpu_has(KERNEL_SETS[i]) && (any || strcmp(name, KERNEL_SETS[i]->name) == 0))
            return KERNEL_SETS[i];
    return NULL;
}

const char *const *fbnn_kernel_names(void) {
    static const char *names[sizeof KERNEL_SETS / sizeof KERNEL_SETS[0]];
    size_t n = 0;
    for (size_t i = 0; KERNEL_SETS[i]; i++)
        if (cpu_has(KERNEL_SETS[i])) names[n++] = KERNEL_SETS[i]->name;
    return names;
}

/* One image's memory is a single block; with `memory` NULL it is only measured. */
static uint64_t lay_out(const fbnn_model *m, uint8_t *memory, arena *a) {
    uint64_t used = 0;
    for (int i = 0; i < FBNN_SLOTS; i++) {
        if (memory) a->floats[i] = (float *)(void *)(memory + used);
        used += round_up(m->float_slot[i], 64);
        if (memory) a->bits[i] = memory + used;
        used += round_up(m->bits_slot[i], 64);
    }
    if (memory) a->scratch = memory + used;
    return used + m->scratch_bytes;
}

static fbnn_status reserve_arenas(fbnn_model *m) {
    uint64_t scratch = 64;
    for (uint32_t i = 0; i < m->operations; i++) {
        uint64_t needed = fbnn_scratch_bytes(&m->ops[i]);
        if (needed > scratch) scratch = needed;
    }
    if (scratch > FBNN_MAX_MEMORY) return FBNN_ERROR_LIMIT;
    m->scratch_bytes = (size_t)scratch;
    uint64_t bytes = lay_out(m, NULL, NULL);
    if (bytes > FBNN_MAX_MEMORY) return FBNN_ERROR_LIMIT;
    m->arenas = calloc(m->threads, sizeof(arena));
    m->arena_memory = calloc(m->threads, sizeof(void *));
    if (!m->arenas || !m->arena_memory) return FBNN_ERROR_MEMORY;
    for (unsigned i = 0; i < m->threads; i++) {
        m->arena_memory[i] = malloc((size_t)bytes + 63);
        if (!m->arena_memory[i]) return FBNN_ERROR_MEMORY;
        size_t offset = (64 - (uintptr_t)m->arena_memory[i] % 64) % 64;
        lay_out(m, (uint8_t *)m->arena_memory[i] + offset, &m->arenas[i]);
    }
    m->activation_bytes = bytes;
    return FBNN_OK;
}

static fbnn_status open_model(fbnn_model *m, const void *file, size_t size) {
    fbnn_status status = fbnn_read(m, file, size);
    if (status != FBNN_OK) return status;
    m->pool = fbnn_pool_create(m->threads);
    if (!m->pool) return FBNN_ERROR_MEMORY;
    m->threads = fbnn_pool_parts(m->pool);
    return reserve_arenas(m);
}

fbnn_status fbnn_open(const void *file, size_t size, const fbnn_options *options,
                      fbnn_model **model) {
    *model = NULL;
    const kernel_set *kernels = fbnn_find_kernels(options ? options->kernel : NULL);
    if (!kernels) return FBNN_ERROR_KERNEL;
    fbnn_model *m = calloc(1, sizeof *m);
    if (!m) return FBNN_ERROR_MEMORY;
    m->kernels = kernels;
    m->threads = options && options->threads > 1 ? options->threads : 1;
    if (m->threads > MAX_THREADS) m->threads = MAX_THREADS;
    fbnn_status status = open_model(m, file, size);
    if (status == FBNN_OK)
        *model = m;
    else
        fbnn_close(m);
    return status;
}

void fbnn_close(fbnn_model *m) {
    if (!m) return;
    fbnn_pool_destroy(m->pool);
    for (uint32_t i = 0; m->ops && i < m->operations; i++) {
        operation *op = &m->ops[i];
        free(op->bit_weights);
        free(op->weights);
        free(op->bias);
        free(op->thresholds);
        free(op->flips);
        free(op->gain);
        free(op->offset);
        free(op->scale);
        free(op->mask);
    }
    for (unsigned i = 0; m->arena_memory && i < m->threads; i++)
        free(m->arena_memory[i]);
    free(m->arena_memory);
    free(m->arenas);
    free(m->ops);
    free(m->class_names);
    free(m->class_name);
    free(m->pixel_table);
    free(m);
}

typedef struct {
    fbnn_model *model;
    const uint8_t *pixels;
    const float *normalized;
    size_t n;
    float *logits;
    int32_t *labels;
    uint32_t operation; /* of a single image whose operations are split */
    int32_t *sums;
} batch;

static size_t image_values(const fbnn_model *m) {
    return positions(m->input) * m->input.channels;
}

static image image_at(const batch *b, size_t i) {
    size_t at = i * image_values(b->model);
    image input = {b->pixels ? b->pixels + at : NULL,
                   b->normalized ? b->normalized + at : NULL};
    return input;
}

static void store_result(const batch *b, const arena *a, size_t i) {
    const fbnn_model *m = b->model;
    const float *result = a->floats[m->ops[m->operations - 1].out_float];
    if (b->logits)
        memcpy(b->logits + i * m->classes, result, m->classes * sizeof(float));
    if (b->labels) {
        uint32_t best = 0;
        for (uint32_t c = 1; c < m->classes; c++)
            if (result[c] > result[best]) best = c;
        b->labels[i] = (int32_t)best;
    }
}

static void run_images(void *context, unsigned part, unsigned parts) {
    const batch *b = context;
    const fbnn_model *m = b->model;
    const arena *a = &m->arenas[part];
    size_t end = b->n / parts * (part + 1) + b->n % parts * (part + 1) / parts;
    size_t i = b->n / parts * part + b->n % parts * part / parts;
    for (; i < end; i++) {
        for (uint32_t op = 0; op < m->operations; op++)
            fbnn_execute(m, &m->ops[op], image_at(b, i), a, a->scratch, 0, 1, NULL);
        store_result(b, a, i);
    }
}

static void run_operation(void *context, unsigned part, unsigned parts) {
    const batch *b = context;
    const fbnn_model *m = b->model;
    fbnn_execute(m, &m->ops[b->operation], image_at(b, 0), &m->arenas[0],
                 m->arenas[part].scratch, part, parts, b->sums);
}

/* Waking the threads and waiting for them takes some microseconds, in which one thread
 * does about four million binary or a quarter of a million float operations. */
static int worth_sharing(const operation *op) {
    uint64_t values = (uint64_t)positions(op->out) * op->out.channels;
    if (op->kind == OP_BCONV) return values * (op->fan_in + 64) >= 4000000;
    return values * (op->fan_in + 4) >= 250000;
}

/* Several images: each thread takes whole images. Fewer images than threads: all
 * threads share every operation of one image. */
static void run(batch *b) {
    fbnn_model *m = b->model;
    if (b->n >= m->threads) {
        fbnn_pool_run(m->pool, run_images, b);
        return;
    }
    batch one = *b;
    for (size_t i = 0; i < b->n; i++) {
        image input = image_at(b, i);
        one.pixels = input.pixels;
        one.normalized = input.normalized;
        for (one.operation = 0; one.operation < m->operations; one.operation++)
            if (worth_sharing(&m->ops[one.operation]))
                fbnn_pool_run(m->pool, run_operation, &one);
            else
                run_operation(&one, 0, 1);
        store_result(b, &m->arenas[0], i);
    }
}

fbnn_status fbnn_predict(fbnn_model *m, const uint8_t *pixels, size_t n,
                         int32_t *labels) {
    batch b = {.model = m, .pixels = pixels, .n = n, .labels = labels};
    run(&b);
    return FBNN_OK;
}

fbnn_status fbnn_logits(fbnn_model *m, const uint8_t *pixels, size_t n, float *logits) {
    batch b = {.model = m, .pixels = pixels, .n = n, .logits = logits};
    run(&b);
    return FBNN_OK;
}

fbnn_status fbnn_logits_normalised(fbnn_model *m, const float *pixels, size_t n,
                                   float *logits) {
    batch b = {.model = m, .normalized = pixels, .n = n, .logits = logits};
    run(&b);
    return FBNN_OK;
}

size_t fbnn_preactivations(fbnn_model *m, const float *pixels, unsigned operation,
                           int32_t *sums) {
    if (operation >= m->operations || m->ops[operation].kind != OP_BCONV) return 0;
    shape out = m->ops[operation].out;
    if (sums) {
        batch b = {.model = m, .normalized = pixels, .n = 1};
        for (; b.operation <= operation; b.operation++) {
            b.sums = b.operation == operation ? sums : NULL;
            fbnn_pool_run(m->pool, run_operation, &b);
        }
    }
    return positions(out) * out.channels;
}

fbnn_info fbnn_describe(const fbnn_model *m) {
    fbnn_info info = {m->input.height,
                      m->input.width,
                      m->input.channels,
                      m->classes,
                      m->operations,
                      m->kernels->name,
                      m->activation_bytes,
                      m->weight_bytes,
                      m->macs};
    return info;
}

const char *fbnn_class_name(const fbnn_model *m, unsigned label) {
    return label < m->classes ? m->class_name[label] : "";
}

const char *fbnn_error_text(fbnn_status status) {
    static const char *const text[] = {
        "no error",
        "not an .fbnn file",
        "a format version that this program does not know",
        "the file is truncated or has bytes at its end",
        "the network graph is inconsistent",
        "a number in the file is not finite or out of range",
        "the network needs more memory or work than allowed",
        "out of memory",
        "this CPU or build has no such kernel",
        "a name is no plain UTF-8 text",
    };
    return (unsigned)status < sizeof text / sizeof text[0] ? text[status] : "unknown";
}
