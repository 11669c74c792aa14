/* Counts the signals that it gets. For each line on its input: "done SUM CODE COUNT...", with the sender's code of the
 * last SIGUSR1 and how many there had been after each of ten calls of wl_signalled. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>

static volatile int count, code;

static void on_signal(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    count++;
    code = info->si_code;
}

__attribute__((noinline, noclone, used)) long wl_signalled(long n)
{
    __asm__ volatile("" : "+r"(n) : : "memory");
    return n * n;
}

int main(void)
{
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_RESTART};
    sigaction(SIGUSR1, &action, 0);
    puts("ready");
    fflush(stdout);
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        long sum = 0;
        int counts[10];
        count = code = 0;
        for (int i = 0; i < 10; i++) {
            sum += wl_signalled(i);
            counts[i] = count;
        }
        printf("done %ld %#x", sum, code);
        for (int i = 0; i < 10; i++)
            printf(" %d", counts[i]);
        puts("");
        fflush(stdout);
    }
    return 7;
}
