/* Classify the images in images.raw, or a test pattern if there is no such file.
 *
 * images.raw holds images of FBNN_HEIGHT x FBNN_WIDTH x FBNN_CHANNELS bytes, row by
 * row, channels last, one behind the other. Their logits go to logits.raw. On a board
 * of your own, replace this file: the camera or sensor fills `pixels`. */
#include "board.h"
#include "fbnn.h"

static uint8_t pixels[FBNN_HEIGHT * FBNN_WIDTH * FBNN_CHANNELS];
static float logits[FBNN_CLASSES];

static void print_number(const char *label, uint32_t value) {
    char digits[12], *at = digits + sizeof digits;
    *--at = '\0';
    *--at = '\n';
    do *--at = (char)('0' + value % 10);
    while (value /= 10);
    board_print(label);
    board_print(at);
}

static void test_pattern(void) {
    for (size_t i = 0; i < sizeof pixels; i++) pixels[i] = (uint8_t)(i * 7);
}

int main(void) {
    fbnn_model *model;
    if (fbnn_open(fbnn_model_data, fbnn_model_size, NULL, &model) != FBNN_OK) return 1;
    uint32_t images = 0;
    int in = board_open("images.raw", 0), out = in < 0 ? -1 : board_open("logits.raw", 1);
    if (in < 0) test_pattern();
    for (; in >= 0 && board_read(in, pixels, sizeof pixels); images++) {
        fbnn_logits(model, pixels, 1, logits);
        if (out < 0 || !board_write(out, logits, sizeof logits)) return 1;
    }
    int32_t label;
    uint32_t start = board_instructions(0);
    fbnn_predict(model, pixels, 1, &label);
    uint32_t instructions = board_instructions(start);
    fbnn_close(model);
    print_number("images: ", images);
    board_print("class of the last image: ");
    board_print(fbnn_class_name(model, (unsigned)label));
    print_number("\narena bytes: ", fbnn_describe(model).arena_bytes);
    if (board_stack()) print_number("stack bytes: ", board_stack());
    if (instructions) print_number("instructions: ", instructions);
    return 0;
}
