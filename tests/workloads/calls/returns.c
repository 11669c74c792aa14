/* Returns from signal handlers, and those who look at the code that does it. */
#include "scenes.h"
#include <execinfo.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <ucontext.h>

enum { ROUNDS = 200, STACK = 65536, FRAMES = 32 };

static volatile int handled;
static sigjmp_buf back;
static void *frames[FRAMES];
static volatile int frame_count;

static void counts(int signal)
{
    (void)signal;
    handled++;
}

static void nests(int signal)
{
    (void)signal;
    if (++handled % 5)
        raise(SIGUSR1);
}

static void jumps(int signal)
{
    (void)signal;
    handled++;
    siglongjmp(back, 1);
}

static void walks(int signal)
{
    (void)signal;
    frame_count = backtrace(frames, FRAMES);
    handled++;
}

/* Has the interrupted code go on with other registers than it had. */
static void changes(int signal, siginfo_t *info, void *context)
{
    ucontext_t *interrupted = context;
    (void)signal;
    (void)info;
    interrupted->uc_mcontext.gregs[REG_RAX] = -1234;
    handled++;
}

static void on(void (*handler)(int), int flags)
{
    struct sigaction action = {.sa_handler = handler, .sa_flags = flags};
    sigaction(SIGUSR1, &action, 0);
    handled = 0;
}

static int many(void)
{
    on(counts, 0);
    for (int i = 0; i < ROUNDS; i++)
        raise(SIGUSR1);
    CHECK(handled == ROUNDS);
    return 0;
}

static int nested(void)
{
    on(nests, SA_NODEFER);
    for (int i = 0; i < ROUNDS / 5; i++)
        raise(SIGUSR1);
    CHECK(handled == ROUNDS);
    return 0;
}

/* Handlers that never return: none of the call there. */
static int jumped(void)
{
    on(jumps, 0);
    for (volatile int i = 0; i < ROUNDS; i++)
        if (sigsetjmp(back, 1) == 0)
            raise(SIGUSR1);
    CHECK(handled == ROUNDS);
    return 0;
}

static int on_other_stack(void)
{
    void *other = mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stack_t stack = {.ss_sp = other, .ss_size = STACK}, none = {.ss_flags = SS_DISABLE};
    CHECK(other != MAP_FAILED && sigaltstack(&stack, 0) == 0);
    on(counts, SA_ONSTACK);
    for (int i = 0; i < ROUNDS; i++)
        raise(SIGUSR1);
    CHECK(handled == ROUNDS);
    CHECK(sigaltstack(&none, 0) == 0 && munmap(other, STACK) == 0);
    return 0;
}

/* An instruction that faults, which the handler steps over: the whole context comes back, changed. */
static void steps_over(int signal, siginfo_t *info, void *context)
{
    (void)signal;
    ((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP] += 2;
    changes(0, info, context);
}

static int changed(void)
{
    struct sigaction action = {.sa_sigaction = steps_over, .sa_flags = SA_SIGINFO}, before;
    CHECK(sigaction(SIGILL, &action, &before) == 0);
    handled = 0;
    for (int i = 0; i < ROUNDS; i++) {
        long kept = i, result;
        __asm__ volatile("ud2" : "=a"(result), "+r"(kept) : "a"(5L) : "memory");
        CHECK(result == -1234 && kept == i);
    }
    CHECK(handled == ROUNDS && sigaction(SIGILL, &before, 0) == 0);
    return 0;
}

/* The mask is the interrupted code's again. */
static int masked(void)
{
    sigset_t now;
    on(counts, 0);
    raise(SIGUSR1);
    CHECK(handled == 1 && sigprocmask(SIG_BLOCK, 0, &now) == 0 && !sigismember(&now, SIGUSR1));
    return 0;
}

__attribute__((noinline)) static void goes_deep(void)
{
    raise(SIGUSR1);
    __asm__ volatile("");
}

/* From the handler through the signal's frame to whoever was interrupted. */
static int walked(void)
{
    on(walks, 0);
    goes_deep();
    CHECK(handled == 1);
    int found = 0;
    for (int i = 0; i < frame_count; i++) {
        char *at = frames[i];
        found += at > (char *)goes_deep && at < (char *)goes_deep + 64;
    }
    CHECK(found == 1);
    return 0;
}

static int in_children(void)
{
    int status;
    pid_t pid = fork();
    if (pid == 0)
        _exit(many() || nested());
    CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    return 0;
}

/* A child that is forked in a handler returns from it, too. */
static void forks(int signal)
{
    (void)signal;
    handled++;
    if (fork() == 0)
        handled = -1;
}

static int forked_in_handler(void)
{
    int status;
    on(forks, 0);
    raise(SIGUSR1);
    if (handled == -1)
        _exit(many());
    CHECK(wait(&status) > 0 && status == 0);
    return 0;
}

int main(void)
{
    static const struct scene scenes[] = {
        {"many", many},       {"nested", nested},
        {"jumped", jumped},   {"other stack", on_other_stack},
        {"changed", changed}, {"masked", masked},
        {"walked", walked},   {"children", in_children},
        {"forked in handler", forked_in_handler}, {0, 0},
    };
    backtrace(frames, FRAMES); /* loads what it needs */
    say("ready\n");
    return serve(scenes);
}
