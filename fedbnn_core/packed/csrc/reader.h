/* Reading primitives shared by the graph reader and the tensor reader. */
#ifndef FBNN_READER_H
#define FBNN_READER_H

#include "model.h"

#include <string.h>

typedef struct {
    const uint8_t *at;
    size_t left;
} cursor;

#define TRY(expression)                                                                \
    do {                                                                               \
        fbnn_status status_ = (expression);                                            \
        if (status_ != FBNN_OK) return status_;                                        \
    } while (0)
#define REQUIRE(condition, error)                                                      \
    do {                                                                               \
        if (!(condition)) return (error);                                              \
    } while (0)

static inline uint32_t u16_at(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8;
}

static inline uint32_t u32_at(const uint8_t *p) {
    return u16_at(p) | u16_at(p + 2) << 16;
}

static inline float float_at(const uint8_t *p) {
    uint32_t bits = u32_at(p);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline fbnn_status take(cursor *file, uint64_t bytes, const uint8_t **from) {
    REQUIRE(bytes <= file->left, FBNN_ERROR_TRUNCATED);
    *from = file->at;
    file->at += bytes;
    file->left -= (size_t)bytes;
    return FBNN_OK;
}

/* Zeroed memory, counted against FBNN_MAX_MEMORY before it is reserved. */
fbnn_status fbnn_reserve(fbnn_model *model, uint64_t count, size_t size, void *to);

/* Read the weights, thresholds and other numbers that follow an operation's record. */
fbnn_status fbnn_take_tensors(cursor *file, operation *op, fbnn_model *model);

#endif
