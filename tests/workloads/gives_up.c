/* A daemon that gives up its rights in the middle of its life.
 *
 * It says "ready". Lines on its input: "work" has THREADS threads call wl_add again and again, with
 * pauses, "spin" without; "stop" ends them and is answered with the number of their calls; "become
 * UID" changes all its users and groups, "visit UID" only the effective ones, and "return" goes back.
 * Other lines are answered as they are. At end of file it exits with code 7. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_CODE = 7, THREADS = 3 };

__attribute__((noinline, noclone, used)) long wl_add(long a, long b)
{
    __asm__ volatile("" : "+r"(a));
    return a + b;
}

static atomic_int working;
static int pause_us;
static long calls[THREADS][16];

static void *spin(void *own)
{
    while (atomic_load(&working)) {
        wl_add(1, 2);
        ++*(long *)own;
        if (pause_us)
            usleep(pause_us);
    }
    return 0;
}

int main(void)
{
    char line[64];
    pthread_t threads[THREADS];
    setvbuf(stdout, 0, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        int user = strchr(line, ' ') ? atoi(strchr(line, ' ') + 1) : 0;
        int failed = 0;
        if (!strcmp(line, "work") || !strcmp(line, "spin")) {
            pause_us = strcmp(line, "work") ? 0 : 100;
            atomic_store(&working, 1);
            for (int i = 0; i < THREADS; i++)
                failed |= pthread_create(&threads[i], 0, spin, calls[i]);
        } else if (!strcmp(line, "stop")) {
            long all = 0;
            atomic_store(&working, 0);
            for (int i = 0; i < THREADS; i++) {
                pthread_join(threads[i], 0);
                all += calls[i][0];
            }
            printf("%ld\n", all);
            continue;
        } else if (!strncmp(line, "become ", 7)) {
            failed = setresgid(user, user, user) || setresuid(user, user, user);
        } else if (!strncmp(line, "visit ", 6)) {
            failed = setresgid(-1, user, -1) || setresuid(-1, user, -1);
        } else if (!strcmp(line, "return")) {
            failed = setresuid(-1, 0, -1) || setresgid(-1, 0, -1);
        }
        puts(failed ? "failed" : line);
    }
    return EXIT_CODE;
}
