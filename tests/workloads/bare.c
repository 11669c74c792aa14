/* A static program without any C library: no loader, no libc, no TLS, no vDSO symbols of its own.
 * Same protocol as counts.c; 300 calls of bare_work in a round. Built with -static -nostdlib. */
#include <sys/syscall.h>

enum { EXIT_CODE = 7 };

static long call(long number, long a, long b, long c)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "0"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}

__attribute__((noinline, noclone, used)) long bare_work(long n)
{
    __asm__ volatile("" : "+r"(n));
    return n + 2;
}

__attribute__((used)) static void run(void)
{
    char line[16];
    call(SYS_write, 1, (long)"ready\n", 6);
    while (call(SYS_read, 0, (long)line, sizeof line) > 0) {
        long sum = 0;
        for (long i = 0; i < 300; i++)
            sum += bare_work(i);
        call(SYS_write, 1, (long)(sum == 45450 ? "done good\n" : "done evil\n"), 10);
    }
    call(SYS_exit_group, EXIT_CODE, 0, 0);
}

__asm__(".globl _start\n_start: xor %ebp, %ebp\n and $-16, %rsp\n call run\n hlt\n");
