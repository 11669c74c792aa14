// Threads that each do one thing and see for themselves whether it comes out right: compute, sleep, wait for each other, pass numbers
// through a pipe, ask the kernel, get signals, start children. Told "go" it ends them and says "right", or what was wrong.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static atomic_int over;
static atomic_long turns;
static _Atomic(const char *) wrong;
#define CHECK(what) do { if (!(what)) { const char *none = NULL; static char text[200]; \
    snprintf(text, sizeof text, "%s: not so: %s (errno %d)", __func__, #what, errno); \
    atomic_compare_exchange_strong(&wrong, &none, text); return NULL; } } while (0)

static long micros(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

__attribute__((noinline)) long wl_add(long sum, long number) {
    __asm__ volatile("" : "+r"(sum));
    return sum + number;
}

static void *computes(void *unused) {
    while (!over) {
        long sum = 0;
        double product = 1;
        for (long i = 1; i <= 2000; i++) {
            sum = wl_add(sum, i);
            product = product * 1.0009765625 / 1.0009765625;
        }
        CHECK(sum == 2001000);
        CHECK(product > 0.999999 && product < 1.000001);
        turns++;
        usleep(150);
    }
    return unused;
}

static void *sleeps(void *unused) {
    while (!over) {
        struct timespec time = {0, 3000000};
        long start = micros();
        CHECK(nanosleep(&time, NULL) == 0);
        CHECK(micros() - start >= 3000);
        turns++;
    }
    return unused;
}

static void *polls(void *unused) {
    while (!over) {
        long start = micros();
        CHECK(poll(NULL, 0, 4) == 0);
        CHECK(micros() - start >= 3900);
        turns++;
    }
    return unused;
}

static atomic_int ball;
static void *plays(void *side) {
    int mine = (int)(long)side;
    while (!over) {
        int now = ball;
        if (now % 2 != mine) {
            struct timespec time = {0, 50000000};
            long result = syscall(SYS_futex, &ball, FUTEX_WAIT, now, &time, NULL, 0);
            CHECK(result == 0 || errno == EAGAIN || errno == ETIMEDOUT);
            continue;
        }
        CHECK(atomic_compare_exchange_strong(&ball, &now, now + 1));
        CHECK(syscall(SYS_futex, &ball, FUTEX_WAKE, 1, NULL, NULL, 0) >= 0);
        if (now % 8 == 0) usleep(100);
        turns++;
    }
    return NULL;
}

static int numbers[2];
static void *reads(void *unused) {
    for (long expected = 0;; expected++) {
        long number;
        CHECK(read(numbers[0], &number, sizeof number) == sizeof number);
        if (number < 0) return unused;
        CHECK(number == expected);
    }
}
static void *writes(void *unused) {
    long number = 0;
    for (; !over; number++) {
        CHECK(write(numbers[1], &number, sizeof number) == sizeof number);
        if (number % 8 == 0) usleep(700);
    }
    number = -1;
    CHECK(write(numbers[1], &number, sizeof number) == sizeof number);
    return unused;
}

static void *asks(void *unused) {
    pid_t parent = getppid(), self = syscall(SYS_gettid);
    while (!over) {
        CHECK(syscall(SYS_getppid) == parent);
        CHECK(syscall(SYS_gettid) == self);
        CHECK(syscall(SYS_close, -1) == -1 && errno == EBADF);
        if (turns++ % 16 == 0) usleep(100);
    }
    return unused;
}

static volatile int got, disorder;
static void on_signal(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    if (info->si_value.sival_int != got) disorder++;
    got++;
}
static void *hears(void *unused) {
    sigset_t all_but_one;
    sigfillset(&all_but_one);
    sigdelset(&all_but_one, SIGRTMIN);
    while (!over) {
        CHECK(sigsuspend(&all_but_one) == -1 && errno == EINTR);
        CHECK(disorder == 0);
    }
    return unused;
}
static void *calls_out(void *thread) {
    for (int i = 0; !over || got < i; i++) {
        CHECK(pthread_sigqueue(*(pthread_t *)thread, SIGRTMIN, (union sigval){.sival_int = i}) == 0);
        long start = micros();
        while (got <= i && micros() - start < 20000000) usleep(100);
        CHECK(got == i + 1);
        turns++;
        if (over) break;
    }
    return NULL;
}

static void *starts(void *program) {
    while (!over) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            if (program) execl(program, program, NULL);
            _exit(program ? 1 : (int)(wl_add(20, 3)));
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == (program ? 0 : 23));
        turns++;
        usleep(5000);
    }
    return NULL;
}

int main(void) {
    static pthread_t threads[11], hearer;
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};
    sigaction(SIGRTMIN, &action, NULL);
    if (pipe(numbers) != 0) return 1;
    struct { void *(*run)(void *); void *argument; } jobs[] = {
        {computes, NULL}, {sleeps, NULL}, {polls, NULL}, {plays, (void *)0}, {plays, (void *)1}, {reads, NULL}, {writes, NULL},
        {asks, NULL}, {starts, NULL}, {starts, "/bin/true"}, {calls_out, &hearer},
    };
    if (pthread_create(&hearer, NULL, hears, NULL) != 0) return 1;
    enum { MANY = sizeof jobs / sizeof *jobs };
    for (int i = 0; i < MANY; i++)
        if (pthread_create(&threads[i], NULL, jobs[i].run, jobs[i].argument) != 0) return 1;
    puts("ready");
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        // All of them still get on.
        if (strcmp(line, "turns\n") == 0) {
            printf("%ld %s\n", turns, wrong ? wrong : "right");
        } else {
            over = 1;
            for (int i = 0; i < MANY; i++) pthread_join(threads[i], NULL);
            puts(wrong ? wrong : "right");
        }
        fflush(stdout);
    }
    return wrong ? 1 : 7;
}
