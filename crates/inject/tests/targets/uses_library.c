// Fails unless SIGTRAP is as its arguments say it was when the program was started.
#include <signal.h>
#include <string.h>
#include <unistd.h>
int answer(void);
int main(int argc, char **argv) {
    sigset_t mask;
    struct sigaction action;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    sigaction(SIGTRAP, NULL, &action);
    int blocked = argc > 1 && !strcmp(argv[1], "blocked"), ignored = argc > 1 && !strcmp(argv[1], "ignored");
    if (sigismember(&mask, SIGTRAP) != blocked) return 2;
    if ((action.sa_handler == SIG_IGN) != ignored) return 3;
    if (write(1, "main\n", 5) != 5) return 4;
    return answer();
}
