/*
 * inside [RULES [FURTHER]]: works under a seccomp filter. Four threads sleep, and work on request; FURTHER is a second
 * filter, for later. A round is 1000 calls of inside_item and 40 of openat.
 */
#include "scenes.h"
#include "filters.h"
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

enum { THREADS = 4, ITEMS = 250, FILES = 10, TRIES = 10000 };

static const char *further_rules;
static atomic_int storms, tries;
static atomic_long wrong;
static pthread_t workers[THREADS];
static pthread_barrier_t begins, ends;

__attribute__((noinline, noclone, used)) long inside_item(const char *name, long n)
{
    __asm__ volatile("" : : "r"(name) : "memory");
    return n + (long)strlen(name);
}

static void work_once(void)
{
    long sum = 0;
    for (long i = 0; i < ITEMS; i++)
        sum += inside_item("item", i);
    for (int i = 0; i < FILES; i++) {
        int file = open("/etc/hostname", O_RDONLY);
        wrong += file < 0 || close(file);
    }
    /* For as long as a thread may be stopped at any moment. */
    for (int i = 0; tries && i < TRIES; i++)
        wrong += syscall(SYS_getpgrp) != -1 || errno != EPERM;
    wrong += sum != ITEMS * (ITEMS - 1) / 2 + ITEMS * 4;
}

static void *worker(void *nothing)
{
    for (;;) {
        struct timespec moment = {0, 1000 * 1000};
        pthread_barrier_wait(&begins);
        do {
            work_once();
            wrong += nanosleep(&moment, 0) != 0;
        } while (storms);
        pthread_barrier_wait(&ends);
    }
    return nothing;
}

static int go(void)
{
    pthread_barrier_wait(&begins);
    pthread_barrier_wait(&ends);
    CHECK(wrong == 0);
    return 0;
}

static int storm(void)
{
    storms = 1;
    pthread_barrier_wait(&begins);
    return 0;
}

static int calm(void)
{
    storms = 0;
    pthread_barrier_wait(&ends);
    CHECK(wrong == 0);
    return 0;
}

/* Workers call getpgrp besides, which the filter has to forbid. */
static int forbidden(void)
{
    tries = 1;
    return 0;
}

static int further(void)
{
    load_rules(further_rules);
    return 0;
}

int main(int count, char **words)
{
    static const struct scene scenes[] = {{"go", go}, {"storm", storm}, {"calm", calm}, {"further", further},
                                          {"forbidden", forbidden}, {0, 0}};
    further_rules = count > 2 ? words[2] : "";
    pthread_barrier_init(&begins, 0, THREADS + 1);
    pthread_barrier_init(&ends, 0, THREADS + 1);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&workers[i], 0, worker, 0);
    /* The threads have begun. */
    if (go())
        return 1;
    if (count > 1)
        load_rules(words[1]);
    say("ready\n");
    return serve(scenes);
}
