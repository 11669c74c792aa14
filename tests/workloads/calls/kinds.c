/* Calls with known arguments and results, for every way to look at them. */
#include "scenes.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>

static int files(void)
{
    char bytes[64];
    struct iovec parts[2] = {{bytes, 3}, {bytes + 3, 4}};
    for (int i = 0; i < 5; i++) {
        int fd = open("/etc/hostname", O_RDONLY | O_CLOEXEC);
        CHECK(fd >= 0 && read(fd, bytes, 1) == 1 && lseek(fd, 0, SEEK_SET) == 0);
        CHECK(pread(fd, bytes, i, 0) >= 0 && readv(fd, parts, 2) > 0);
        CHECK(close(fd) == 0);
    }
    CHECK(open("/no/such/file", O_RDWR) == -1 && errno == ENOENT);
    CHECK(access("/no/such/file", R_OK) == -1);
    CHECK(close(-1) == -1 && errno == EBADF);
    return 0;
}

/* By all calls that open a file, but for the usual one. */
static int opens(void)
{
    struct {
        unsigned long flags, mode, resolve;
    } how = {O_RDONLY | O_CLOEXEC, 0, 0};
    int fd = syscall(SYS_open, "/etc/hostname", O_RDONLY, 0);
    CHECK(fd >= 0 && close(fd) == 0);
    CHECK(syscall(SYS_open, "/no/such/file", O_RDWR | O_CREAT | O_EXCL, 0640) == -1 && errno == ENOENT);
    CHECK(syscall(SYS_creat, "/no/such/file", 0604) == -1 && errno == ENOENT);
    fd = syscall(SYS_openat2, AT_FDCWD, "/etc/hostname", &how, sizeof how);
    CHECK(fd >= 0 && close(fd) == 0);
    return 0;
}

/* By wrappers of a few bytes, and by a number in a register. */
static int ids(void)
{
    pid_t parent = getppid(), own = getpid();
    for (int i = 0; i < 100; i++)
        CHECK(getppid() == parent && getpid() == own && syscall(SYS_getppid) == parent);
    return 0;
}

/* Six arguments, and a number that no call has. */
static int odd(void)
{
    CHECK(syscall(SYS_process_vm_readv, -1, 0L, 0L, 0L, 0L, 1L) == -1);
    CHECK(syscall(1023, 1, 2, 3, 4, 5, 6) == -1 && errno == ENOSYS);
    CHECK(syscall(100000, 1) == -1 && errno == ENOSYS);
    return 0;
}

int main(void)
{
    static const struct scene scenes[] = {{"files", files}, {"opens", opens}, {"ids", ids}, {"odd", odd}, {0, 0}};
    say("ready\n");
    return serve(scenes);
}
