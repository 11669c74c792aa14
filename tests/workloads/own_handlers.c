/* Installs handlers for SIGTRAP and SIGSEGV by system calls of its own, and says what the kernel tells it of them. It calls `probed`,
 * which only a breakpoint can hook, before and behind each, and has both handlers called. */
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>

/* It branches into its first five bytes. */
__asm__(".text; .globl probed; .type probed, @function; probed: xor %eax, %eax; 1: inc %eax; dec %edi; jnz 1b; ret;"
        ".size probed, . - probed");
int probed(int);

struct action {
    void (*handler)(int);
    unsigned long flags;
    void (*restorer)(void);
    unsigned long mask;
};

static volatile int handled;

static void handle(int signal)
{
    handled += signal * probed(1);
}

void restore(void);
__asm__("restore: mov $15, %eax; syscall");

static long action(int signal, const struct action *new, struct action *old)
{
    long result;
    register long size __asm__("r10") = 8;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(SYS_rt_sigaction), "D"((long)signal), "S"(new), "d"(old), "r"(size)
                     : "rcx", "r11", "memory");
    return result;
}

static void install(int signal)
{
    enum { SA_RESTORER = 0x04000000 };
    struct action own = {handle, SA_RESTORER, restore, ~0UL}, old, now;
    long first = action(signal, 0, &old), second = action(signal, &own, 0), third = action(signal, 0, &now);
    printf("signal %d: %ld %ld %ld, was default %d\n", signal, first, second, third, old.handler == SIG_DFL);
    printf("now %d %lx %d %lx\n", now.handler == handle, now.flags, now.restorer == restore, now.mask);
    printf("bad addresses: %ld %ld\n", action(signal, (void *)8, 0), action(signal, 0, (void *)8));
    printf("work %d\n", probed(2));
}

int main(void)
{
    setvbuf(stdout, 0, _IONBF, 0);
    printf("work %d\n", probed(3));
    install(SIGTRAP);
    install(SIGSEGV);
    raise(SIGTRAP);
    raise(SIGSEGV);
    printf("handled %d\n", handled);
    return 0;
}
