/* Processes and threads that begin in every way. */
#include "scenes.h"
#include <linux/sched.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>

extern char **environ;

/* What each child does, so that it can be told from the others: so many calls. */
static void work(int times)
{
    for (int i = 0; i < times; i++)
        syscall(SYS_getppid);
}

static int ended(pid_t pid, int code)
{
    int status;
    while (waitpid(pid, &status, 0) != pid)
        if (errno != EINTR)
            return 0;
    return WIFEXITED(status) && WEXITSTATUS(status) == code;
}

static int fork_once(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        work(3);
        _exit(3);
    }
    CHECK(pid > 0 && ended(pid, 3));
    return 0;
}

/* Children have children, and all work on when theirs has ended. */
static int fork_deep(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        pid_t child = fork();
        if (child == 0) {
            pid_t grandchild = fork();
            if (grandchild == 0) {
                work(7);
                _exit(4);
            }
            work(1);
            _exit(ended(grandchild, 4) ? 5 : 1);
        }
        work(2);
        _exit(ended(child, 5) ? 6 : 1);
    }
    CHECK(pid > 0 && ended(pid, 6));
    return 0;
}

static int fork_quick(void)
{
    enum { ALL = 200 };
    static pid_t pids[ALL];
    for (int i = 0; i < ALL; i++) {
        pids[i] = fork();
        if (pids[i] == 0) {
            work(2);
            _exit(i % 100);
        }
        CHECK(pids[i] > 0);
    }
    for (int i = 0; i < ALL; i++)
        CHECK(ended(pids[i], i % 100));
    return 0;
}

static int fork_raw(void)
{
    long pid = syscall(SYS_fork);
    if (pid == 0) {
        work(4);
        syscall(SYS_exit_group, 8);
    }
    CHECK(pid > 0 && ended(pid, 8));
    pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
        work(5);
        syscall(SYS_exit_group, 9);
    }
    CHECK(pid > 0 && ended(pid, 9));
    return 0;
}

static int fork_clone3(void)
{
    struct clone_args args = {.exit_signal = SIGCHLD};
    long pid = syscall(SYS_clone3, &args, sizeof args);
    if (pid == 0) {
        work(6);
        _exit(10);
    }
    CHECK(pid > 0 && ended(pid, 10));
    return 0;
}

static int vfork_once(void)
{
    pid_t pid = vfork();
    if (pid == 0) {
        work(3);
        _exit(11);
    }
    CHECK(pid > 0 && ended(pid, 11));
    work(2);
    return 0;
}

static int count;

static int shares_memory(void *argument)
{
    __atomic_add_fetch(&count, 1, __ATOMIC_SEQ_CST);
    work((int)(intptr_t)argument);
    return 12;
}

/* A child with the parent's memory and a stack of its own; waited for as vfork does, or running beside it. */
static int clone_sharing(void)
{
    enum { STACK = 65536 };
    char *stack = mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED);
    count = 0;
    pid_t pid = clone(shares_memory, stack + STACK, CLONE_VM | CLONE_VFORK | SIGCHLD, (void *)(intptr_t)3);
    CHECK(pid > 0 && ended(pid, 12));
    pid = clone(shares_memory, stack + STACK, CLONE_VM | SIGCHLD, (void *)(intptr_t)9);
    work(8);
    CHECK(pid > 0 && ended(pid, 12));
    CHECK(count == 2);
    work(1);
    CHECK(munmap(stack, STACK) == 0);
    return 0;
}

/* A thread without any C library around it. */
static int clone_thread(void)
{
    enum { STACK = 65536, FLAGS = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM };
    char *stack = mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(stack != MAP_FAILED);
    static volatile int done;
    done = 0;
    long tid;
    __asm__ volatile("mov %[nr], %%eax\n\t"
                     "xor %%r10d, %%r10d\n\t"
                     "xor %%r8d, %%r8d\n\t"
                     "syscall\n\t"
                     "test %%eax, %%eax\n\t"
                     "jnz 2f\n\t"
                     "mov $5, %%ebx\n"
                     "1:\tmov $110, %%eax\n\t"
                     "syscall\n\t"
                     "sub $1, %%ebx\n\t"
                     "jnz 1b\n\t"
                     "movl $1, %[done]\n\t"
                     "xor %%edi, %%edi\n\t"
                     "mov $60, %%eax\n\t"
                     "syscall\n"
                     "2:"
                     : "=a"(tid), [done] "+m"(done)
                     : [nr] "i"(SYS_clone), "D"((long)FLAGS), "S"(stack + STACK - 64), "d"(0L)
                     : "rbx", "rcx", "r8", "r10", "r11", "memory");
    CHECK(tid > 0);
    /* No calls here: how many were needed would be chance. */
    while (!done)
        __builtin_ia32_pause();
    return 0;
}

