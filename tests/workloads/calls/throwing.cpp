// Exceptions that handlers of signals throw through the signal's frame. Compiled with -fnon-call-exceptions.
#include "scenes.h"
#include <csignal>

static int handled;

static void throws(int)
{
    handled++;
    sigset_t own;
    sigemptyset(&own);
    sigaddset(&own, SIGSEGV);
    sigprocmask(SIG_UNBLOCK, &own, nullptr);
    throw handled;
}

static int faults(volatile int *nothing)
{
    return *nothing;
}

static int thrown()
{
    handled = 0;
    signal(SIGSEGV, throws);
    for (int i = 1; i <= 100; i++) {
        int caught = 0;
        try {
            faults(nullptr);
        } catch (int number) {
            caught = number;
        }
        CHECK(caught == i && handled == i);
    }
    return 0;
}

int main()
{
    static const scene scenes[] = {{"thrown", thrown}, {nullptr, nullptr}};
    say("ready\n");
    return serve(scenes);
}
