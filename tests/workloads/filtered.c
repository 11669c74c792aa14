/* Runs a command under a seccomp filter: filtered ANSWER CALL... -- COMMAND ARGUMENT...
 *
 * ANSWER is "kill", or the number of an error. */
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MOST = 16 };

static const struct { const char *name; unsigned number; } calls[] = {
    {"bpf", SYS_bpf}, {"getpgrp", SYS_getpgrp}, {"memfd_create", SYS_memfd_create}, {"perf_event_open", SYS_perf_event_open},
    {"pidfd_getfd", SYS_pidfd_getfd}, {"process_vm_readv", SYS_process_vm_readv}, {"prctl", SYS_prctl}, {"ptrace", SYS_ptrace},
    {"seccomp", SYS_seccomp},
};

static unsigned number_of(const char *name)
{
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++)
        if (!strcmp(calls[i].name, name))
            return calls[i].number;
    fprintf(stderr, "filtered: no call %s is known\n", name);
    exit(1);
}

int main(int argc, char **argv)
{
    struct sock_filter filter[2 * MOST + 2] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    unsigned short count = 1;
    int i = 2;
    if (argc < 2)
        return 1;
    unsigned answer = strcmp(argv[1], "kill") ? SECCOMP_RET_ERRNO | (unsigned)atoi(argv[1]) : SECCOMP_RET_KILL_PROCESS;
    for (; i < argc && strcmp(argv[i], "--") && i - 2 < MOST; i++) {
        filter[count++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number_of(argv[i]), 0, 1);
        filter[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, answer);
    }
    filter[count++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {count, filter};
    if (++i >= argc || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
        return 1;
    execvp(argv[i], argv + i);
    perror(argv[i]);
    return 1;
}
