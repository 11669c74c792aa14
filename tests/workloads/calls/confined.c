/* Puts itself under a seccomp filter. Calls that a filter forbids fail with EPERM. */
#include "scenes.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/prctl.h>

#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define ALLOW BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
#define FORBID BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 1)
#define IS(number, then, otherwise) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, then, otherwise)

static int install(const struct sock_filter *filter, unsigned short count)
{
    struct sock_fprog program = {count, (struct sock_filter *)filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    return 0;
}

/* All but one call. */
static int sparing(void)
{
    static const struct sock_filter filter[] = {LOAD(nr), IS(SYS_getpgrp, 0, 1), FORBID, ALLOW};
    return install(filter, sizeof filter / sizeof *filter);
}

/* A list of what the rest of this program needs. */
static int listed(void)
{
    static const struct sock_filter filter[] = {
        LOAD(nr), IS(SYS_read, 4, 0), IS(SYS_write, 3, 0), IS(SYS_getppid, 2, 0), IS(SYS_exit_group, 1, 0), FORBID, ALLOW,
    };
    return install(filter, sizeof filter / sizeof *filter);
}

/* The same list; all else ends the process. */
static int killing(void)
{
    static const struct sock_filter filter[] = {
        LOAD(nr), IS(SYS_read, 4, 0), IS(SYS_write, 3, 0), IS(SYS_getppid, 2, 0), IS(SYS_exit_group, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS), ALLOW,
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, (struct sock_filter *)filter};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
    return 0;
}

/* Only read, write and exit. */
static int strict(void)
{
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == 0);
    return 0;
}

/* getppid only from where libc has it. */
static int placed(void)
{
    uint64_t place = (uint64_t)(uintptr_t)getppid;
    const struct sock_filter filter[] = {
        LOAD(nr), IS(SYS_getppid, 0, 4), LOAD(instruction_pointer),
        BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xfffff000),
        IS((uint32_t)place & 0xfffff000, 1, 0), FORBID, ALLOW,
    };
    return install(filter, sizeof filter / sizeof *filter);
}

static int work(void)
{
    for (int i = 0; i < 20; i++)
        CHECK(getppid() > 1);
    return 0;
}

static int forbidden(void)
{
    for (int i = 0; i < 3; i++)
        CHECK(syscall(SYS_getpgrp) == -1 && errno == EPERM);
    return 0;
}

int main(int count, char **arguments)
{
    static const struct scene scenes[] = {
        {"sparing", sparing}, {"listed", listed}, {"killing", killing}, {"strict", strict},
        {"placed", placed},   {"work", work},     {"forbidden", forbidden}, {0, 0},
    };
    if (count > 1 && (strcmp(arguments[1], "listed") ? placed() : listed()))
        return 1;
    say("ready\n");
    return serve(scenes);
}
