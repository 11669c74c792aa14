/* A tool whose programs follow null pointers of the current task, and its target: a thread that blocks all signals, and one
 * that does not.
 *
 *   nulls OFFSET FIELD    the file offset of `probed`; where a task has a pointer to a task, which is null under Beeline
 */
#define _GNU_SOURCE
#include "raw.h"
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

enum { CALLS = 100 };

__attribute__((noinline, noclone, used)) long probed(long n)
{
    __asm__ volatile("" : "+r"(n) : : "memory");
    return n * n;
}

static void *work(void *blocks)
{
    sigset_t mask;
    sigfillset(&mask);
    if (blocks)
        pthread_sigmask(SIG_BLOCK, &mask, 0);
    for (long i = 0; i < CALLS; i++)
        probed(i);
    pthread_sigmask(SIG_BLOCK, 0, &mask);
    printf("blocks SIGSEGV: %d\n", sigismember(&mask, SIGSEGV));
    return 0;
}

static int target(void)
{
    pthread_t thread;
    puts("ready"), fflush(stdout);
    getchar();
    work(0);
    pthread_create(&thread, 0, work, "yes");
    pthread_join(thread, 0);
    return 7;
}

static int load(uint32_t type, int field, int calls, int others)
{
    const struct bpf_insn body[] = {
        CALL(BPF_FUNC_get_current_task_btf), LDX(BPF_DW, 6, 0, (int16_t)field), LDX(BPF_W, 7, 6, 8), COUNT(calls),
        JEQ(7, 0, 4), COUNT(others), MOV(0, 0), EXIT,
    };
    return loaded(load_program(type, 0, body, LENGTH(body)));
}

int main(int count, char **arguments)
{
    if (count < 3)
        return target();
    int field = atoi(arguments[2]);
    int calls = create_counter(), others = create_counter(), in[2], out[2], status;
    union bpf_attr test;
    memset(&test, 0, sizeof test);
    test.test.prog_fd = (uint32_t)load(BPF_PROG_TYPE_RAW_TRACEPOINT, field, calls, others);
    printf("test run %d", bpf(BPF_PROG_TEST_RUN, &test));
    printf(": %ld, %ld not null\n", take_count(calls), take_count(others)), fflush(stdout);
    if (pipe(in) || pipe(out))
        die("pipe", -errno);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(in[0], 0), dup2(out[1], 1);
        execl("/proc/self/exe", arguments[0], (char *)0);
        _exit(127);
    }
    close(out[1]);
    FILE *answers = fdopen(out[0], "r");
    char line[64];
    if (!fgets(line, sizeof line, answers))
        die("the target", -EPIPE);
    int link = good("attach", attach_uprobe(load(BPF_PROG_TYPE_KPROBE, field, calls, others), arguments[0],
                                            strtoul(arguments[1], 0, 0), pid));
    if (write(in[1], "\n", 1) != 1)
        die("the target", -EPIPE);
    while (fgets(line, sizeof line, answers))
        fputs(line, stdout);
    waitpid(pid, &status, 0);
    printf("status %d: %ld, %ld not null\n", status, take_count(calls), take_count(others));
    close(link);
    return 0;
}
