/* Signals that interrupt calls. They come when it sleeps in a call. */
#include "scenes.h"
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

/* What the sender and the process share. */
static struct {
    volatile int handled;
} *shared;
#define handled shared->handled

static sigjmp_buf back;
static char *other_stack;
enum { STACK = 65536 };

static void counts(int signal)
{
    (void)signal;
    handled++;
    syscall(SYS_getppid);
}

static void jumps(int signal)
{
    (void)signal;
    handled++;
    syscall(SYS_getppid);
    siglongjmp(back, 1);
}

static void on_stack(int signal)
{
    char here;
    (void)signal;
    if (&here >= other_stack && &here < other_stack + STACK)
        handled++;
    syscall(SYS_getppid);
}

static void on(void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigaction(SIGUSR1, &action, 0);
    handled = 0;
}

/* A process of its own, no child of this one, that sends signals: what it does takes as many calls as chance has it,
 * and nobody is to see them. */
struct order {
    long number; /* of the call that the process has to sleep in */
    int signals; /* that many, one after the other has been handled */
    int writes;  /* a byte, at last, to what is read */
};
static int orders[2], answers[2], ends[2];

static int sleeps_in(pid_t pid, long number)
{
    char path[40], wanted[20], text[200];
    snprintf(path, sizeof path, "/proc/%d/syscall", pid);
    snprintf(wanted, sizeof wanted, "%ld ", number);
    int fd = open(path, O_RDONLY);
    ssize_t length = read(fd, text, sizeof text - 1);
    close(fd);
    text[length > 0 ? length : 0] = 0;
    return strncmp(text, wanted, strlen(wanted)) == 0;
}

static void sender(pid_t process)
{
    struct order order;
    while (read(orders[0], &order, sizeof order) == sizeof order) {
        for (int i = 0; i < order.signals; i++) {
            while (!sleeps_in(process, order.number))
                usleep(500);
            int was = handled;
            kill(process, SIGUSR1);
            while (handled == was)
                usleep(500);
        }
        while (order.writes && !sleeps_in(process, order.number))
            usleep(500);
        if (write(order.writes ? ends[1] : answers[1], "r", 1) != 1)
            return;
    }
}

static void start_sender(void)
{
    pid_t process = getpid();
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || pipe(orders) || pipe(answers) || pipe(ends))
        _exit(1);
    pid_t pid = fork();
    if (pid == 0) {
        if (fork() == 0) {
            close(0);
            close(1);
            close(2);
            close(orders[1]);
            sender(process);
        }
        _exit(0);
    }
    waitpid(pid, 0, 0);
    close(orders[0]);
}

/* The signal comes when this process sleeps in the call. */
static int when_asleep(long number, int signals, int writes)
{
    struct order order = {number, signals, writes};
    return write(orders[1], &order, sizeof order) == sizeof order;
}

/* The sender has done what it was told, where it did not write what was read. */
static int is_answered(void)
{
    char byte;
    return read(answers[0], &byte, 1) == 1;
}

static int interrupted_read(void)
{
    char byte;
    on(counts, 0);
    CHECK(when_asleep(SYS_read, 1, 0));
    CHECK(read(ends[0], &byte, 1) == -1 && errno == EINTR && handled == 1);
    CHECK(is_answered());
    return 0;
}

static int restarted_read(void)
{
    char byte = 0;
    on(counts, SA_RESTART);
    CHECK(when_asleep(SYS_read, 3, 1));
    CHECK(read(ends[0], &byte, 1) == 1 && byte == 'r' && handled == 3);
    return 0;
}

/* By a number that is known only when the call is made. */
static int restarted_syscall(void)
{
    char byte = 0;
    on(counts, SA_RESTART);
    CHECK(when_asleep(SYS_read, 3, 1));
    CHECK(syscall(SYS_read, ends[0], &byte, 1) == 1 && byte == 'r' && handled == 3);
    on(counts, 0);
    CHECK(when_asleep(SYS_read, 1, 0));
    CHECK(syscall(SYS_read, ends[0], &byte, 1) == -1 && errno == EINTR && handled == 1);
    CHECK(is_answered());
    return 0;
}

