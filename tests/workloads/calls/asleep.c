/* Threads that sleep in calls: one each in read, epoll_wait, a futex, nanosleep, and in read by a number in a register. They
 * sleep before "ready", and again after each "wake", which answers when all have woken and worked. */
#include "scenes.h"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <time.h>

enum { SLEEPERS = 5, WORK = 3 };
enum { FUTEX_WAIT = 0, FUTEX_WAKE = 1 };

static int reports[2], words[2], others[2], polled[2], epoll;
static int futex_word, rounds;
static pthread_t sleepers[SLEEPERS];

static void nothing(int signal)
{
    (void)signal;
}

static int in_read(void)
{
    char byte;
    return read(words[0], &byte, 1) == 1;
}

static int in_epoll(void)
{
    struct epoll_event event;
    char byte;
    return epoll_wait(epoll, &event, 1, -1) == 1 && read(polled[0], &byte, 1) == 1;
}

static int in_futex(int round)
{
    return syscall(SYS_futex, &futex_word, FUTEX_WAIT, round, 0, 0, 0) == 0;
}

static int in_nanosleep(void)
{
    struct timespec day = {86400, 0};
    return nanosleep(&day, 0) == -1 && errno == EINTR;
}

static int in_numbered(void)
{
    char byte;
    return syscall(SYS_read, others[0], &byte, 1) == 1;
}

static void *sleeper(void *argument)
{
    long which = (long)argument;
    for (int round = 0;; round++) {
        int well = which == 0 ? in_read() : which == 1 ? in_epoll() : which == 2 ? in_futex(round)
            : which == 3 ? in_nanosleep() : in_numbered();
        for (int i = 0; i < WORK; i++)
            syscall(SYS_getppid);
        if (write(reports[1], well ? "w" : "f", 1) != 1)
            return 0;
    }
}

static int wake(void)
{
    char byte;
    futex_word = ++rounds;
    CHECK(write(words[1], "x", 1) == 1 && write(polled[1], "x", 1) == 1 && write(others[1], "x", 1) == 1);
    CHECK(syscall(SYS_futex, &futex_word, FUTEX_WAKE, 1, 0, 0, 0) == 1);
    CHECK(pthread_kill(sleepers[3], SIGUSR1) == 0);
    for (int i = 0; i < SLEEPERS; i++)
        CHECK(read(reports[0], &byte, 1) == 1 && byte == 'w');
    return 0;
}

int main(void)
{
    static const struct scene scenes[] = {{"wake", wake}, {0, 0}};
    struct sigaction action = {.sa_handler = nothing};
    struct epoll_event event = {.events = EPOLLIN};
    if (pipe(reports) || pipe(words) || pipe(others) || pipe(polled) || (epoll = epoll_create1(0)) < 0 ||
        epoll_ctl(epoll, EPOLL_CTL_ADD, polled[0], &event) || sigaction(SIGUSR1, &action, 0))
        return 1;
    for (long i = 0; i < SLEEPERS; i++)
        if (pthread_create(&sleepers[i], 0, sleeper, (void *)i))
            return 1;
    say("ready\n");
    return serve(scenes);
}
