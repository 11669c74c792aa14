/* What tools for system calls look for: files that are opened and asked about, signals, mounts, other programs.
 * Everything is named so that a line of a tool's says which of it that is. */
#include "scenes.h"
#include "others.h"
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/wait.h>

static int files(void)
{
    char bytes[8];
    for (int i = 0; i < 3; i++) {
        int fd = open("/etc/hostname", O_RDONLY | O_CLOEXEC);
        CHECK(fd >= 0 && read(fd, bytes, 1) == 1 && close(fd) == 0);
        fd = syscall(SYS_open, "/etc/passwd", O_RDONLY);
        CHECK(fd >= 0 && close(fd) == 0);
    }
    CHECK(open("/no/such/file", O_RDWR) == -1 && errno == ENOENT);
    return 0;
}

static int stats(void)
{
    struct stat about;
    struct statfs system;
    CHECK(statfs("/etc/hostname", &system) == 0);
    CHECK(syscall(SYS_stat, "/etc/passwd", &about) == 0);
    CHECK(stat("/etc/group", &about) == 0);
    CHECK(syscall(SYS_newfstatat, AT_FDCWD, "/etc/services", &about, 0) == 0 || errno == ENOENT);
    CHECK(syscall(SYS_statx, AT_FDCWD, "/etc/fstab", 0, 0, 0) == -1);
    CHECK(syscall(SYS_stat, "/no/such/file", &about) == -1 && errno == ENOENT);
    return 0;
}

static int kills(void)
{
    pid_t own = getpid();
    CHECK(signal(SIGUSR1, SIG_IGN) != SIG_ERR && signal(SIGUSR2, SIG_IGN) != SIG_ERR);
    CHECK(kill(own, SIGUSR1) == 0 && kill(own, 0) == 0);
    CHECK(syscall(SYS_tkill, own, SIGUSR2) == 0 && syscall(SYS_tgkill, own, own, SIGUSR1) == 0);
    CHECK(kill(own, 99) == -1 && errno == EINVAL);
    return 0;
}

/* In a mount namespace of its own, if it may. */
static int mounts(void)
{
    CHECK(mount("nowhere", "/no/such/mount", "tmpfs", MS_NOSUID | MS_RDONLY, "size=4k") == -1);
    CHECK(umount2("/no/such/mount", MNT_DETACH) == -1);
    return 0;
}

static int ids(void)
{
    pid_t parent = getppid();
    for (int i = 0; i < 1000; i++)
        CHECK(syscall(SYS_getppid) == parent);
    return 0;
}

/* Arguments in memory that is there, in children too: the kernel's tools read no other. */
static char words[][20] = {"/no/such/program", "zero", "/bin/true", "one", "two words"};

/* Programs in every way, a shell by the C library, and one that is not there. */
static int execs(void)
{
    int status;
    for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
        *(volatile char *)words[i] = words[i][0];
    for (int i = 0; i < 3; i++) {
        pid_t pid = i == 1 ? vfork() : fork();
        if (pid == 0) {
            if (i == 0)
                execl(words[0], words[0], words[1], (char *)0);
            execl(words[2], words[2], words[3], words[4], (char *)0);
            _exit(98);
        }
        CHECK(waitpid(pid, &status, 0) == pid && status == 0);
    }
    CHECK(system("exit 3") == 3 << 8);
    return 0;
}

static unsigned lock;
enum { WAITS = 20 };

/* Each time when the other one sleeps: only then is there somebody to wake. */
static void *waker(void *unused)
{
    for (int i = 0; i < WAITS; i++)
        while (syscall(SYS_futex, &lock, FUTEX_WAKE_PRIVATE, 1, 0, 0, 0) != 1)
            usleep(1000);
    return unused;
}

static int waits(void)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, 0, waker, 0) == 0);
    for (int i = 0; i < WAITS; i++)
        CHECK(syscall(SYS_futex, &lock, FUTEX_WAIT_PRIVATE, 0, 0, 0, 0) == 0);
    CHECK(pthread_join(thread, 0) == 0);
    return 0;
}

static int syncs(void)
{
    sync();
    return 0;
}

int main(void)
{
    static const struct scene scenes[] = {
        {"files", files}, {"stats", stats}, {"kills", kills}, {"mounts", mounts},
        {"ids", ids},     {"execs", execs}, {"syncs", syncs}, {"waits", waits},
        {"network", network}, {"sleeps", sleeps}, {"users", users}, {"removed", removed}, {"shared", shared},
        {"threads", threads}, {"rights", rights}, {0, 0},
    };
    say("ready\n");
    return serve(scenes);
}
