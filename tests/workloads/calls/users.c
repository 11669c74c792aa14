/* A target whose threads and children become other users, and ask for their parent at each turn. To be run as root. */
#include "scenes.h"
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { TURNS = 300, FIRST = 1000 };

static void show(void)
{
    syscall(SYS_getppid);
}

/* Of this thread alone; the real id only, so that it can go back. */
static long become(int user)
{
    return syscall(SYS_setresuid, user, -1, -1);
}

/* More often than any clock ticks. */
static int turns(void)
{
    for (int i = 0; i < TURNS; i++) {
        CHECK(become(FIRST + i) == 0);
        show();
        CHECK(syscall(SYS_setregid, FIRST - i, -1) == 0);
        show();
    }
    CHECK(become(0) == 0 && syscall(SYS_setregid, 0, -1) == 0);
    show();
    return 0;
}

/* Attempts that fail change nothing. */
static int failing(void)
{
    show();
    CHECK(unshare(-1) == -1);
    CHECK(syscall(SYS_setns, -1, 0) == -1);
    show();
    return 0;
}

static pthread_barrier_t barrier;

static void *other_thread(void *argument)
{
    show();
    pthread_barrier_wait(&barrier);
    /* The main thread has become another user by itself. */
    pthread_barrier_wait(&barrier);
    show();
    pthread_barrier_wait(&barrier);
    /* And now all threads have. */
    pthread_barrier_wait(&barrier);
    show();
    return argument;
}

static int threads(void)
{
    pthread_t thread;
    CHECK(pthread_barrier_init(&barrier, 0, 2) == 0);
    CHECK(pthread_create(&thread, 0, other_thread, 0) == 0);
    show();
    pthread_barrier_wait(&barrier);
    CHECK(become(FIRST) == 0);
    show();
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    CHECK(setresuid(FIRST + 1, -1, -1) == 0);
    show();
    pthread_barrier_wait(&barrier);
    CHECK(pthread_join(thread, 0) == 0);
    CHECK(setresuid(0, -1, -1) == 0);
    show();
    return 0;
}

static int ends(pid_t pid)
{
    int status;
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

static int children(void)
{
    show();
    pid_t pid = fork();
    if (pid == 0) {
        show();
        for (int i = 0; i < 20; i++) {
            become(FIRST + i);
            show();
        }
        _exit(0);
    }
    CHECK(ends(pid));
    show();
    pid = vfork();
    if (pid == 0) {
        show();
        become(FIRST);
        show();
        _exit(0);
    }
    CHECK(ends(pid));
    show();
    return 0;
}

static volatile int handled;

static void handler(int signal)
{
    show();
    handled = (int)become(FIRST + signal) + 1;
    show();
}

static int handlers(void)
{
    struct sigaction action = {.sa_handler = handler};
    CHECK(sigaction(SIGUSR1, &action, 0) == 0);
    show();
    for (int i = 0; i < 20; i++) {
        CHECK(become(0) == 0);
        show();
        CHECK(raise(SIGUSR1) == 0 && handled == 1);
        show();
    }
    CHECK(become(0) == 0);
    show();
    return 0;
}

/* By code that is written now, and that nobody looks through. */
static int written(void)
{
    static const uint8_t code[] = {
        0xb8, SYS_setresuid, 0, 0, 0, /* mov $117, %eax */
        0x0f, 0x05,                   /* syscall */
        0xc3,                         /* ret */
    };
    void *page = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(page != MAP_FAILED);
    memcpy(page, code, sizeof code);
    long (*set)(long, long, long) = (long (*)(long, long, long))(uintptr_t)page;
    for (int i = 0; i < 20; i++) {
        CHECK(set(FIRST + i, -1, -1) == 0);
        show();
    }
    CHECK(set(0, -1, -1) == 0);
    show();
    pid_t pid = fork();
    if (pid == 0) {
        show();
        set(FIRST, -1, -1);
        show();
        _exit(0);
    }
    CHECK(ends(pid));
    return 0;
}

int main(void)
{
    static const struct scene scenes[] = {
        {"turns", turns},       {"failing", failing},   {"threads", threads}, {"children", children},
        {"handlers", handlers}, {"written", written}, {0, 0},
    };
    say("ready\n");
    return serve(scenes);
}
