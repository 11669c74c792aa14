/*
 * Binds itself to a CPU, for who watches that.
 *
 *     affinity CPU          says "bound", and stays so until SIGUSR1; then it is free again, and says "free"
 *     affinity CPU loop     binds itself and frees itself by turns, as often as it can, until it is ended
 *     affinity CPU exec     binds a second thread, which then runs this program anew, and so becomes the process's first
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static cpu_set_t all, one;

static void be_free(int signal)
{
    (void)signal;
    if (!sched_setaffinity(0, sizeof all, &all))
        (void)!write(STDOUT_FILENO, "free\n", 5);
}

static void bind_it(void)
{
    if (sched_setaffinity(0, sizeof one, &one)) {
        perror("sched_setaffinity");
        exit(1);
    }
    (void)!write(STDOUT_FILENO, "bound\n", 6);
}

static void *run_anew(void *unused)
{
    bind_it();
    execl("/proc/self/exe", "affinity", "wait", NULL);
    return unused;
}

int main(int argc, char **argv)
{
    pthread_t thread;

    while (argc == 2 && !strcmp(argv[1], "wait"))
        pause();
    if (argc < 2 || sched_getaffinity(0, sizeof all, &all))
        return 2;
    CPU_ZERO(&one);
    CPU_SET(atoi(argv[1]), &one);
    signal(SIGUSR1, be_free);
    if (argc > 2 && !strcmp(argv[2], "exec"))
        return pthread_create(&thread, NULL, run_anew, NULL) || pthread_join(thread, NULL);
    bind_it();
    while (argc > 2) {
        sched_setaffinity(0, sizeof all, &all);
        sched_setaffinity(0, sizeof one, &one);
    }
    for (;;)
        pause();
}
