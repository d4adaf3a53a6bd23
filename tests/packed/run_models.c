/* Run the C runtime on many models: ./run_models KERNEL THREADS LIST
 *
 * A line of LIST names a model, a file of raw images, their number and a file for the
 * logits, which are written as float32. */
#include "fbnn.h"

#include <stdio.h>
#include <stdlib.h>

static void *read_file(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END)) exit(3);
    *size = (size_t)ftell(file);
    rewind(file);
    void *content = malloc(*size);
    if (!content || fread(content, 1, *size, file) != *size) exit(3);
    fclose(file);
    return content;
}

int main(int argc, char **argv) {
    if (argc != 4) return 2;
    fbnn_options options = {argv[1], (unsigned)atoi(argv[2])};
    FILE *list = fopen(argv[3], "r");
    char model_path[256], image_path[256], logits_path[256];
    unsigned n;
    while (list && fscanf(list, "%255s %255s %u %255s", model_path, image_path, &n,
                          logits_path) == 4) {
        size_t model_size, image_size;
        void *file = read_file(model_path, &model_size);
        void *images = read_file(image_path, &image_size);
        fbnn_model *model;
        fbnn_status status = fbnn_open(file, model_size, &options, &model);
        if (status != FBNN_OK) {
            fprintf(stderr, "%s: %s\n", model_path, fbnn_error_text(status));
            return 1;
        }
        size_t values = n * (size_t)fbnn_describe(model).classes;
        float *logits = malloc(values * sizeof(float));
        FILE *out = fopen(logits_path, "wb");
        if (!logits || !out) return 3;
        fbnn_logits(model, images, n, logits);
        if (fwrite(logits, sizeof(float), values, out) != values) return 3;
        fclose(out);
        fbnn_close(model);
        free(logits);
        free(images);
        free(file);
    }
    return 0;
}
