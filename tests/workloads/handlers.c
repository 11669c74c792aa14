/* A process with a handler for SIGSEGV, whose memory comes and goes while it is looked at.
 *
 * "install" installs the handler, on a stack of its own, and answers "installed over default" or "installed over own". "look N" calls wl_look N
 * times with a page that is there, and N times just when it is not any more; the answer is "strays" and how many faults came to the
 * handler that this program did not make. "fault" makes one: "handled on its stack". Exit code 7 at end of file. */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, STACK = 65536 };

static char stack[STACK];
static sigjmp_buf back;
static volatile sig_atomic_t is_expected, strays, was_on_stack;

__attribute__((noinline, noclone, used)) long wl_look(const char *text)
{
    __asm__ volatile("" : "+r"(text) : : "memory");
    return (long)text >> 12;
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
    char here;
    (void)signal, (void)info, (void)context;
    was_on_stack = &here >= stack && &here < stack + STACK;
    if (is_expected)
        siglongjmp(back, 1);
    /* Somebody's read, which would fault for ever. */
    if (++strays > 0) {
        printf("strays %d\n", (int)strays);
        fflush(stdout);
        _Exit(1);
    }
}

static void install(void)
{
    stack_t own = {.ss_sp = stack, .ss_size = STACK};
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK}, before;
    sigaltstack(&own, 0);
    sigaction(SIGSEGV, &action, &before);
    puts(before.sa_handler == SIG_DFL           ? "installed over default"
         : before.sa_sigaction == on_fault ? "installed over own"
                                               : "installed over a stranger");
}

static void look(long times)
{
    for (; times > 0; times--) {
        char *page = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (page == MAP_FAILED)
            exit(1);
        strcpy(page, "there");
        wl_look(page);
        munmap(page, PAGE);
        wl_look(page);
    }
    printf("strays %d\n", (int)strays);
}

static void fault(void)
{
    is_expected = 1;
    if (sigsetjmp(back, 1) == 0)
        *(volatile char *)16 = 1;
    is_expected = 0;
    puts(was_on_stack ? "handled on its stack" : "handled elsewhere");
}

int main(void)
{
    char line[64];
    long times;
    setvbuf(stdout, 0, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        if (strcmp(line, "install\n") == 0)
            install();
        else if (strcmp(line, "fault\n") == 0)
            fault();
        else if (sscanf(line, "look %ld", &times) == 1)
            look(times);
        else
            puts("what is that");
    }
    return 7;
}
