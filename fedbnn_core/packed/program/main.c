/* Classify raw images: ./classify [-v] FILE...
 *
 * A file holds height x width x channels bytes, row by row, channels last. Prints
 * "file<TAB>class number<TAB>class name"; with -v the logits follow. */
#include "fbnn.h"
#include "network.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int read_image(const char *path, unsigned char *pixels, size_t size) {
    FILE *file = fopen(path, "rb");
    if (!file) {
        perror(path);
        return 0;
    }
    size_t got = fread(pixels, 1, size, file);
    int more = fgetc(file) != EOF;
    fclose(file);
    if (got == size && !more) return 1;
    fprintf(stderr, "%s: expected %zu bytes, got %zu%s\n", path, size, got,
            more ? " or more" : "");
    return 0;
}

int main(int argc, char **argv) {
    int verbose = argc > 1 && strcmp(argv[1], "-v") == 0, failures = 0;
    fbnn_model *model;
    fbnn_status status = fbnn_open(fbnn_model_data, fbnn_model_size, NULL, &model);
    if (status != FBNN_OK) {
        fprintf(stderr, "cannot open the model: %s\n", fbnn_error_text(status));
        return 1;
    }
    fbnn_info info = fbnn_describe(model);
    size_t size = (size_t)info.height * info.width * info.channels;
    if (argc < 2 + verbose) {
        fprintf(stderr, "usage: %s [-v] FILE...\nA FILE holds %u x %u x %u bytes.\n",
                argv[0], info.height, info.width, info.channels);
        failures = 1;
    }
    unsigned char *pixels = malloc(size);
    float *logits = malloc(info.classes * sizeof(float));
    if (!pixels || !logits) {
        fprintf(stderr, "out of memory\n");
        failures = 1;
        argc = 0;
    }
    for (int i = 1 + verbose; i < argc; i++) {
        int32_t label;
        if (!read_image(argv[i], pixels, size)) {
            failures = 1;
            continue;
        }
        fbnn_predict(model, pixels, 1, &label);
        printf("%s\t%d\t%s", argv[i], (int)label, fbnn_class_name(model, (unsigned)label));
        if (verbose) {
            fbnn_logits(model, pixels, 1, logits);
            for (unsigned c = 0; c < info.classes; c++)
                printf("\t%a", (double)logits[c]);
        }
        printf("\n");
    }
    free(pixels);
    free(logits);
    fbnn_close(model);
    return failures;
}
