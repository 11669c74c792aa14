/* A tool with programs at places that only a kernel has: a device, a network namespace, a cgroup, a hook of netfilter, a
 * socket. Each counts datagrams (or sockets) that this process sends to itself, and is taken away again. Needs a network
 * namespace of its own.
 *
 * usage: kernel_places CGROUP ITERATOR
 *   ITERATOR: the number of bpf_iter_task in the kernel's BTF
 * output: a line for each place: what was counted while the program was there, and afterwards */
#define _GNU_SOURCE
#include "raw.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <net/if.h>
#include <sys/socket.h>
#include <time.h>

enum { DATAGRAMS = 7, LOOPBACK = 1, XDP_GENERIC = 1 << 1, NFPROTO = 2, LOCAL_IN = 1, ACCEPT = 1 };
/* Not in the headers of Linux 6.1. */
enum { TYPE_NETFILTER = 32, NETFILTER = 45, TCX_INGRESS = 46, TCX_NEXT_PROGRAM = -1 };

static int counter;

/* Counts, and returns `result`. */
static int program(uint32_t type, uint32_t attach_type, int result)
{
    const struct bpf_insn body[] = {COUNT(counter), MOV(0, result), EXIT};
    return loaded(load_program(type, attach_type, body, LENGTH(body)));
}

static void bring_loopback_up(void)
{
    struct ifreq request = {.ifr_name = "lo", .ifr_flags = IFF_UP};
    int socket_fd = socket(AF_INET, SOCK_DGRAM, 0);
    if (ioctl(socket_fd, SIOCSIFFLAGS, &request) < 0)
        die("SIOCSIFFLAGS", -errno);
    close(socket_fd);
}

/* Sends datagrams to a socket and receives them; `filter` is the program for the socket, if it is not -1. */
static void traffic(int filter)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int to = socket(AF_INET, SOCK_DGRAM, 0), from = socket(AF_INET, SOCK_DGRAM, 0);
    char byte = 0;
    if (bind(to, (void *)&address, sizeof address) < 0 || getsockname(to, (void *)&address, &length) < 0)
        die("bind", -errno);
    if (filter >= 0 && setsockopt(to, SOL_SOCKET, SO_ATTACH_BPF, &filter, sizeof filter) < 0)
        die("SO_ATTACH_BPF", -errno);
    for (int n = 0; n < DATAGRAMS; n++) {
        if (sendto(from, &byte, 1, 0, (void *)&address, sizeof address) != 1 || recv(to, &byte, 1, 0) != 1)
            die("datagram", -errno);
    }
    close(to);
    close(from);
}

static void report(const char *place, int link_type)
{
    printf("%s: type %d, %ld", place, link_type, take_count(counter));
}

/* Ends the line. A place may be left a moment after the last descriptor of its link is closed. */
static void report_end(void)
{
    enum { SECONDS = 20 };
    time_t end = time(NULL) + SECONDS;
    long after;
    do {
        traffic(-1);
        after = take_count(counter);
    } while (after != 0 && time(NULL) < end);
    printf(", then %ld\n", after);
}

static int type_of(int link, int program)
{
    union bpf_attr attr;
    struct bpf_link_info info;
    memset(&attr, 0, sizeof attr);
    memset(&info, 0, sizeof info);
    attr.info.bpf_fd = (uint32_t)link;
    attr.info.info_len = sizeof info;
    attr.info.info = (uintptr_t)&info;
    good("link info", bpf(BPF_OBJ_GET_INFO_BY_FD, &attr));
    if (info.prog_id != id_of(program, 1))
        die("the link has another program", -EINVAL);
    return (int)info.type;
}

static union bpf_attr link_attr(int program, int target, uint32_t attach_type)
{
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.link_create.prog_fd = (uint32_t)program;
    attr.link_create.target_fd = (uint32_t)target;
    attr.link_create.attach_type = attach_type;
    return attr;
}

/* Counts with the link that `attr` describes, and without it. */
static void with_link(const char *place, union bpf_attr attr)
{
    int link = good(place, bpf(BPF_LINK_CREATE, &attr));
    traffic(-1);
    report(place, type_of(link, (int)attr.link_create.prog_fd));
    close(link);
    report_end();
}

static union bpf_attr attach_attr(int program, int target, uint32_t attach_type)
{
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.attach_bpf_fd = (uint32_t)program;
    attr.target_fd = (uint32_t)target;
    attr.attach_type = attach_type;
    return attr;
}

