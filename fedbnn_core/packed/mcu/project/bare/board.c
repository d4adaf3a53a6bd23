/* A board that is this computer. */
#include "board.h"

#include <stdio.h>

static FILE *files[2];

int board_open(const char *name, int write) {
    files[write] = fopen(name, write ? "wb" : "rb");
    return files[write] ? write : -1;
}

int board_read(int file, void *to, size_t size) {
    return fread(to, 1, size, files[file]) == size;
}

int board_write(int file, const void *from, size_t size) {
    return fwrite(from, 1, size, files[file]) == size;
}

void board_print(const char *text) { fputs(text, stdout); }

uint32_t board_instructions(uint32_t since) {
    (void)since;
    return 0;
}

uint32_t board_stack(void) { return 0; }
