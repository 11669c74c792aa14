/* A tool that has uses of its own for SIGSYS, and blocks it: it says what it sees, which must be the same with and
   without a sandbox around Beeline. Its map operations are a real tool's: by bpf(2), in threads, in children of fork and
   vfork, in signal handlers and on a small alternate stack. */
#include <errno.h>
#include <linux/bpf.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static int map = -1;
static volatile sig_atomic_t trapped, sent;
extern char **environ;

static long bpf(int command, union bpf_attr *attr)
{
    return syscall(SYS_bpf, command, attr, sizeof *attr);
}

static int make_map(void)
{
    union bpf_attr attr = {.map_type = BPF_MAP_TYPE_HASH, .key_size = 4, .value_size = 8, .max_entries = 64};
    return bpf(BPF_MAP_CREATE, &attr);
}

/* Writes an element and reads it back. */
static int works(int key)
{
    long long value = key * 7, seen = 0;
    union bpf_attr attr = {.map_fd = map, .key = (long)&key, .value = (long)&value};
    if (bpf(BPF_MAP_UPDATE_ELEM, &attr))
        return 0;
    attr.value = (long)&seen;
    return bpf(BPF_MAP_LOOKUP_ELEM, &attr) == 0 && seen == key * 7;
}

static void on_sigsys(int signal, siginfo_t *info, void *context)
{
    (void)signal, (void)context;
    if (info->si_code == 1 && info->si_errno == 77)
        trapped++;
    else
        sent++;
}

static void on_usr1(int signal)
{
    (void)signal;
    printf("in a handler: %d\n", works(5));
}

static void *with_signals_blocked(void *unused)
{
    sigset_t all, got;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, NULL);
    pthread_sigmask(SIG_SETMASK, NULL, &got);
    printf("in a thread that blocks signals: %d, SIGUSR2 is blocked: %d\n", works(3), sigismember(&got, SIGUSR2));
    printf("a wrong mask: %ld", syscall(SYS_rt_sigprocmask, SIG_SETMASK, 8, NULL, 8));
    printf(" %d, a wrong way: ", errno);
    printf("%ld", syscall(SYS_rt_sigprocmask, 99, &all, NULL, 8));
    printf(" %d\n", errno);
    return unused;
}

/* getppid() raises SIGSYS from now on. */
static int trap_getppid(void)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP | 77),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}

static void children(void)
{
    int status = 0;
    fflush(stdout);
    if (fork() == 0)
        _exit(works(9) ? 0 : 1);
    wait(&status);
    printf("in a child: %d\n", status);
    char *missing[] = {"beeline-no-such-program", NULL}, *there[] = {"sh", "-c", "exit 3", NULL};
    pid_t pid;
    printf("a program that is not there: %d\n", posix_spawnp(&pid, missing[0], NULL, NULL, missing, environ));
    printf("a program that is there: %d", posix_spawnp(&pid, there[0], NULL, NULL, there, environ));
    waitpid(pid, &status, 0);
    printf(", %d\n", WEXITSTATUS(status));
    fflush(stdout);
    if (fork() == 0) {
        raise(SIGSYS);
        _exit(0);
    }
    wait(&status);
    printf("a SIGSYS of its own, by default: %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : -1);
    fflush(stdout);
    if (fork() == 0) {
        struct sigaction once = {.sa_sigaction = on_sigsys, .sa_flags = SA_SIGINFO | SA_RESETHAND};
        sigaction(SIGSYS, &once, NULL);
        raise(SIGSYS);
        printf("once: %d, works: %d\n", sent, works(6));
        fflush(stdout);
        raise(SIGSYS);
        _exit(0);
    }
    wait(&status);
    printf("twice: %d\n", WIFSIGNALED(status) ? WTERMSIG(status) : -1);
}

int main(void)
{
    struct sigaction action, before;
    map = make_map();
    printf("map: %d, works: %d\n", map >= 0, works(1));
    if (sigaction(SIGSYS, NULL, &before) == 0)
        printf("no handler at first: %d\n", before.sa_handler == SIG_DFL);
    children();
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_sigsys;
    action.sa_flags = SA_SIGINFO;
    printf("set: %d", sigaction(SIGSYS, &action, &before));
    printf(", as set: %d, works: %d\n", sigaction(SIGSYS, NULL, &before) == 0 && before.sa_sigaction == on_sigsys, works(2));
    raise(SIGSYS);
    printf("trap: %d", trap_getppid());
    for (int i = 0; i < 10; i++)
        syscall(SYS_getppid);
    printf(", trapped %d, sent %d, works: %d\n", trapped, sent, works(4));
    pthread_t thread;
    pthread_create(&thread, NULL, with_signals_blocked, NULL);
    pthread_join(thread, NULL);
    stack_t stack = {.ss_size = 16384};
    stack.ss_sp = malloc(stack.ss_size);
    sigaltstack(&stack, NULL);
    memset(&action, 0, sizeof action);
    action.sa_handler = on_usr1;
    action.sa_flags = SA_ONSTACK;
    sigfillset(&action.sa_mask);
    sigdelset(&action.sa_mask, SIGSYS);
    sigaction(SIGUSR1, &action, NULL);
    raise(SIGUSR1);
    union bpf_attr bad = {.map_fd = 9999};
    printf("a wrong map: %ld", bpf(BPF_MAP_LOOKUP_ELEM, &bad));
    printf(" %d, a wrong command: ", errno);
    printf("%ld", bpf(9999, &bad));
    printf(" %d\n", errno);
    int epoll = epoll_create1(0), pipes[2];
    struct epoll_event event = {.events = EPOLLIN};
    printf("pipe: %d", pipe(pipes));
    printf(", epoll: %d", epoll_ctl(epoll, EPOLL_CTL_ADD, pipes[0], &event));
    printf(", again: %d", epoll_ctl(epoll, EPOLL_CTL_ADD, pipes[0], &event));
    printf(" %d", errno);
    printf(", of nothing: %d", epoll_ctl(epoll, EPOLL_CTL_ADD, 9999, &event));
    printf(" %d\n", errno);
    return 0;
}
