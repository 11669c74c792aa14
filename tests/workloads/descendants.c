/* Begun by a tool: has children of all kinds, most of which live a moment only, and a library that it loads for a moment. Each calls a
 * function ten times. Daemons call theirs when nobody of whom they descend is left but the program itself. */
#include <dlfcn.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

__attribute__((noinline, noclone)) long descendant_forked(long n)
{
    __asm__ volatile("" : "+r"(n));
    return n + 1;
}

__attribute__((noinline, noclone)) long descendant_run(long n)
{
    __asm__ volatile("" : "+r"(n));
    return n + 2;
}

__attribute__((noinline, noclone)) long descendant_daemon(long n)
{
    __asm__ volatile("" : "+r"(n));
    return n + 3;
}

static void ten_times(long (*function)(long))
{
    for (long n = 0; n < 10; n++)
        function(n);
}

static void end_of(pid_t child)
{
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        fprintf(stderr, "a child failed\n");
        exit(1);
    }
}

static void forked(void)
{
    pid_t child = fork();
    if (child == 0) {
        ten_times(descendant_forked);
        _exit(0);
    }
    end_of(child);
}

static void run(char *program, int how)
{
    char *arguments[] = {program, "child", 0};
    pid_t child = how == 0 ? fork() : how == 1 ? vfork() : 0;
    if (how == 2 && posix_spawn(&child, program, 0, 0, arguments, environ) != 0)
        child = -1;
    if (child == 0) {
        execve(program, arguments, environ);
        _exit(1);
    }
    end_of(child);
}

static void daemons(int count)
{
    int pipes[2];
    if (pipe(pipes) != 0)
        exit(1);
    for (int i = 0; i < count; i++) {
        pid_t child = fork();
        if (child == 0) {
            setsid();
            pid_t parent = getpid();
            if (fork() != 0)
                _exit(0);
            while (getppid() == parent)
                usleep(100);
            ten_times(descendant_daemon);
            _exit(0);
        }
        end_of(child);
    }
    /* The last of them closes it. */
    char byte;
    close(pipes[1]);
    if (read(pipes[0], &byte, 1) != 0)
        exit(1);
}

static void loaded(char *library)
{
    void *handle = dlopen(library, RTLD_NOW);
    long (*work)(long) = handle ? (long (*)(long))dlsym(handle, "plugin_work") : 0;
    if (!work) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    ten_times(work);
    dlclose(handle);
}

int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "child") == 0) {
        ten_times(descendant_run);
        return 0;
    }
    for (int i = 0; i < 20; i++) {
        forked();
        for (int how = 0; how < 3; how++)
            run(argv[0], how);
        loaded(argv[1]);
    }
    daemons(10);
    printf("done\n");
    return 0;
}
