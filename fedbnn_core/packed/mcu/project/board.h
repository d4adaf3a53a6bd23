/* What main.c needs of its board: files for images and logits, text, a clock. The
 * network needs none of it. */
#ifndef BOARD_H
#define BOARD_H

#include <stddef.h>
#include <stdint.h>

/* A file to read or to write; negative if there is none. */
int board_open(const char *name, int write);
/* 1 if all bytes were read or written. */
int board_read(int file, void *to, size_t size);
int board_write(int file, const void *from, size_t size);
void board_print(const char *text);
/* Instructions since an arbitrary moment, modulo 2^24 ticks; 0 if nobody counts. */
uint32_t board_instructions(uint32_t since);
/* Most bytes that the stack has ever had; 0 if unknown. */
uint32_t board_stack(void);

#endif
