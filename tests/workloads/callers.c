/* Threads that call probed functions a known number of times, while signals, forks and kills come between.
 *
 * Says "ready", then takes commands of the form "COMMAND FIRST THREADS CALLS". Each starts THREADS threads; the i-th calls
 * s_hit(FIRST + i) CALLS times. When all have ended the answer is "done", with for
 *   threads: nothing more
 *   forks:   how many of the children that were forked meanwhile failed; they call s_hit(FIRST + THREADS)
 *   signals: how often each thread's timer signal came in; its handler calls s_signal(FIRST + THREADS + i)
 * Exit code 7 at end of file. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PROBED __attribute__((noinline, noclone, used))
#define KEEP(value) __asm__ volatile("" : "+r"(value) : : "memory")

enum { EXIT_CODE = 7, THREADS_AT_MOST = 16, CHILD_CALLS = 1000, CHILDREN = 20, TICK_NS = 40000 };

PROBED long s_hit(long index) { KEEP(index); return index * 3; }
PROBED long s_signal(long index) { KEEP(index); return index * 5; }

struct caller {
    pthread_t thread;
    long index, calls, wrong;
    int has_timer;
    volatile long signals;
};

static struct caller callers[THREADS_AT_MOST];
static long thread_count;
static atomic_long running;
static __thread struct caller *self;

static void on_signal(int number)
{
    (void)number;
    long index = self->index + thread_count;
    self->wrong += s_signal(index) != index * 5;
    self->signals++;
}

static void start_timer(timer_t *timer)
{
    struct sigevent event = {.sigev_notify = SIGEV_THREAD_ID, .sigev_signo = SIGALRM};
    struct itimerspec often = {{0, TICK_NS}, {0, TICK_NS}};
    event._sigev_un._tid = (int)syscall(SYS_gettid);
    timer_create(CLOCK_MONOTONIC, &event, timer);
    timer_settime(*timer, 0, &often, 0);
}

/* After this none of the thread's signals is under way. */
static void stop_timer(timer_t timer)
{
    sigset_t alarms;
    struct timespec none = {0, 0};
    timer_delete(timer);
    sigemptyset(&alarms);
    sigaddset(&alarms, SIGALRM);
    pthread_sigmask(SIG_BLOCK, &alarms, 0);
    while (sigtimedwait(&alarms, 0, &none) > 0)
        ;
}

static void *call(void *argument)
{
    timer_t timer;
    self = argument;
    if (self->has_timer)
        start_timer(&timer);
    for (long i = 0; i < self->calls; i++)
        self->wrong += s_hit(self->index) != self->index * 3;
    if (self->has_timer)
        stop_timer(timer);
    atomic_fetch_sub(&running, 1);
    return 0;
}

static int child(long index)
{
    long wrong = 0;
    for (long i = 0; i < CHILD_CALLS; i++)
        wrong += s_hit(index) != index * 3;
    return wrong != 0;
}

static long fork_children(long index)
{
    long failed = 0;
    for (int i = 0; i < CHILDREN && atomic_load(&running) > 0; i++) {
        int status = 1;
        pid_t pid = fork();
        if (pid == 0)
            _exit(child(index));
        waitpid(pid, &status, 0);
        failed += status != 0;
    }
    return failed;
}

static void work(const char *command, long first, long count, long calls)
{
    long failed = 0, wrong = 0;
    thread_count = count;
    atomic_store(&running, count);
    for (long i = 0; i < count; i++) {
        callers[i] = (struct caller){.index = first + i, .calls = calls, .has_timer = !strcmp(command, "signals")};
        pthread_create(&callers[i].thread, 0, call, &callers[i]);
    }
    if (strcmp(command, "forks") == 0)
        failed = fork_children(first + count);
    for (long i = 0; i < count; i++) {
        pthread_join(callers[i].thread, 0);
        wrong += callers[i].wrong;
    }
    if (wrong) {
        printf("%ld wrong results\n", wrong);
        return;
    }
    fputs("done", stdout);
    if (strcmp(command, "forks") == 0)
        printf(" %ld", failed);
    for (long i = 0; i < count && callers[i].has_timer; i++)
        printf(" %ld", callers[i].signals);
    putchar('\n');
}

int main(void)
{
    char line[128], command[16];
    long first, count, calls;
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGALRM, &action, 0);
    setvbuf(stdout, 0, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        int read = sscanf(line, "%15s %ld %ld %ld", command, &first, &count, &calls);
        if (read == 4 && count > 0 && count <= THREADS_AT_MOST)
            work(command, first, count, calls);
        else
            puts("what?");
    }
    return EXIT_CODE;
}
