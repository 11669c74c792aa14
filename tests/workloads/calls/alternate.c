/* Handlers of two signals that share one alternate stack and interrupt each other. One that interrupts another has to
 * begin below it; each keeps a pattern in its frame while it calls. What is wrong ends the process at once: it would not
 * come far. */
#include "scenes.h"
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/time.h>

enum { ROUNDS = 4000, CALLS = 4, WORDS = 64, STACK = 65536, LONGEST = 40 };

static volatile int by_hand, by_timer;
static int null;
/* The frame of the handler that runs: of the one that was interrupted last, when another begins. */
static volatile long *volatile running;

__attribute__((noinline, noclone, used)) long al_handled(long n)
{
    __asm__ volatile("" : "+r"(n) : : "memory");
    return n + 1;
}

static void fail(const char *what)
{
    say(what);
    _exit(1);
}

static void handles(int signal)
{
    volatile long frame[WORDS], *interrupted = running;
    if (interrupted && frame + WORDS > interrupted)
        fail("failed: a handler begins where another one runs\n");
    running = frame;
    for (int i = 0; i < WORDS; i++)
        frame[i] = signal * WORDS + i;
    for (int i = 0; i < CALLS; i++) {
        if (write(null, "x", 1) != 1 || getppid() <= 0 || al_handled(signal) != signal + 1)
            fail("failed: a wrong result in a handler\n");
    }
    for (int i = 0; i < WORDS; i++) {
        if (frame[i] != signal * WORDS + i)
            fail("failed: a handler's frame is overwritten\n");
    }
    running = interrupted;
    if (signal == SIGALRM)
        by_timer++;
    else
        by_hand++;
}

/* The timer's signal comes at any instruction of the other's handler, or before it, or after it. No call waits for the
 * two: how many it would take is chance. */
static int go(void)
{
    stack_t stack = {.ss_sp = malloc(STACK), .ss_size = STACK}, none = {.ss_flags = SS_DISABLE};
    struct sigaction action = {.sa_handler = handles, .sa_flags = SA_ONSTACK};
    CHECK(stack.ss_sp && sigaltstack(&stack, 0) == 0);
    CHECK(sigaction(SIGUSR1, &action, 0) == 0 && sigaction(SIGALRM, &action, 0) == 0);
    by_hand = by_timer = 0;
    for (int i = 0; i < ROUNDS; i++) {
        struct itimerval soon = {.it_value.tv_usec = 1 + i % LONGEST};
        CHECK(setitimer(ITIMER_REAL, &soon, 0) == 0 && kill(getpid(), SIGUSR1) == 0);
        while (by_hand <= i || by_timer <= i)
            ;
    }
    CHECK(by_hand == ROUNDS && by_timer == ROUNDS);
    CHECK(sigaltstack(&none, 0) == 0);
    free(stack.ss_sp);
    return 0;
}

int main(void)
{
    static const struct scene scenes[] = {{"go", go}, {0, 0}};
    null = open("/dev/null", O_WRONLY);
    say("ready\n");
    return serve(scenes);
}
