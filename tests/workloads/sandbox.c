/* Runs a command under a seccomp filter like that of a container: `sandbox COMMAND...`. The system calls that Docker's
   default profile withholds from a container without capabilities fail as they do there. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define FAIL(number, error) \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (error))

int main(int argc, char **argv)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        FAIL(SYS_bpf, EPERM), FAIL(SYS_perf_event_open, EPERM), FAIL(SYS_pidfd_getfd, EPERM),
        FAIL(SYS_process_madvise, EPERM), FAIL(SYS_kcmp, EPERM), FAIL(SYS_fanotify_init, EPERM),
        FAIL(SYS_setns, EPERM), FAIL(SYS_unshare, EPERM), FAIL(SYS_mount, EPERM), FAIL(SYS_umount2, EPERM),
        FAIL(SYS_userfaultfd, EPERM), FAIL(SYS_keyctl, EPERM), FAIL(SYS_add_key, EPERM), FAIL(SYS_request_key, EPERM),
        FAIL(SYS_syslog, EPERM), FAIL(SYS_quotactl, EPERM), FAIL(SYS_io_uring_setup, EPERM), FAIL(SYS_clone3, ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof filter[0], filter};
    if (argc < 2) {
        fputs("usage: sandbox COMMAND...\n", stderr);
        return 2;
    }
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) {
        perror("sandbox: the filter was not installed");
        return 125;
    }
    execvp(argv[1], argv + 1);
    perror(argv[1]);
    return 127;
}
