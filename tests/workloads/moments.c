/* Has children that live for a moment, and loads a library for one; the library's path is its argument.
 *
 * Says "ready". On "fork" 200 children call m_forked ten times each; on "run" 100 children run this program anew, which calls m_run
 * ten times; on "load" the library is loaded 200 times, and its plugin_work is called ten times each. The answer is "done".
 * On "go" it does nothing and answers "done". Exit code 7 at end of file. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EXIT_CODE = 7, CHILDREN = 200, PROGRAMS = 100, LOADS = 200 };

__attribute__((noinline, noclone, used)) long m_forked(long n)
{
    __asm__ volatile("" : "+r"(n));
    return n + 1;
}

__attribute__((noinline, noclone, used)) long m_run(long n)
{
    __asm__ volatile("" : "+r"(n));
    return n + 2;
}

static int ten_times(long (*function)(long), long more)
{
    int wrong = 0;
    for (long n = 0; n < 10; n++)
        wrong |= function(n) != n + more;
    return wrong;
}

static void end_of(pid_t child)
{
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0) {
        fprintf(stderr, "a child failed\n");
        exit(1);
    }
}

static void forks(void)
{
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = fork();
        if (child == 0)
            _exit(ten_times(m_forked, 1));
        end_of(child);
    }
}

static void runs(char *program)
{
    char *arguments[] = {program, "", "child", 0};
    for (int i = 0; i < PROGRAMS; i++) {
        pid_t child = i % 2 ? fork() : vfork();
        if (child == 0) {
            execv(program, arguments);
            _exit(1);
        }
        end_of(child);
    }
}

static void loads(char *library)
{
    for (int i = 0; i < LOADS; i++) {
        void *handle = dlopen(library, RTLD_NOW);
        long (*work)(long) = handle ? (long (*)(long))dlsym(handle, "plugin_work") : 0;
        if (!work) {
            fprintf(stderr, "%s\n", dlerror());
            exit(1);
        }
        for (long n = 0; n < 10; n++)
            work(n);
        dlclose(handle);
    }
}

int main(int argc, char **argv)
{
    char line[16];
    if (argc > 2)
        return ten_times(m_run, 2);
    setvbuf(stdout, 0, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        if (strcmp(line, "fork\n") == 0)
            forks();
        else if (strcmp(line, "run\n") == 0)
            runs(argv[0]);
        else if (strcmp(line, "load\n") == 0)
            loads(argv[1]);
        puts("done");
    }
    return EXIT_CODE;
}
