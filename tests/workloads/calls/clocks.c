/* Asks for times that the vDSO does not know, and for random bytes: it calls the kernel. */
#include "scenes.h"
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

enum { ROUNDS = 50, NO_CLOCK = 100 };

static int asks(void)
{
    struct timespec time, before = {0, 0};
    struct timeval now;
    for (int i = 0; i < ROUNDS; i++) {
        CHECK(clock() != (clock_t)-1);
        CHECK(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time) == 0);
        CHECK(time.tv_sec > before.tv_sec || (time.tv_sec == before.tv_sec && time.tv_nsec > before.tv_nsec));
        before = time;
        CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0 && time.tv_nsec > 0);
        CHECK(clock_getres(CLOCK_PROCESS_CPUTIME_ID, &time) == 0 && time.tv_nsec == 1);
        CHECK(clock_gettime(NO_CLOCK, &time) == -1 && errno == EINVAL);
        /* These it knows. */
        CHECK(clock_gettime(CLOCK_MONOTONIC, &time) == 0 && gettimeofday(&now, 0) == 0);
        CHECK(clock_getres(CLOCK_MONOTONIC, &time) == 0);
    }
    return 0;
}

static int random_bytes(void)
{
    char bytes[300] = {0};
    for (int i = 0; i < ROUNDS; i++) {
        CHECK(getrandom(bytes, sizeof bytes, 0) == sizeof bytes);
        CHECK(getrandom(bytes, 16, GRND_RANDOM) == 16);
        CHECK(getrandom(bytes, 16, 1u << 30) == -1 && errno == EINVAL);
    }
    return 0;
}

static int is_right(pid_t pid)
{
    int status;
    return waitpid(pid, &status, 0) == pid && status == 0;
}

static int in_children(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        if (asks() || random_bytes())
            _exit(1);
        pid_t child = fork();
        if (child == 0)
            _exit(asks());
        if (!is_right(child))
            _exit(2);
        execl("/proc/self/exe", "clocks", "once", (char *)0);
        _exit(3);
    }
    CHECK(is_right(pid));
    CHECK(asks() == 0);
    return 0;
}

static int sharing(void)
{
    pid_t pid = vfork();
    if (pid == 0) {
        struct timespec time;
        for (int i = 0; i < ROUNDS; i++)
            clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
        _exit(0);
    }
    CHECK(is_right(pid));
    return 0;
}

static void *thread(void *unused)
{
    struct timespec time;
    (void)unused;
    for (int i = 0; i < ROUNDS; i++)
        if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time))
            return "";
    return 0;
}

static int in_a_thread(void)
{
    pthread_t other;
    void *wrong;
    CHECK(pthread_create(&other, 0, thread, 0) == 0);
    CHECK(pthread_join(other, &wrong) == 0 && !wrong);
    return 0;
}

/* The page that the kernel keeps the time in gives way to an empty one: as where the machine's clock is one that only the
 * kernel can read, the vDSO asks for every time. */
static int forgets(void)
{
    char line[300];
    unsigned long start, end;
    FILE *maps = fopen("/proc/self/maps", "r");
    CHECK(maps);
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "[vvar]") && sscanf(line, "%lx-%lx", &start, &end) == 2) {
            fclose(maps);
            void *at = (void *)start;
            CHECK(mmap(at, end - start, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == at);
            return 0;
        }
    return __LINE__;
}

int main(int count, char **arguments)
{
    static const struct scene scenes[] = {
        {"clocks", asks},     {"random", random_bytes},     {"children", in_children},
        {"sharing", sharing}, {"thread", in_a_thread}, {0, 0},
    };
    if (count > 1 && !strcmp(arguments[1], "once"))
        return asks() || random_bytes();
    if (count > 1 && forgets())
        return 1;
    say("ready\n");
    return serve(scenes);
}
