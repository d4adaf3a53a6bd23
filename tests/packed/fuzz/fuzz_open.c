/* libFuzzer target: open a hostile file and run whatever opens.
 *
 * The first byte chooses the kernel set and the number of threads. The prefix (magic,
 * version, size) is made right, so that the fuzzer's work goes into the graph. */
#include "fbnn.h"

#include <stdlib.h>
#include <string.h>

enum { PREFIX = 16 };
static const uint64_t MAX_MACS = 50000; /* more would only slow the search down */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void run(fbnn_model *model, uint8_t fill) {
    fbnn_info info = fbnn_describe(model);
    size_t values = (size_t)info.height * info.width * info.channels;
    if (info.macs > MAX_MACS || values > 4096) return;
    enum { IMAGES = 2 };
    uint8_t *pixels = malloc(IMAGES * values);
    float *normalized = malloc(values * sizeof(float));
    float *logits = malloc(IMAGES * info.classes * sizeof(float));
    int32_t labels[IMAGES];
    if (!pixels || !normalized || !logits) abort();
    for (size_t i = 0; i < IMAGES * values; i++) pixels[i] = (uint8_t)(i * fill);
    for (size_t i = 0; i < values; i++) normalized[i] = (float)i - (float)fill;
    fbnn_logits(model, pixels, IMAGES, logits);
    fbnn_predict(model, pixels, 1, labels);
    unsigned op = fill % info.operations;
    size_t n = fbnn_preactivations(model, NULL, op, NULL);
    int32_t *sums = malloc((n + 1) * sizeof(int32_t));
    if (!sums) abort();
    if (n) fbnn_preactivations(model, normalized, op, sums);
    free(sums);
    for (unsigned label = 0; label < info.classes; label++)
        if (strlen(fbnn_class_name(model, label)) > 255) abort();
    free(pixels);
    free(normalized);
    free(logits);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1 + PREFIX) return 0;
    uint8_t choice = data[0];
    uint8_t *file = malloc(size - 1); /* its own block: the sanitizer sees every byte */
    if (!file) return 0;
    memcpy(file, data + 1, size - 1);
    uint32_t bytes = (uint32_t)(size - 1);
    const uint8_t prefix[PREFIX] = {0x89, 'F', 'B', 'N', 'N', '\r', '\n', 0x1A, 1, 0,
                                    0, 0, (uint8_t)bytes, (uint8_t)(bytes >> 8),
                                    (uint8_t)(bytes >> 16), (uint8_t)(bytes >> 24)};
    memcpy(file, prefix, PREFIX);
    const char *const *names = fbnn_kernel_names();
    unsigned kernels = 0;
    while (names[kernels]) kernels++;
    fbnn_options options = {names[choice % kernels], choice >= 250 ? 2 : 1};
    fbnn_model *model;
    if (fbnn_open(file, size - 1, &options, &model) == FBNN_OK) {
        free(file); /* an open model does not need its file */
        run(model, choice);
        fbnn_close(model);
    } else {
        free(file);
        if (model) abort();
    }
    return 0;
}
