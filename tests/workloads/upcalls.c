/* Forks and runs programs, or, with the argument "attack", lies to Beeline about that.
 *
 * For a line "go" on its input it begins ROUND children one after the other, each of which calls wl_add once and then runs this
 * program anew, which calls it once more and ends. It answers "done", or for "time" with the microseconds that one such child
 * takes, the median of them all. For "spin" it calls wl_add MANY times and answers with the nanoseconds of one call.
 *
 * An attacker answers "attacks", and does what the line says for as long as it runs. It knows the session page's layout
 * (`Session` and `Request` of crates/agent/src/abi.rs). */
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROBED __attribute__((noinline, noclone, used))
#define KEEP(value) __asm__ volatile("" : "+r"(value) : : "memory")

enum { EXIT_CODE = 7, ROUND = 50, MANY = 2000000, REQUESTS = 64, POSTED = 2 };
enum { EXEC = 1, NO_EXEC, CODE, FORK, CONFINE };

struct request {
    volatile uint32_t state, kind, pid, owner, tid, directory, flags, padding;
    volatile uint64_t address, rest[3];
};
struct page {
    volatile uint32_t doorbell, waiting;
    volatile uint64_t missed, refused, unguarded;
    volatile uint32_t asked, deaf;
    volatile uint64_t disturbed, unanswered;
    volatile uint32_t answers, more;
    struct request requests[REQUESTS];
};

PROBED long wl_add(long a, long b) { KEEP(a); return a + b; }

static int64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000000000L + time.tv_nsec;
}

static void child(void)
{
    wl_add(1, 2);
    execl("/proc/self/exe", "upcalls", "once", (char *)0);
    _exit(1);
}

static int ascending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Returns the median of the nanoseconds that a child took. */
static int64_t run_children(void)
{
    static int64_t times[ROUND];
    for (int i = 0; i < ROUND; i++) {
        int64_t begun = now();
        pid_t pid = fork();
        if (!pid)
            child();
        waitpid(pid, 0, 0);
        times[i] = now() - begun;
    }
    qsort(times, ROUND, sizeof *times, ascending);
    return times[ROUND / 2];
}

/* Below: the attacks. */

static struct page *page;
static uint32_t owner;

static void *mapping(const char *text, int (*is_it)(void *))
{
    char line[512];
    unsigned long start;
    void *found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && !found && fgets(line, sizeof line, maps)) {
        char *name = strstr(line, "/memfd:beeline-");
        if (name && strstr(name, text) && sscanf(line, "%lx-", &start) == 1 && (!is_it || is_it((void *)start)))
            found = (void *)start;
    }
    if (maps)
        fclose(maps);
    return found;
}

/* True for the pool that begins with the owner's tag, behind the magic word and the session. */
static int is_home(void *pool) { return (owner = ((uint32_t *)pool)[3]) != 0; }

static void wake(volatile uint32_t *word)
{
    __atomic_fetch_add(word, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, word, FUTEX_WAKE, 1, 0, 0, 0);
}

static void post(uint32_t kind, uint32_t pid, uint32_t tid)
{
    for (int i = 0; i < REQUESTS; i++) {
        struct request *request = &page->requests[i];
        if (request->state == POSTED)
            continue;
        request->kind = kind;
        request->pid = pid;
        request->tid = tid;
        request->owner = owner;
        request->address = (uintptr_t) "/proc/self/exe";
        request->state = POSTED;
    }
    wake(&page->asked);
}

/* A process whose threads cannot all be stopped: one waits in vfork. */
static void *wait_in_vfork(void *unused)
{
    if (!vfork())
        for (;;)
            pause();
    return unused;
}

static void attack(const char *name)
{
    uint32_t self = (uint32_t)getpid();
    pthread_t thread;
    int kind = name[strlen(name) - 1] - '0';
    if (!strncmp(name, "own", 3)) /* own1 to own5: requests in its own name */
        for (;;)
            post((uint32_t)kind, self, self);
    if (!strncmp(name, "tid", 3)) /* of a thread that it does not have */
        for (;;)
            post((uint32_t)kind, self, 1);
    if (!strncmp(name, "lie", 3)) /* in the name of others */
        for (uint32_t other = 2;; other++)
            post((uint32_t)kind, other, other);
    if (!strcmp(name, "ring"))
        for (;;) {
            wake(&page->asked);
            wake(&page->doorbell);
        }
    if (!strcmp(name, "work")) /* no attack: it only takes a processor */
        for (volatile long n = 0;; n++)
            ;
    if (!strcmp(name, "stuck") && !pthread_create(&thread, 0, wait_in_vfork, 0))
        for (;;) {
            post(CODE, self, self);
            usleep(100000);
        }
    if (!strcmp(name, "stop"))
        for (;;) {
            post(EXEC, self, self);
            raise(SIGSTOP);
        }
    if (!strcmp(name, "forks"))
        for (;;) {
            if (!fork())
                _exit(0);
            while (waitpid(-1, 0, WNOHANG) > 0)
                ;
        }
    if (!strcmp(name, "execs"))
        execl("/proc/self/exe", "upcalls", "execs", (char *)0);
    for (;;)
        pause();
}

static void *begin(void *name)
{
    attack(name);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "once"))
        return (int)wl_add(1, 2);
    if (argc > 1 && !strcmp(argv[1], "execs"))
        attack("execs");
    int attacks = argc > 1 && !strcmp(argv[1], "attack");
    setvbuf(stdout, 0, _IONBF, 0);
    puts("ready");
    static char line[64];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (attacks) {
            pthread_t thread;
            wl_add(1, 2);
            page = mapping("-session", 0);
            mapping("-trampolines", is_home);
            printf("attacks %d\n", page && owner);
            if (!page || pthread_create(&thread, 0, begin, line))
                return 1;
            for (;;)
                pause();
        }
        int64_t begun = now(), median = 0;
        if (!strcmp(line, "spin"))
            for (int i = 0; i < MANY; i++)
                wl_add(i, i);
        else
            median = run_children();
        if (!strcmp(line, "go"))
            puts("done");
        else
            printf("%ld\n", (long)(strcmp(line, "spin") ? median / 1000 : (now() - begun) * 1000 / MANY));
    }
    return EXIT_CODE;
}