static void *thread(void *argument)
{
    work((int)(intptr_t)argument);
    return argument;
}

static int threads(void)
{
    pthread_t all[4];
    for (int i = 0; i < 4; i++)
        CHECK(pthread_create(&all[i], 0, thread, (void *)(intptr_t)(20 + i)) == 0);
    for (int i = 0; i < 4; i++) {
        void *result;
        CHECK(pthread_join(all[i], &result) == 0 && result == (void *)(intptr_t)(20 + i));
    }
    return 0;
}

static void *forks(void *argument)
{
    return (void *)(intptr_t)fork_once() ?: argument;
}

static int fork_in_thread(void)
{
    pthread_t one;
    void *result;
    CHECK(pthread_create(&one, 0, forks, 0) == 0);
    CHECK(pthread_join(one, &result) == 0 && result == 0);
    return 0;
}

static volatile int forked_well;

static void handler(int signal)
{
    (void)signal;
    forked_well = fork_once() == 0;
}

/* By the signal of a call, so that it comes at a place that is always the same; and while another call waits. */
static int fork_in_handler(void)
{
    struct sigaction action = {.sa_handler = handler};
    CHECK(sigaction(SIGUSR1, &action, 0) == 0);
    forked_well = 0;
    CHECK(raise(SIGUSR1) == 0 && forked_well);
    forked_well = 0;
    int ends[2];
    char byte;
    CHECK(pipe(ends) == 0);
    pid_t parent = getpid(), pid = fork();
    if (pid == 0) {
        read(ends[0], &byte, 1);
        /* The parent sleeps in waitpid, or is about to. */
        kill(parent, SIGUSR1);
        _exit(13);
    }
    CHECK(write(ends[1], "x", 1) == 1);
    while (!forked_well)
        sched_yield();
    CHECK(ended(pid, 13));
    CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
    return 0;
}

/* A daemon: its parent has ended when it works. */
static int daemons(void)
{
    int ends[2];
    char byte = 0;
    CHECK(pipe(ends) == 0);
    pid_t pid = fork();
    if (pid == 0) {
        close(ends[0]);
        if (setsid() < 0 || fork() != 0)
            _exit(14);
        /* Wait for the parent's end without calls of which nobody knows the number. */
        work(5);
        write(ends[1], "d", 1);
        _exit(0);
    }
    close(ends[1]);
    CHECK(pid > 0 && ended(pid, 14));
    CHECK(read(ends[0], &byte, 1) == 1 && byte == 'd');
    CHECK(read(ends[0], &byte, 1) == 0);
    CHECK(close(ends[0]) == 0);
    return 0;
}

static int spawn(void)
{
    pid_t pid;
    char *arguments[] = {"true", 0};
    CHECK(posix_spawn(&pid, "/bin/true", 0, 0, arguments, environ) == 0 && ended(pid, 0));
    CHECK(posix_spawnp(&pid, "true", 0, 0, arguments, environ) == 0 && ended(pid, 0));
    CHECK(posix_spawn(&pid, "/nowhere/true", 0, 0, arguments, environ) == ENOENT);
    return 0;
}

static int shell(void)
{
    int status = system("exit 15");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 15);
    status = system("/bin/true; /bin/false");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    char text[20];
    FILE *stream = popen("/bin/echo hello", "r");
    CHECK(stream && fgets(text, sizeof text, stream) && strcmp(text, "hello\n") == 0);
    CHECK(pclose(stream) == 0);
    return 0;
}

int main(void)
{
    static const struct scene scenes[] = {
        {"fork", fork_once},
        {"fork deep", fork_deep},
        {"fork quick", fork_quick},
        {"fork raw", fork_raw},
        {"clone3", fork_clone3},
        {"vfork", vfork_once},
        {"clone sharing", clone_sharing},
        {"clone thread", clone_thread},
        {"threads", threads},
        {"fork in thread", fork_in_thread},
        {"fork in handler", fork_in_handler},
        {"daemon", daemons},
        {"spawn", spawn},
        {"shell", shell},
        {0, 0},
    };
    say("ready\n");
    return serve(scenes);
}
