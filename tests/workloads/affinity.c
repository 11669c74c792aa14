/*
 * Binds itself to a CPU, for who watches that.
 *
 *     affinity CPU          says "bound", and stays so until SIGUSR1; then it is free again, and says "free"
 *     affinity CPU loop     binds itself and frees itself by turns, as often as it can, until it is ended
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static cpu_set_t all, one;

static void be_free(int signal)
{
    (void)signal;
    if (!sched_setaffinity(0, sizeof all, &all))
        (void)!write(STDOUT_FILENO, "free\n", 5);
}

int main(int argc, char **argv)
{
    if (argc < 2 || sched_getaffinity(0, sizeof all, &all))
        return 2;
    CPU_ZERO(&one);
    CPU_SET(atoi(argv[1]), &one);
    signal(SIGUSR1, be_free);
    if (sched_setaffinity(0, sizeof one, &one)) {
        perror("sched_setaffinity");
        return 1;
    }
    (void)!write(STDOUT_FILENO, "bound\n", 6);
    while (argc > 2) {
        sched_setaffinity(0, sizeof all, &all);
        sched_setaffinity(0, sizeof one, &one);
    }
    for (;;)
        pause();
}
