// Sends back what it gets: "vsock PORT", "tcp PORT" (each connection in a process of its own), or the path of a device.
// Says "ready" when it listens.
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

// More in one piece is lost on the way from a guest by some vsock devices.
#define PIECE 16384

static void fail(const char *what) {
    perror(what);
    exit(1);
}

static void echo(int fd) {
    static char buffer[PIECE];
    ssize_t got;
    while ((got = read(fd, buffer, sizeof buffer)) > 0)
        for (ssize_t sent = 0; sent < got;) {
            ssize_t n = write(fd, buffer + sent, got - sent);
            if (n < 0) fail("write");
            sent += n;
        }
}

static int listen_vsock(unsigned port) {
    struct sockaddr_vm address = {.svm_family = AF_VSOCK, .svm_port = port, .svm_cid = VMADDR_CID_ANY};
    int fd = socket(AF_VSOCK, SOCK_STREAM, 0);
    if (fd < 0) fail("socket");
    // Kernels up to 6.12 reset a connection that is sent many small messages at once if these are smaller.
    unsigned long long size = 4 << 20;
    setsockopt(fd, AF_VSOCK, SO_VM_SOCKETS_BUFFER_MAX_SIZE, &size, sizeof size);
    setsockopt(fd, AF_VSOCK, SO_VM_SOCKETS_BUFFER_SIZE, &size, sizeof size);
    if (bind(fd, (struct sockaddr *)&address, sizeof address)) fail("bind");
    return fd;
}

static int listen_tcp(unsigned port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port)};
    int fd = socket(AF_INET, SOCK_STREAM, 0), one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one); // the connections get it, too
    if (bind(fd, (struct sockaddr *)&address, sizeof address)) fail("bind");
    return fd;
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 2) {
        int fd = open(argv[1], O_RDWR);
        if (fd < 0) fail(argv[1]);
        puts("ready");
        for (;;) {
            echo(fd);
            usleep(10000); // nobody at the other end
        }
    }
    if (argc != 3) return 2;
    signal(SIGCHLD, SIG_IGN);
    int listener = (strcmp(argv[1], "vsock") ? listen_tcp : listen_vsock)(atoi(argv[2]));
    if (listen(listener, 16)) fail("listen");
    puts("ready");
    for (;;) {
        int fd = accept(listener, NULL, NULL);
        if (fd < 0) fail("accept");
        if (fork() == 0) {
            echo(fd);
            _exit(0);
        }
        close(fd);
    }
}
