/* A process that runs its own program anew: on "exec", which it answers by the "ready" of the new one. On "go" it calls f_work and
 * answers "done". Exit code 7 at end of file. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

__attribute__((noinline, noclone, used)) long f_work(long n)
{
    __asm__ volatile("" : "+r"(n));
    return n * 2 + 1;
}

int main(int argc, char **argv)
{
    char line[16];
    (void)argc;
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (strcmp(line, "exec\n") == 0) {
            execv(argv[0], argv);
            return 1;
        }
        puts(f_work(3) == 7 ? "done" : "wrong");
        fflush(stdout);
    }
    return 7;
}
