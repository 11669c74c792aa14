/* Begun by a tool that probes it from its first instruction on: says which signals it blocks, and calls functions, one of which is too
 * short to be jumped out of. */
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

void begun_short(void);
__asm__(".globl begun_short\n.type begun_short, @function\nbegun_short: ret\n.size begun_short, 1\n.p2align 4, 0xcc");

__attribute__((noinline, noclone)) long begun_long(long value)
{
    __asm__ volatile("nop; nop; nop; nop; nop; nop; nop; nop");
    return value + 1;
}

static void say_blocked(void)
{
    char line[256];
    FILE *status = fopen("/proc/self/status", "r");
    while (fgets(line, sizeof line, status))
        if (strncmp(line, "SigBlk:", 7) == 0)
            printf("blocked: %s", line + 8);
    fclose(status);
}

int main(void)
{
    for (int n = 0; n < 10; n++) {
        begun_short();
        begun_long(n);
        getppid();
    }
    say_blocked();
    fflush(stdout);
    int status;
    pid_t child = fork();
    if (child == 0) {
        for (;;)
            pause();
    }
    kill(child, SIGTERM);
    waitpid(child, &status, 0);
    printf("its child is ended by %d\n", WTERMSIG(status));
    return 0;
}
