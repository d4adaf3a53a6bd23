/* Run FedBNN's packed 1-bit networks (.fbnn, see FORMAT.md).
 *
 *     fbnn_model *model;
 *     if (fbnn_open(file, file_size, NULL, &model) != FBNN_OK) return 1;
 *     int32_t label;
 *     fbnn_predict(model, pixels, 1, &label);
 *     fbnn_close(model);
 *
 * Needs a C11 compiler (GCC or Clang), libc and libm; FBNN_NO_THREADS leaves out
 * the use of pthreads. A model is used by one thread at a time. */
#ifndef FBNN_H
#define FBNN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    FBNN_OK = 0,
    FBNN_ERROR_MAGIC,     /* not an .fbnn file */
    FBNN_ERROR_VERSION,   /* written by a newer version */
    FBNN_ERROR_TRUNCATED, /* shorter or longer than its header says */
    FBNN_ERROR_GRAPH,     /* an operation, shape or slot that makes no sense */
    FBNN_ERROR_VALUE,     /* a number that is not finite or out of range */
    FBNN_ERROR_LIMIT,     /* more memory or work than FORMAT.md allows */
    FBNN_ERROR_MEMORY,    /* malloc failed */
    FBNN_ERROR_KERNEL,    /* the asked kernel does not exist on this CPU */
    FBNN_ERROR_TEXT       /* a name is no UTF-8 or has control characters */
} fbnn_status;

typedef struct fbnn_model fbnn_model;

typedef struct {
    const char *kernel; /* NULL or "auto", "portable", "avx2", "avx512", "neon" */
    unsigned threads;   /* 0 and 1 mean: only the calling thread */
} fbnn_options;

typedef struct {
    unsigned height, width, channels, classes, operations;
    const char *kernel;
    uint64_t activation_bytes; /* per thread */
    uint64_t weight_bytes;     /* prepared weights, shared by the threads */
    uint64_t macs;             /* multiply-accumulates of one image */
} fbnn_info;

/* Check the file's structure and prepare it; the bytes are not kept.
 * The SHA-256 in the header is for whoever reads the file from a disk or a wire. */
fbnn_status fbnn_open(const void *file, size_t size, const fbnn_options *options,
                      fbnn_model **model);
void fbnn_close(fbnn_model *model);

/* Raw pixels, n images of height x width x channels bytes -> n class numbers. */
fbnn_status fbnn_predict(fbnn_model *model, const uint8_t *pixels, size_t n,
                         int32_t *labels);
/* As above -> n x classes logits. */
fbnn_status fbnn_logits(fbnn_model *model, const uint8_t *pixels, size_t n,
                        float *logits);
/* Pixels that are normalized already, as floats in the same order. */
fbnn_status fbnn_logits_normalised(fbnn_model *model, const float *pixels, size_t n,
                                   float *logits);

fbnn_info fbnn_describe(const fbnn_model *model);
const char *fbnn_class_name(const fbnn_model *model, unsigned label);
const char *fbnn_error_text(fbnn_status status);
/* Names of the kernels this CPU can run, fastest first, NULL at the end. */
const char *const *fbnn_kernel_names(void);

/* Integers of the binary convolution that is operation number `operation`, for one
 * image: height x width x channels values, row by row. For tests and inspection.
 * Returns the number of values; 0 if the operation is no binary convolution. With
 * `sums` NULL only the number is returned. */
size_t fbnn_preactivations(fbnn_model *model, const float *pixels, unsigned operation,
                           int32_t *sums);

#ifdef __cplusplus
}
#endif
#endif
