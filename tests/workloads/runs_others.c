/* Calls a function and runs another program, so many times.
 *
 * usage: runs_others PROGRAM COUNT */
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

__attribute__((noinline)) void before_run(int n) { __asm__ volatile("" ::"r"(n)); }

int main(int argc, char **argv)
{
    for (int n = argc < 3 ? 0 : atoi(argv[2]); n > 0; n--) {
        before_run(n);
        pid_t child = vfork();
        if (child == 0) {
            execl(argv[1], argv[1], (char *)NULL);
            _exit(127);
        }
        waitpid(child, NULL, 0);
    }
    return 0;
}