static void at_cgroup(int cgroup)
{
    int skb = program(BPF_PROG_TYPE_CGROUP_SKB, BPF_CGROUP_INET_EGRESS, 1);
    with_link("cgroup egress", link_attr(skb, cgroup, BPF_CGROUP_INET_EGRESS));
    int sock = program(BPF_PROG_TYPE_CGROUP_SOCK, BPF_CGROUP_INET_SOCK_CREATE, 1);
    with_link("cgroup sockets", link_attr(sock, cgroup, BPF_CGROUP_INET_SOCK_CREATE));

    union bpf_attr attr = attach_attr(skb, cgroup, BPF_CGROUP_INET_EGRESS);
    good("BPF_PROG_ATTACH", bpf(BPF_PROG_ATTACH, &attr));
    traffic(-1);
    report("attached to the cgroup", 0);
    attr = attach_attr(skb, cgroup, BPF_CGROUP_INET_EGRESS);
    good("BPF_PROG_DETACH", bpf(BPF_PROG_DETACH, &attr));
    report_end();
}

/* Writes a byte for each task, of which there is one: this. */
static void over_tasks(const char *btf_id)
{
    const struct bpf_insn body[] = {
        LDX(BPF_DW, 6, 1, 8), JEQ(6, 0, 7), LDX(BPF_DW, 1, 1, 0), LDX(BPF_DW, 1, 1, 0), ST(BPF_B, 10, -8, 'x'),
        MOVR(2, 10), ADD(2, -8), MOV(3, 1), CALL(BPF_FUNC_seq_write), MOV(0, 0), EXIT,
    };
    union bpf_attr attr = program_attr(BPF_PROG_TYPE_TRACING, body, LENGTH(body));
    attr.expected_attach_type = BPF_TRACE_ITER;
    attr.attach_btf_id = (uint32_t)atoi(btf_id);
    int tasks = loaded(bpf(BPF_PROG_LOAD, &attr));
    const uint32_t only_this[] = {(uint32_t)getpid(), 0, 0};
    attr = link_attr(tasks, 0, BPF_TRACE_ITER);
    attr.link_create.iter_info = (uintptr_t)only_this;
    attr.link_create.iter_info_len = sizeof only_this;
    int link = good("iterator", bpf(BPF_LINK_CREATE, &attr));
    memset(&attr, 0, sizeof attr);
    attr.iter_create.link_fd = (uint32_t)link;
    int file = good("BPF_ITER_CREATE", bpf(BPF_ITER_CREATE, &attr));
    char written[64];
    ssize_t length = read(file, written, sizeof written);
    printf("iterator: type %d, %.*s\n", type_of(link, tasks), (int)length, written);
    close(file);
    close(link);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        die("usage", -EINVAL);
    int cgroup = good("cgroup", open(argv[1], O_RDONLY | O_DIRECTORY));
    int members = good("cgroup.procs", openat(cgroup, "cgroup.procs", O_WRONLY));
    if (write(members, "0", 1) != 1)
        die("joining the cgroup", -errno);
    bring_loopback_up();
    counter = create_counter();

    int xdp = program(BPF_PROG_TYPE_XDP, BPF_XDP, XDP_PASS);
    union bpf_attr attr = link_attr(xdp, LOOPBACK, BPF_XDP);
    attr.link_create.flags = XDP_GENERIC;
    with_link("xdp", attr);
    int tcx = program(BPF_PROG_TYPE_SCHED_CLS, TCX_INGRESS, TCX_NEXT_PROGRAM);
    with_link("tcx", link_attr(tcx, LOOPBACK, TCX_INGRESS));
    int filter = program(TYPE_NETFILTER, NETFILTER, ACCEPT);
    attr = link_attr(filter, 0, NETFILTER);
    const int32_t hook[] = {NFPROTO, LOCAL_IN, -128 /* the priority */, 0};
    memcpy(&attr.link_create.target_btf_id, hook, sizeof hook);
    with_link("netfilter", attr);
    int network = good("network namespace", open("/proc/self/ns/net", O_RDONLY));
    int finder = program(BPF_PROG_TYPE_SK_LOOKUP, BPF_SK_LOOKUP, SK_PASS);
    with_link("sk_lookup", link_attr(finder, network, BPF_SK_LOOKUP));
    at_cgroup(cgroup);

    over_tasks(argv[2]);
    traffic(program(BPF_PROG_TYPE_SOCKET_FILTER, 0, 1 << 16));
    report("socket", 0);
    report_end();
    return 0;
}
