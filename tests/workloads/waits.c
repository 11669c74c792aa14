/* A tool of two processes, of which one waits for its kernel: "waits COMMAND" says "ready PID" and waits for SIGUSR1. Then its child asks
 * for "look-up", "next-key" or "delete" of an element, and when that is seen to be on its way a file of this machine is opened
 * ("others go on"). In the end "done STATUS" is the child's. */
#define _GNU_SOURCE
#include "raw.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

static int asked(const char *command, int map)
{
    uint64_t key = 1, other = 2, value;
    if (!strcmp(command, "look-up"))
        return lookup(map, &key, &value);
    if (!strcmp(command, "next-key"))
        return element(BPF_MAP_GET_NEXT_KEY, map, &other, &value, 0);
    return element(BPF_MAP_DELETE_ELEM, map, &key, 0, 0);
}

static int makes_call(int child, const char *number)
{
    char path[64], line[64] = "";
    snprintf(path, sizeof path, "/proc/%d/syscall", child);
    int file = good("the child's call", open(path, O_RDONLY));
    if (read(file, line, sizeof line - 1) < 0)
        die("reading it", -errno);
    close(file);
    return !strncmp(line, number, strlen(number));
}

int main(int argc, char **argv)
{
    sigset_t go;
    int signal, status;
    uint64_t key = 1, value = 3;
    if (argc != 2)
        return 2;
    setvbuf(stdout, 0, _IOLBF, 0);
    sigemptyset(&go);
    sigaddset(&go, SIGUSR1);
    sigprocmask(SIG_BLOCK, &go, 0);
    int map = good("hash", create_map(BPF_MAP_TYPE_HASH, 8, 8, 4, 0, 0));
    good("update", update(map, &key, &value, BPF_ANY));
    printf("ready %d\n", getpid());
    sigwait(&go, &signal);
    int child = fork();
    if (child == 0)
        _exit(asked(argv[1], map) != 0);
    while (!makes_call(child, "321 "))
        ;
    good("a file", open("/etc/passwd", O_RDONLY));
    puts("others go on");
    if (waitpid(child, &status, 0) != child)
        die("waitpid", -errno);
    printf("done %d\n", status);
    return 0;
}
