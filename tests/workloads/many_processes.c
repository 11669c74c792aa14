/* Many processes that sleep. "many_processes COUNT" says "ready" when there are so many, which end
 * with it. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    int count = argc > 1 ? atoi(argv[1]) : 0;
    for (int at = 0; at < count; at++) {
        switch (fork()) {
        case -1:
            perror("fork");
            return 1;
        case 0:
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (;;)
                pause();
        }
    }
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 7;
}
