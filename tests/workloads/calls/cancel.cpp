// Threads that are cancelled in a call that waits: their cleanup handlers and destructors run, and they end as cancelled.
// One scene begins a thread, which is asleep by and by; "cancel" ends it and looks at what ran.
#include <atomic>
#include <cerrno>
#include <csignal>
#include <pthread.h>
#include <string>
#include <time.h>
#include <unistd.h>

extern "C" {
#include "scenes.h"
}

static std::atomic<int> cleaned, destroyed;
static pthread_t thread;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t never = PTHREAD_COND_INITIALIZER;
static int ends[2];

static void clean(void *by)
{
    cleaned += *static_cast<int *>(by);
}

struct Guard {
    ~Guard() { destroyed++; }
};

static void in_read()
{
    char byte;
    while (read(ends[0], &byte, 1) != 1) {
    }
}

static void in_sleep()
{
    struct timespec day = {86400, 0};
    while (nanosleep(&day, nullptr)) {
    }
}

static void in_condition()
{
    pthread_mutex_lock(&mutex);
    pthread_cleanup_push([](void *) { pthread_mutex_unlock(&mutex); }, nullptr);
    for (;;)
        pthread_cond_wait(&never, &mutex);
    pthread_cleanup_pop(1);
}

/* No destructors here: at any instruction they cannot be promised. */
static void *asynchronous(void *)
{
    int by = 10, was;
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &was);
    pthread_cleanup_push(clean, &by);
    for (;;)
        pause();
    pthread_cleanup_pop(0);
    return nullptr;
}

static void *deferred(void *wait)
{
    int by = 1;
    Guard guard;
    pthread_cleanup_push(clean, &by);
    reinterpret_cast<void (*)()>(wait)();
    pthread_cleanup_pop(0);
    return nullptr;
}

static int start(void (*wait)())
{
    cleaned = destroyed = 0;
    CHECK(pthread_create(&thread, nullptr, deferred, reinterpret_cast<void *>(wait)) == 0);
    return 0;
}

static int start_read() { return start(in_read); }
static int start_sleep() { return start(in_sleep); }
static int start_condition() { return start(in_condition); }

static int start_asynchronous()
{
    cleaned = destroyed = 0;
    CHECK(pthread_create(&thread, nullptr, asynchronous, nullptr) == 0);
    return 0;
}

static int end(int by, int guards)
{
    void *result;
    CHECK(pthread_cancel(thread) == 0);
    CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    CHECK(cleaned == by && destroyed == guards);
    CHECK(pthread_mutex_trylock(&mutex) == 0 && pthread_mutex_unlock(&mutex) == 0);
    return 0;
}

static int cancel() { return end(1, DESTRUCTORS); }
static int cancel_asynchronous() { return end(10, 0); }

int main()
{
    static const struct scene scenes[] = {
        {"read", start_read},
        {"sleep", start_sleep},
        {"condition", start_condition},
        {"asynchronous", start_asynchronous},
        {"cancel", cancel},
        {"cancel asynchronous", cancel_asynchronous},
        {nullptr, nullptr},
    };
    if (pipe(ends))
        return 1;
    say("ready\n");
    return serve(scenes);
}
