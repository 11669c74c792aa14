/* Further scenes for tools: sockets on the loopback, sleeps, users, files that come and go, shared memory, threads, and a
 * descriptor that is passed on. */
#pragma once
#include "scenes.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/ipc.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <time.h>

/* A connection, a line through it, and its end. */
static int network(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    char bytes[8];
    int server = socket(AF_INET, SOCK_STREAM, 0), client = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(server >= 0 && client >= 0);
    CHECK(bind(server, (struct sockaddr *)&address, length) == 0 && listen(server, 4) == 0);
    CHECK(getsockname(server, (struct sockaddr *)&address, &length) == 0);
    CHECK(connect(client, (struct sockaddr *)&address, length) == 0);
    int peer = accept(server, 0, 0);
    CHECK(peer >= 0 && send(client, "line\n", 5, 0) == 5 && recv(peer, bytes, 5, 0) == 5);
    CHECK(close(client) == 0 && close(peer) == 0 && close(server) == 0);
    return 0;
}

static int sleeps(void)
{
    struct timespec time = {0, 1000000};
    for (int i = 0; i < 5; i++)
        CHECK(syscall(SYS_nanosleep, &time, 0) == 0 && nanosleep(&time, 0) == 0);
    return 0;
}

/* As whom it is already. */
static int users(void)
{
    CHECK(syscall(SYS_setuid, getuid()) == 0 && syscall(SYS_setresuid, -1, getuid(), -1) == 0);
    CHECK(syscall(SYS_setfsuid, getuid()) >= 0);
    return 0;
}

/* A file that is written, made sure of, renamed and removed. */
static int removed(void)
{
    const char *name = "/tmp/beeline-removed", *other = "/tmp/beeline-removed.new";
    int fd = open(name, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
    CHECK(fd >= 0 && write(fd, "line\n", 5) == 5 && fsync(fd) == 0 && fdatasync(fd) == 0);
    CHECK(rename(name, other) == 0 && unlink(other) == 0 && close(fd) == 0);
    return 0;
}

static int shared(void)
{
    int id = shmget(IPC_PRIVATE, 4096, IPC_CREAT | 0600);
    char *memory = shmat(id, 0, 0);
    CHECK(id >= 0 && memory != (char *)-1);
    memory[0] = 1;
    CHECK(shmdt(memory) == 0 && shmctl(id, IPC_RMID, 0) == 0);
    memory = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED && msync(memory, 4096, MS_ASYNC) == 0 && munmap(memory, 4096) == 0);
    return 0;
}

static void *nothing(void *unused) { return unused; }

static int threads(void)
{
    for (int i = 0; i < 3; i++) {
        pthread_t thread;
        CHECK(pthread_create(&thread, 0, nothing, 0) == 0 && pthread_join(thread, 0) == 0);
    }
    return 0;
}

static int rights(void)
{
    char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 1;
    struct iovec piece = {&byte, 1};
    struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    int pair[2], passed = open("/etc/hostname", O_RDONLY);
    CHECK(passed >= 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &passed, sizeof passed);
    CHECK(sendmsg(pair[0], &message, 0) == 1 && recvmsg(pair[1], &message, 0) == 1);
    int received;
    memcpy(&received, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof received);
    CHECK(close(received) == 0 && close(passed) == 0 && close(pair[0]) == 0 && close(pair[1]) == 0);
    return 0;
}
