// Sleeps over and over in functions with frame pointers: outer() calls middle(), which calls
// innermost(), which makes the system call itself, without the C library.
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>

#define KEPT __attribute__((noinline, noclone))

KEPT long innermost(void)
{
    struct timespec time = {0, 5000000};
    long result;

    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(SYS_nanosleep), "D"(&time), "S"(NULL)
                     : "rcx", "r11", "memory");
    return result;
}

KEPT long middle(void)
{
    return innermost() + 1;
}

KEPT long outer(void)
{
    return middle() + 1;
}

int main(void)
{
    while (outer())
        ;
}
