/* Children that outlive the tracing of their parent.
 *
 * Says "ready". On "fork" it starts 4 children and answers "children PID ..."; they call f_work until "end", and have
 * returned from it at least once when the answer comes. On "end" it answers "ended CODE ...", their exit codes:
 * 33 to 36 if every call gave the right result. On "go" it calls f_work 100 times and answers "done SUM".
 * Exit code 7 at end of file. */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EXIT_CODE = 7, CHILDREN = 4, WRONG = 99 };

__attribute__((noinline, noclone, used)) long f_work(long n)
{
    __asm__ volatile("" : "+r"(n));
    return n * 2 + 1;
}

/* Works until the other end of `stop` is closed. */
static int child(int index, int started, int stop)
{
    char byte = 0;
    long wrong = f_work(index) != index * 2 + 1;
    if (write(started, &byte, 1) != 1)
        return WRONG;
    struct pollfd end = {.fd = stop};
    for (long n = 0; poll(&end, 1, 0) == 0; n++)
        for (long i = 0; i < 1000; i++)
            wrong += f_work(n + i) != (n + i) * 2 + 1;
    return wrong ? WRONG : 33 + index;
}

static pid_t children[CHILDREN];
static int keep_running = -1;

static void start(void)
{
    int started[2], stop[2];
    char byte;
    if (pipe(started) || pipe(stop))
        return;
    for (int i = 0; i < CHILDREN; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            close(stop[1]);
            _exit(child(i, started[1], stop[0]));
        }
    }
    close(started[1]);
    close(stop[0]);
    keep_running = stop[1];
    fputs("children", stdout);
    for (int i = 0; i < CHILDREN; i++)
        printf(read(started[0], &byte, 1) == 1 ? " %d" : " %d?", children[i]);
    close(started[0]);
    putchar('\n');
}

static void end(void)
{
    close(keep_running);
    fputs("ended", stdout);
    for (int i = 0; i < CHILDREN; i++) {
        int status = 0;
        waitpid(children[i], &status, 0);
        printf(" %d", WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status));
    }
    putchar('\n');
}

int main(void)
{
    char line[16];
    setvbuf(stdout, 0, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        if (strcmp(line, "fork\n") == 0) {
            start();
        } else if (strcmp(line, "end\n") == 0) {
            end();
        } else {
            long sum = 0;
            for (long i = 0; i < 100; i++)
                sum += f_work(i);
            printf("done %ld\n", sum);
        }
    }
    return EXIT_CODE;
}
