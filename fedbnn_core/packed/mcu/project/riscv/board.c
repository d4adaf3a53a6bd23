/* Start-up code and, through semihosting, the files of an emulated RISC-V board. */
#include "board.h"

#include <string.h>

extern uint32_t data_begin[], data_end[], data_source[], bss_begin[], bss_end[];
extern uint32_t stack_top[], paint_end[];
int main(void);
void reset(void);

enum { SYS_OPEN = 1, SYS_WRITE0 = 4, SYS_WRITE, SYS_READ, SYS_EXIT = 0x18 };
#define STACK_PAINT 0xA5A5A5A5u

__asm__(".section .start, \"ax\"\n"
        ".globl start\n"
        "start: la sp, stack_top\n"
        "j reset\n"
        ".text\n");

static int semihosting(int operation, const void *argument) {
    register int a0 __asm__("a0") = operation;
    register const void *a1 __asm__("a1") = argument;
    /* The three instructions that mark a call lie in one page. */
    __asm__ volatile(".option push\n .option norvc\n .balign 16\n"
                     "slli x0, x0, 0x1f\n ebreak\n srai x0, x0, 7\n .option pop"
                     : "+r"(a0)
                     : "r"(a1)
                     : "memory");
    return a0;
}

__attribute__((noreturn)) void reset(void) {
    memcpy(data_begin, data_source, (size_t)((char *)data_end - (char *)data_begin));
    memset(bss_begin, 0, (size_t)((char *)bss_end - (char *)bss_begin));
    /* Nobody but this function has used the stack yet, and not that much of it. */
    for (uint32_t *word = bss_end; word < paint_end; word++) *word = STACK_PAINT;
    semihosting(SYS_EXIT, (const void *)(main() ? 0x20023 : 0x20026));
    for (;;) {}
}

int board_open(const char *name, int write) {
    const uintptr_t block[] = {(uintptr_t)name, write ? 5 : 1, strlen(name)};
    return semihosting(SYS_OPEN, block);
}

int board_read(int file, void *to, size_t size) {
    const uintptr_t block[] = {(uintptr_t)file, (uintptr_t)to, size};
    return semihosting(SYS_READ, block) == 0;
}

int board_write(int file, const void *from, size_t size) {
    const uintptr_t block[] = {(uintptr_t)file, (uintptr_t)from, size};
    return semihosting(SYS_WRITE, block) == 0;
}

void board_print(const char *text) { semihosting(SYS_WRITE0, text); }

uint32_t board_instructions(uint32_t since) {
    uint32_t count;
    __asm__ volatile(".option push\n .option arch, +zicsr\n"
                     "csrr %0, minstret\n .option pop"
                     : "=r"(count));
    return count - since;
}

uint32_t board_stack(void) {
    const uint32_t *word = bss_end;
    while (word < stack_top && *word == STACK_PAINT) word++;
    return (uint32_t)((const char *)stack_top - (const char *)word);
}
