/* Does what keeps Beeline waiting for it.
 *
 * Says "ready"; then for each line
 *   go        answers "done"
 *   posted    says twice to Beeline, by its own memory, that it is about to run another program, and does not; answers "posted"
 *   blocked   answers "blocked PID" and runs another program, which takes until PID has ended: it is its own, says "ready" once more
 *   storm MS  for so long has children that make a call and run another program; answers "storm FORK EXEC": the most milliseconds that a
 *             child took to its first call, and from there to the other program
 *   forks N   has N children that call getpgid() once; answers "done"
 * Exit code 7 at end of file. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { EXIT_CODE = 7 };

/* As in Beeline's agent: what a thread asks of it, and waits for. */
struct request {
    uint32_t state, kind, pid, owner, tid;
} __attribute__((aligned(64)));
enum { FREE, TAKEN, POSTED, ANSWERED };
enum { UPCALL_EXEC = 1, UPCALL_NO_EXEC };

static void nap(void)
{
    const struct timespec moment = {.tv_nsec = 1000000};
    nanosleep(&moment, 0);
}

static void die(const char *what)
{
    perror(what);
    exit(1);
}

/* The request by which this thread has asked before. */
static volatile struct request *own_request(void)
{
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        if (!strstr(line, "-session") || sscanf(line, "%lx-%lx", &start, &end) != 2)
            continue;
        for (; start < end; start += sizeof(struct request)) {
            volatile struct request *request = (void *)start;
            if (request->kind == UPCALL_NO_EXEC && request->pid == (uint32_t)getpid()) {
                fclose(maps);
                return request;
            }
        }
    }
    fputs("nothing was ever asked\n", stderr);
    exit(1);
}

static void post(void)
{
    char *const none[] = {0};
    execve("/nonexistent", none, none);
    volatile struct request *request = own_request();
    for (int i = 0; i < 2; i++) {
        request->kind = UPCALL_EXEC;
        __atomic_store_n(&request->state, POSTED, __ATOMIC_SEQ_CST);
        while (__atomic_load_n(&request->state, __ATOMIC_SEQ_CST) != ANSWERED)
            nap();
    }
    request->state = FREE;
    puts("posted");
}

static int to_helper[2], from_helper[2];

static void *sleep_on(void *tid)
{
    *(volatile pid_t *)tid = gettid();
    for (;;)
        pause();
}

/* Another thread is traced by somebody who does not look at its end, and that is what `execve` waits for. */
static pid_t begin_helper(pid_t tid)
{
    char byte;
    if (pipe(to_helper) || pipe(from_helper))
        die("pipe");
    pid_t helper = fork();
    if (helper < 0)
        die("fork");
    if (helper)
        return helper;
    /* Whichever is first: its parent may have ended already. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(to_helper[1]);
    if (read(to_helper[0], &byte, 1) != 1 || ptrace(PTRACE_SEIZE, tid, 0, 0) || write(from_helper[1], "", 1) != 1)
        _exit(1);
    for (;;)
        pause();
}

static void block(pid_t helper, char **argv)
{
    char byte, *const again[] = {argv[0], 0}, *const none[] = {0};
    if (write(to_helper[1], "", 1) != 1 || read(from_helper[0], &byte, 1) != 1)
        die("the helper");
    printf("blocked %d\n", helper);
    execve("/proc/self/exe", again, none);
    die("execve");
}

static long now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1000000;
}

/* What a child tells of itself, in milliseconds. */
struct times {
    long fork, exec;
};

/* The other program: tells how long it took to here. */
static int arrive(char **argv)
{
    struct times times = {.fork = atol(argv[2]), .exec = now() - atol(argv[3])};
    return write(atoi(argv[1]), &times, sizeof times) != sizeof times;
}

static void depart(int tell)
{
    char words[3][24], *const argv[] = {"held", words[0], words[1], words[2], 0}, *const none[] = {0};
    long begun = now();
    syscall(SYS_getppid);
    long called = now();
    snprintf(words[0], sizeof words[0], "%d", tell);
    snprintf(words[1], sizeof words[1], "%ld", called - begun);
    snprintf(words[2], sizeof words[2], "%ld", called);
    execve("/proc/self/exe", argv, none);
    _exit(1);
}

static void storm(long duration)
{
    struct times most = {0}, times;
    int pipes[2], status;
    if (pipe(pipes))
        die("pipe");
    for (long begun = now(); now() - begun < duration;) {
        pid_t child = fork();
        if (child == 0)
            depart(pipes[1]);
        if (waitpid(child, &status, 0) != child || status || read(pipes[0], &times, sizeof times) != sizeof times)
            die("a child");
        most.fork = times.fork > most.fork ? times.fork : most.fork;
        most.exec = times.exec > most.exec ? times.exec : most.exec;
    }
    close(pipes[0]);
    close(pipes[1]);
    printf("storm %ld %ld\n", most.fork, most.exec);
}

static void have_children(long count)
{
    while (count-- > 0) {
        pid_t child = fork();
        if (child == 0) {
            syscall(SYS_getpgid, 0);
            _exit(0);
        }
        if (waitpid(child, 0, 0) != child)
            die("waitpid");
    }
    puts("done");
}

int main(int argc, char **argv)
{
    if (argc == 4)
        return arrive(argv);
    volatile pid_t tid = 0;
    pthread_t thread;
    char line[64];
    setvbuf(stdout, 0, _IOLBF, 0);
    if (pthread_create(&thread, 0, sleep_on, (void *)&tid))
        die("pthread_create");
    while (!tid)
        nap();
    pid_t helper = begin_helper(tid);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "posted\n"))
            post();
        else if (!strcmp(line, "blocked\n"))
            block(helper, argv);
        else if (!strncmp(line, "storm ", 6))
            storm(atol(line + 6));
        else if (!strncmp(line, "forks ", 6))
            have_children(atol(line + 6));
        else
            puts("done");
    }
    return EXIT_CODE;
}
