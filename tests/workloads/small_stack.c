/* Handles signals on an alternate stack that has as little room as the kernel's frame and some hundred bytes need, and on one with
 * much. For each line on its input: "done CALLS OVERWRITTEN", how often the handler called wl_small, and how many bytes below the
 * small stack were changed. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <stdio.h>

enum { BELOW = 8192, MOST = 65536, SPARE = 700, LEAST = 2048, ROUNDS = 20, MARK = 0xa5 };

static volatile struct {
    uint8_t below[BELOW];
    uint8_t stack[MOST];
} __attribute__((aligned(64))) area;

static volatile uintptr_t deepest;
static volatile long calls;

__attribute__((noinline, noclone, used)) long wl_small(long n)
{
    __asm__ volatile("" : "+r"(n) : : "memory");
    return n;
}

static void on_signal(int signal)
{
    deepest = (uintptr_t)__builtin_frame_address(0);
    calls += wl_small(signal) == signal;
}

static void use_stack(size_t size)
{
    stack_t stack = {.ss_sp = (void *)area.stack, .ss_size = size};
    if (sigaltstack(&stack, 0))
        perror("sigaltstack");
}

int main(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR1, &action, 0);
    puts("ready");
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        calls = 0;
        for (int i = 0; i < BELOW; i++)
            area.below[i] = MARK;
        use_stack(MOST);
        raise(SIGUSR1);
        size_t small = (uintptr_t)area.stack + MOST - deepest + SPARE;
        use_stack(small < LEAST ? LEAST : small);
        for (int i = 0; i < ROUNDS; i++)
            raise(SIGUSR1);
        int overwritten = 0;
        for (int i = 0; i < BELOW; i++)
            overwritten += area.below[i] != MARK;
        printf("done %ld %d\n", calls, overwritten);
        fflush(stdout);
    }
    return 7;
}
