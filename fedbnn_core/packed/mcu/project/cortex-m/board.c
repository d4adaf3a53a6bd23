/* Vectors, start-up code and, through semihosting, the files of an emulated Cortex-M. */
#include "board.h"

#include <string.h>

extern uint32_t data_begin[], data_end[], data_source[], bss_begin[], bss_end[];
extern uint32_t stack_top[], paint_end[];
int main(void);
void reset(void);

enum { SYS_OPEN = 1, SYS_WRITE0 = 4, SYS_WRITE, SYS_READ, SYS_EXIT = 0x18 };
#define STACK_PAINT 0xA5A5A5A5u
#define SYSTICK ((volatile uint32_t *)0xE000E010)
#define CPACR (*(volatile uint32_t *)0xE000ED88)

static int semihosting(int operation, const void *argument) {
    register int r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

static void leave(int failed) {
    semihosting(SYS_EXIT, (const void *)(failed ? 0x20023 : 0x20026));
    for (;;) {}
}

static void fault(void) {
    board_print("fault\n");
    leave(1);
}

__attribute__((section(".vectors"), used)) static const struct {
    uint32_t *stack;
    void (*handlers[15])(void);
} vectors = {stack_top,
             {reset, fault, fault, fault, fault, fault, fault, fault, fault, fault, fault,
              fault, fault, fault, fault}};

__attribute__((noreturn)) void reset(void) {
#ifdef __ARM_FP
    CPACR |= 0xFu << 20; /* switch the floating-point unit on */
    __asm__ volatile("dsb\n isb" ::: "memory");
#endif
    memcpy(data_begin, data_source, (size_t)((char *)data_end - (char *)data_begin));
    memset(bss_begin, 0, (size_t)((char *)bss_end - (char *)bss_begin));
    /* Nobody but this function has used the stack yet, and not that much of it. */
    for (uint32_t *word = bss_end; word < paint_end; word++) *word = STACK_PAINT;
    SYSTICK[1] = 0xFFFFFF;
    SYSTICK[2] = 0;
    SYSTICK[0] = 5; /* count down at the processor's clock */
    leave(main());
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

/* With -icount shift=0 QEMU runs one instruction in a nanosecond; the counter ticks at
 * BOARD_MHZ. */
uint32_t board_instructions(uint32_t since) {
    uint32_t ticks = 0xFFFFFF - SYSTICK[2];
    return ticks * (2000 / BOARD_MHZ) / 2 - since;
}

uint32_t board_stack(void) {
    const uint32_t *word = bss_end;
    while (word < stack_top && *word == STACK_PAINT) word++;
    return (uint32_t)((const char *)stack_top - (const char *)word);
}
