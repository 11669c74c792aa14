/* A static program without any C library, to be built so that nothing says where its functions are: told "go", it makes
 * some calls and answers "done good"; told "far", it reads the next line by an instruction whose call nothing tells. */
#include <sys/syscall.h>

enum { EXIT_CODE = 7, CALLS = 100 };

/* The number is loaded by the instruction right before, */
#define CALL(number, a, b, c)                                                                                       \
    ({                                                                                                              \
        long result;                                                                                                \
        __asm__ volatile("mov %1, %%eax; syscall"                                                                   \
                         : "=&a"(result)                                                                            \
                         : "i"(number), "D"(a), "S"(b), "d"(c)                                                      \
                         : "rcx", "r11", "memory");                                                                 \
        result;                                                                                                     \
    })

/* or earlier. */
static long far_call(long number, long a, long b, long c)
{
    long result;
    __asm__ volatile("nop; syscall"
                     : "=a"(result)
                     : "0"(number), "D"(a), "S"(b), "d"(c)
                     : "rcx", "r11", "memory");
    return result;
}

__attribute__((used)) static void run(void)
{
    char line[16];
    CALL(SYS_write, 1, (long)"ready\n", 6);
    while (CALL(SYS_read, 0, (long)line, sizeof line) > 0) {
        if (line[0] == 'f') {
            CALL(SYS_write, 1, (long)"done far\n", 9);
            far_call(SYS_read, 0, (long)line, sizeof line);
        }
        long parent = far_call(SYS_getppid, 0, 0, 0), same = 0;
        for (int i = 0; i < CALLS; i++)
            same += CALL(SYS_getppid, 0, 0, 0) == parent;
        CALL(SYS_write, 1, (long)(same == CALLS ? "done good\n" : "done evil\n"), 10);
    }
    CALL(SYS_exit_group, EXIT_CODE, 0, 0);
}

__asm__(".globl _start\n_start: xor %ebp, %ebp\n and $-16, %rsp\n call run\n hlt\n");
