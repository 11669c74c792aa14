/* Calls `probed`, which only a breakpoint can hook, and `plain`, which a jump hooks, where SIGTRAP is meant to be blocked.
 *
 * It says "ready". "handler N": in a handler for signal N that blocks all signals, which was installed at the start for SIGUSR1 and
 * SIGTRAP, and is installed by "install" for SIGUSR2. "thread": in a thread that has blocked all signals just before and looks at its
 * mask afterwards. "main": in the main thread, which blocks all signals once "block" has said so. "wait K": in a handler while sigsuspend
 * (0), ppoll (1), pselect (2) or epoll_pwait (3) waits with all other signals blocked; "far K": with a mask that lies over the end of a
 * page, far from the stack. "vfork": in a child that shares the memory and has reset its handlers. Each answers "done CALLS". "install" and "mask N"
 * answer "blocks" if the handler's mask has SIGTRAP, else "lets in". At end of file it exits with code 7. */
#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EXIT_CODE = 7 };

/* It branches into its first five bytes. */
__asm__(".text; .globl probed; .type probed, @function; probed: xor %eax, %eax; 1: inc %eax; dec %edi; jnz 1b; ret;"
        ".size probed, . - probed");
int probed(int);

__asm__(".text; .globl plain; .type plain, @function; plain: push %rbp; mov %rsp, %rbp; lea 1(%rdi), %eax; pop %rbp; ret;"
        ".size plain, . - plain");
int plain(int);

static volatile int calls;

static void call(void)
{
    calls += probed(3) - plain(1);
}

static void handle(int signal)
{
    (void)signal;
    call();
}

static void install(int signal)
{
    struct sigaction action = {.sa_handler = handle};
    sigfillset(&action.sa_mask);
    sigaction(signal, &action, 0);
}

static const char *mask_of(int signal)
{
    struct sigaction action;
    sigaction(signal, 0, &action);
    return sigismember(&action.sa_mask, SIGTRAP) ? "blocks" : "lets in";
}

static void *block_and_call(void *unused)
{
    sigset_t all, before, after;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, 0);
    call();
    pthread_sigmask(SIG_UNBLOCK, &all, &before);
    pthread_sigmask(SIG_BLOCK, 0, &after);
    if (!sigismember(&before, SIGTRAP) || sigismember(&after, SIGTRAP))
        printf("wrong mask, ");
    return unused;
}

static void in_thread(void)
{
    pthread_t thread;
    pthread_create(&thread, 0, block_and_call, 0);
    pthread_join(thread, 0);
}

/* Room for a mask that begins on one page and ends on the next. */
static sigset_t *across_pages(void)
{
    static char pages[3 * 4096];
    return (sigset_t *)((((uintptr_t)pages + 4096) & ~4095ul) + 4096 - 4);
}

/* Has a signal's handler run while a call waits with all other signals blocked. */
static void in_wait(int kind, sigset_t *mask)
{
    sigset_t one, others, before;
    sigemptyset(&one);
    sigaddset(&one, SIGUSR1);
    sigfillset(&others);
    sigdelset(&others, SIGUSR1);
    memcpy(mask, &others, 8);
    sigprocmask(SIG_BLOCK, &one, &before);
    raise(SIGUSR1);
    if (kind == 0)
        sigsuspend(mask);
    else if (kind == 1)
        ppoll(0, 0, 0, mask);
    else if (kind == 2)
        pselect(0, 0, 0, 0, 0, mask);
    else {
        int epoll = epoll_create1(0);
        struct epoll_event event;
        epoll_pwait(epoll, &event, 1, -1, mask);
        close(epoll);
    }
    sigprocmask(SIG_SETMASK, &before, 0);
    if (memcmp(mask, &others, 8))
        printf("wrong mask, ");
}

static void in_child(void)
{
    pid_t child = vfork();
    if (child == 0) {
        struct sigaction action = {.sa_handler = SIG_DFL};
        sigaction(SIGTRAP, &action, 0);
        call();
        _exit(0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    if (status)
        printf("child ended with %d, ", status);
}

int main(void)
{
    char line[64];
    install(SIGUSR1);
    install(SIGTRAP);
    puts("ready");
    while (fflush(stdout), fgets(line, sizeof line, stdin)) {
        int signal = strchr(line, ' ') ? atoi(strchr(line, ' ')) : 0;
        if (strncmp(line, "handler", 7) == 0)
            raise(signal);
        else if (strncmp(line, "thread", 6) == 0)
            in_thread();
        else if (strncmp(line, "wait", 4) == 0)
            in_wait(signal, &(sigset_t){0});
        else if (strncmp(line, "far", 3) == 0)
            in_wait(signal, across_pages());
        else if (strncmp(line, "block", 5) == 0) {
            sigset_t all;
            sigfillset(&all);
            sigprocmask(SIG_SETMASK, &all, 0);
        } else if (strncmp(line, "main", 4) == 0)
            call();
        else if (strncmp(line, "vfork", 5) == 0)
            in_child();
        else if (strncmp(line, "install", 7) == 0)
            install(SIGUSR2);
        if (strncmp(line, "install", 7) == 0 || strncmp(line, "mask", 4) == 0)
            puts(mask_of(signal ? signal : SIGUSR2));
        else
            printf("done %d\n", calls);
    }
    return EXIT_CODE;
}
