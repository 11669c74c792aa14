/* Programs that run others in every way. The others stand in the working directory. */
#include "scenes.h"
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>

extern char **environ;
static char *self;

static int ended(pid_t pid, int code)
{
    int status;
    return waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == code;
}

/* Forks, and has the child run a program that is to end with the code that it is told. */
static int runs(const char *path, const char *code)
{
    pid_t pid = fork();
    if (pid == 0) {
        execl(path, path, code, (char *)0);
        _exit(98);
    }
    return ended(pid, atoi(code));
}

static int fork_exec(void)
{
    CHECK(runs("./leaf", "3"));
    CHECK(runs("./leaf", "4"));
    return 0;
}

static int fork_exec_static(void)
{
    CHECK(runs("./leaf-static", "5"));
    return 0;
}

static int fork_exec_musl(void)
{
    CHECK(runs("./leaf-musl", "6"));
    return 0;
}

static int fork_exec_go(void)
{
    CHECK(runs("./leaf-go", "7"));
    return 0;
}

static int script(void)
{
    CHECK(runs("./script", "8"));
    return 0;
}

static int vfork_exec(void)
{
    pid_t pid = vfork();
    if (pid == 0) {
        syscall(SYS_getppid);
        execl("./leaf", "leaf", "9", (char *)0);
        _exit(98);
    }
    CHECK(ended(pid, 9));
    return 0;
}

/* Several directories on the way, and at last none that has it. */
static int failing(void)
{
    char *arguments[] = {"leaf", "10", 0}, *none[] = {0};
    pid_t pid = fork();
    if (pid == 0) {
        setenv("PATH", "/nowhere:/bin:.", 1);
        execvp("no-such-program", arguments);
        execve("/etc/hostname", arguments, none);
        syscall(SYS_getppid);
        execvp("leaf", arguments);
        _exit(98);
    }
    CHECK(ended(pid, 10));
    pid = vfork();
    if (pid == 0) {
        execv("./no-such-program", arguments);
        execv("./leaf", arguments);
        _exit(98);
    }
    CHECK(ended(pid, 10));
    /* In the process itself, which goes on. */
    for (int i = 0; i < 20; i++)
        CHECK(execv("./no-such-program", arguments) == -1 && errno == ENOENT);
    syscall(SYS_getppid);
    CHECK(runs("./leaf", "3"));
    return 0;
}

/* Programs that the kernel gives up when the old ones are no more, which kills who runs them. */
static int given_up(void)
{
    for (int i = 0; i < 6; i++) {
        int status;
        pid_t pid = i % 2 ? vfork() : fork();
        if (pid == 0) {
            execl("./nowhere", "nowhere", (char *)0);
            _exit(98);
        }
        CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    }
    return 0;
}

static int by_descriptor(void)
{
    char *arguments[] = {"leaf", "11", 0};
    int fd = open("./leaf", O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0);
    pid_t pid = fork();
    if (pid == 0) {
        fexecve(fd, arguments, environ);
        _exit(98);
    }
    CHECK(ended(pid, 11) && close(fd) == 0);
    return 0;
}

static int set_user(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        if (syscall(SYS_setresgid, 65534, 65534, 65534) || syscall(SYS_setresuid, 65534, 65534, 65534))
            _exit(97);
        execl("./leaf-suid", "leaf", "12", "root", (char *)0);
        _exit(98);
    }
    CHECK(ended(pid, 12));
    return 0;
}

/* The process itself runs its own program anew; that answers. */
static int become(void)
{
    execl(self, self, "became", (char *)0);
    return __LINE__;
}

static void *becomes(void *argument)
{
    execl(self, self, "became in thread", (char *)0);
    return argument;
}

static int become_in_thread(void)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, 0, becomes, 0) == 0);
    pthread_join(thread, 0);
    return __LINE__;
}

/* A child of one thread, which runs another program while others sleep. */
static void *runs_leaf(void *argument)
{
    return (void *)(intptr_t)!runs("./leaf", "13") ?: argument;
}

static int exec_of_thread(void)
{
    pthread_t threads[3];
    void *result;
    for (int i = 0; i < 3; i++)
        CHECK(pthread_create(&threads[i], 0, runs_leaf, 0) == 0);
    for (int i = 0; i < 3; i++)
        CHECK(pthread_join(threads[i], &result) == 0 && result == 0);
    return 0;
}

int main(int count, char **arguments)
{
    static const struct scene scenes[] = {
        {"fork exec", fork_exec},
        {"static", fork_exec_static},
        {"musl", fork_exec_musl},
        {"go", fork_exec_go},
        {"script", script},
        {"vfork exec", vfork_exec},
        {"failing", failing},
        {"given up", given_up},
        {"by descriptor", by_descriptor},
        {"set user", set_user},
        {"became", become},
        {"became in thread", become_in_thread},
        {"exec of thread", exec_of_thread},
        {0, 0},
    };
    self = arguments[0];
    if (count > 1) {
        char answer[100];
        snprintf(answer, sizeof answer, "done %s\n", arguments[1]);
        say(answer);
    } else {
        say("ready\n");
    }
    return serve(scenes);
}
