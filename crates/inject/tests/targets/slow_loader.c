/* A loader, for a program's PT_INTERP: says "loader", waits for SIGUSR1, and then calls the function by which debuggers know it. Ends with
 * 42 if that function is as it was linked. With LONG the function is none that does nothing. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>

__asm__(".balign 16\n"
        ".globl _dl_debug_state\n"
        ".type _dl_debug_state, @function\n"
        "_dl_debug_state:\n"
#ifdef LONG
        "mov $1, %eax\n"
#endif
        "ret\n"
        ".size _dl_debug_state, . - _dl_debug_state\n"
        ".balign 16, 0x90\n");
void _dl_debug_state(void);

static long call(long number, long a, long b, long c, long d)
{
    long result;
    register long r10 __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return result;
}

void _start(void)
{
    uint64_t set = 1UL << (SIGUSR1 - 1);
    const volatile unsigned char *code = (void *)_dl_debug_state;
    call(SYS_rt_sigprocmask, SIG_BLOCK, (long)&set, 0, sizeof set);
    call(SYS_write, 1, (long)"loader\n", 7, 0);
    while (call(SYS_rt_sigtimedwait, (long)&set, 0, 0, sizeof set) != SIGUSR1)
        ;
    _dl_debug_state();
    call(SYS_exit_group, *code == 0xc3 || *code == 0xb8 ? 42 : 1, 0, 0, 0);
}