static int interrupted_sleep(void)
{
    struct timespec day = {86400, 0}, left = {0, 0};
    on(counts, SA_RESTART); /* which sleeping does not do */
    CHECK(when_asleep(SYS_clock_nanosleep, 1, 0));
    CHECK(nanosleep(&day, &left) == -1 && errno == EINTR && left.tv_sec > 80000 && handled == 1);
    CHECK(is_answered());
    return 0;
}

/* Stopped and continued: no handler runs, and the kernel goes on by restart_syscall. */
static int stopped_sleep(void)
{
    struct timespec moment = {0, 300000000}, left = {0, 0};
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        struct timespec soon = {0, 50000000};
        syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &soon, 0);
        kill(parent, SIGSTOP);
        syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &soon, 0);
        kill(parent, SIGCONT);
        _exit(0);
    }
    int status;
    CHECK(nanosleep(&moment, &left) == 0);
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    return 0;
}

static int jump_out(void)
{
    char byte;
    for (volatile int i = 0; i < 20; i++) {
        on(jumps, 0);
        CHECK(when_asleep(SYS_read, 1, 0));
        if (sigsetjmp(back, 1) == 0) {
            if ((i % 2 ? read(ends[0], &byte, 1) : syscall(SYS_read, ends[0], &byte, 1)) != -2)
                return __LINE__;
        }
        CHECK(handled == 1 && is_answered());
    }
    return 0;
}

static int alternate_stack(void)
{
    other_stack = mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stack_t stack = {.ss_sp = other_stack, .ss_size = STACK}, none = {.ss_flags = SS_DISABLE};
    char byte;
    CHECK(other_stack != MAP_FAILED && sigaltstack(&stack, 0) == 0);
    on(on_stack, SA_ONSTACK);
    CHECK(raise(SIGUSR1) == 0 && handled == 1);
    CHECK(when_asleep(SYS_read, 1, 0));
    CHECK(read(ends[0], &byte, 1) == -1 && errno == EINTR && handled == 2);
    CHECK(is_answered());
    CHECK(sigaltstack(&none, 0) == 0 && munmap(other_stack, STACK) == 0);
    return 0;
}

/* Handlers that interrupt handlers, each at the call that sends the signal. */
static void nests(int signal)
{
    (void)signal;
    if (++handled < 10)
        raise(SIGUSR1);
    syscall(SYS_getppid);
}

static int nested(void)
{
    on(nests, SA_NODEFER);
    CHECK(raise(SIGUSR1) == 0 && handled == 10);
    return 0;
}

/* The mask is another during the call. */
static int suspended(void)
{
    sigset_t own, all;
    on(counts, 0);
    sigemptyset(&own);
    sigaddset(&own, SIGUSR1);
    CHECK(sigprocmask(SIG_BLOCK, &own, &all) == 0);
    CHECK(raise(SIGUSR1) == 0 && handled == 0);
    CHECK(sigsuspend(&all) == -1 && errno == EINTR && handled == 1);
    CHECK(sigprocmask(SIG_SETMASK, &all, 0) == 0);
    return 0;
}

/* A timer's signals, at any instruction there is, also inside of hooks. The calls' results tell. */
static int showered(void)
{
    timer_t timer;
    struct sigevent event = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1};
    struct itimerspec often = {{0, 50000}, {0, 50000}}, never = {{0, 0}, {0, 0}};
    on(counts, SA_RESTART);
    CHECK(timer_create(CLOCK_MONOTONIC, &event, &timer) == 0);
    CHECK(timer_settime(timer, 0, &often, 0) == 0);
    pid_t parent = getppid();
    for (int i = 0; i < 20000; i++) {
        CHECK(getppid() == parent);
        CHECK(syscall(SYS_getppid) == parent);
        CHECK(syscall(SYS_close, -1) == -1 && errno == EBADF);
    }
    CHECK(timer_settime(timer, 0, &never, 0) == 0 && timer_delete(timer) == 0);
    CHECK(handled > 0);
    return 0;
}

int main(void)
{
    start_sender();
    static const struct scene scenes[] = {
        {"interrupted read", interrupted_read},
        {"restarted read", restarted_read},
        {"restarted syscall", restarted_syscall},
        {"interrupted sleep", interrupted_sleep},
        {"stopped sleep", stopped_sleep},
        {"jump out", jump_out},
        {"alternate stack", alternate_stack},
        {"nested", nested},
        {"suspended", suspended},
        {"showered", showered},
        {0, 0},
    };
    say("ready\n");
    return serve(scenes);
}
