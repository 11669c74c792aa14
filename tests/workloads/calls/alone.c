/* Threads that end while others go on. */
#include "scenes.h"
#include <pthread.h>
#include <signal.h>

enum { THREADS = 20 };

static int calls(void)
{
    CHECK(getppid() > 0);
    return 0;
}

static void *ends(void *unused)
{
    (void)unused;
    getppid();
    return 0;
}

static int joined(void)
{
    for (int i = 0; i < THREADS; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, 0, ends, 0) == 0);
        CHECK(pthread_join(thread, 0) == 0);
    }
    return 0;
}

/* Nobody waits for it: it gives its own stack away. */
static void *ends_unseen(void *end)
{
    getppid();
    close(*(int *)end);
    return 0;
}

static int detached(void)
{
    static int ends[2];
    for (int i = 0; i < THREADS; i++) {
        pthread_t thread;
        char byte;
        CHECK(pipe(ends) == 0);
        CHECK(pthread_create(&thread, 0, ends_unseen, &ends[1]) == 0);
        CHECK(pthread_detach(thread) == 0);
        CHECK(read(ends[0], &byte, 1) == 0 && close(ends[0]) == 0);
    }
    usleep(300000);
    return 0;
}

static void handles(int signal)
{
    (void)signal;
}

int main(void)
{
    static const struct scene scenes[] = {
        {"calls", calls}, {"joined", joined}, {"detached", detached}, {0, 0},
    };
    signal(SIGUSR1, handles); /* so that what returns from handlers is there */
    say("ready\n");
    return serve(scenes);
}
