// A program without an unwinder, which gets one when it needs it: from a plugin in C++, or as a thread ends. Same protocol as
// counts.c; the line is a plugin's path, "exit" or "list".
#define _GNU_SOURCE
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define PROBED __attribute__((noinline, noclone, used))
#define KEEP(value) __asm__ volatile("" : "+r"(value) : : "memory")

enum { EXIT_CODE = 7, FRAMES = 64 };

static long cleaned;
static void clean(void *unused) { (void)unused; cleaned++; }

// Calls back what may throw.
PROBED long l_calls(long (*back)(long), long n)
{
    long got = back(n);
    KEEP(got);
    return got;
}

PROBED void l_ends(void)
{
    pthread_exit((void *)5);
}

PROBED long l_around(void)
{
    long got = 0;
    pthread_cleanup_push(clean, NULL);
    l_ends();
    pthread_cleanup_pop(0);
    KEEP(got);
    return got;
}

static void *ends(void *unused) { (void)unused; return (void *)l_around(); }

PROBED long l_lists(void **frames)
{
    long got = backtrace(frames, FRAMES);
    KEEP(got);
    return got;
}

int main(void)
{
    char line[4096];
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        cleaned = 0;
        long sum = -1;
        if (!strcmp(line, "exit")) {
            pthread_t thread;
            void *got;
            pthread_create(&thread, NULL, ends, NULL);
            pthread_join(thread, &got);
            sum = (long)got;
        } else if (!strcmp(line, "list")) {
            void *frames[FRAMES];
            sum = l_lists(frames);
        } else {
            void *library = dlopen(line, RTLD_NOW);
            long (*run)(long (*)(long (*)(long), long)) = library ? dlsym(library, "plugin_runs") : NULL;
            sum = run ? run(l_calls) : -1;
        }
        printf("done %ld %ld\n", sum, cleaned);
    }
    return EXIT_CODE;
}
