/* As cancel.cpp, for a C library without C++: a scene begins a thread, which is asleep by and by; "cancel" ends it and looks
 * at what cleaned up. */
#include "scenes.h"
#include <pthread.h>
#include <time.h>

static int cleaned;
static pthread_t thread;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
static int ends[2];

static void clean(void *by)
{
    __atomic_add_fetch(&cleaned, *(int *)by, __ATOMIC_SEQ_CST);
}

static void unlock(void *mutex)
{
    pthread_mutex_unlock(mutex);
}

static void in_read(void)
{
    char byte;
    while (read(ends[0], &byte, 1) != 1)
        ;
}

static void in_sleep(void)
{
    struct timespec day = {86400, 0};
    while (nanosleep(&day, 0))
        ;
}

static void in_condition(void)
{
    pthread_mutex_lock(&mutex);
    pthread_cleanup_push(unlock, &mutex);
    for (;;)
        pthread_cond_wait(&never, &mutex);
    pthread_cleanup_pop(1);
}

static void *waits(void *wait)
{
    int by = 1;
    pthread_cleanup_push(clean, &by);
    ((void (*)(void))wait)();
    pthread_cleanup_pop(0);
    return 0;
}

static void *asynchronous(void *nothing)
{
    int by = 10, was;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &was);
    pthread_cleanup_push(clean, &by);
    for (;;)
        pause();
    pthread_cleanup_pop(0);
    return nothing;
}

static int start(void *(*body)(void *), void (*wait)(void))
{
    cleaned = 0;
    CHECK(pthread_create(&thread, 0, body, (void *)wait) == 0);
    return 0;
}

static int start_read(void) { return start(waits, in_read); }
static int start_sleep(void) { return start(waits, in_sleep); }
static int start_condition(void) { return start(waits, in_condition); }
static int start_asynchronous(void) { return start(asynchronous, 0); }

static int cancelled(int by)
{
    void *result;
    CHECK(pthread_cancel(thread) == 0);
    CHECK(pthread_join(thread, &result) == 0);
    CHECK(result == PTHREAD_CANCELED);
    CHECK(__atomic_load_n(&cleaned, __ATOMIC_SEQ_CST) == by);
    return 0;
}

static int cancel(void) { return cancelled(1); }
static int cancel_asynchronous(void) { return cancelled(10); }

int main(void)
{
    static const struct scene scenes[] = {
        {"read", start_read},
        {"sleep", start_sleep},
        {"condition", start_condition},
        {"asynchronous", start_asynchronous},
        {"cancel", cancel},
        {"cancel asynchronous", cancel_asynchronous},
        {0, 0},
    };
    if (pipe(ends))
        return 1;
    say("ready\n");
    return serve(scenes);
}
