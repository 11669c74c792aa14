/* A program that takes longer than a process is made to wait to be looked through: its text is full of what may be calls, of which
 * each cancellation point is looked for. It waits until its own `syscall` has been hooked, and makes calls by it then. */
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>

enum { CALLS = 100, PATIENCE = 60 };

/* The first byte of a `call` everywhere. */
__asm__(".text\n"
        ".macro piece\n"
        "piece\\@: .type piece\\@, @function\n .fill 0x200000, 1, 0xe8\n .size piece\\@, .-piece\\@\n"
        ".endm\n"
        ".rept 16\n piece\n .endr\n");

/* musl's __syscall_cp_asm. */
__asm__(".macro point\n"
        "point\\@: .type point\\@, @function\n"
        " mov (%rdi), %eax\n test %eax, %eax\n jnz 1f\n"
        " mov %rdi, %r11\n mov %rsi, %rax\n mov %rdx, %rdi\n mov %rcx, %rsi\n mov %r8, %rdx\n mov %r9, %r10\n"
        " mov 8(%rsp), %r8\n mov 16(%rsp), %r9\n mov %r11, 8(%rsp)\n"
        " syscall\n"
        "1: ret\n .size point\\@, .-point\\@\n"
        ".endm\n"
        ".rept 16\n point\n .endr\n");

__asm__("get_parent: .type get_parent, @function\n"
        " mov $110, %eax\n syscall\n ret\n .size get_parent, .-get_parent\n");
extern int get_parent(void);

static const unsigned char original[] = {0xb8, SYS_getppid, 0, 0, 0, 0x0f, 0x05, 0xc3};

static int is_hooked(void)
{
    return memcmp((const void *)get_parent, original, sizeof original) != 0;
}

int main(void)
{
    puts(is_hooked() ? "begins hooked" : "begins");
    const struct timespec moment = {0, 1000000};
    time_t end = time(0) + PATIENCE;
    while (!is_hooked() && time(0) < end)
        nanosleep(&moment, 0);
    for (int i = 0; i < CALLS; i++)
        get_parent();
    puts(is_hooked() ? "done" : "given up");
    return 0;
}
