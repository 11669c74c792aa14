/* A small tool and its target, for a Beeline of which one system call fails.
 *
 *   faults                              the target: says "ready"; answers each line with "done SUM"; exit code 7 at end of file
 *   faults probes PID PATH OFFSET       the tool: counts calls of the function there, and what it returns
 *   faults calls PID PATH OFFSET        and system calls of one number, also those of the target's children
 *
 * The tool says "attached", and at the end of its input "in IN out OUT records RECORDS calls CALLS". A line that the target is sent is CALLS calls of the function by itself;
 * and as many of getpgid(), some by itself, some by a child, some by the program that the child runs. */
#define _GNU_SOURCE
#include <poll.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/user.h>
#include <sys/wait.h>

#include "raw.h"

enum { CALLS = 100, BY_CHILD = 20, BY_PROGRAM = 10, EXIT_CODE = 7, RING_BYTES = 65536 };
enum { IN, OUT, SYSTEM, COUNTERS };

__attribute__((noinline, noclone, used)) long f_add(long a, long b)
{
    __asm__ volatile("" : "+r"(a));
    return a + b;
}

static void call_system(int times)
{
    while (times-- > 0)
        syscall(SYS_getpgid, 0);
}

static void have_child(char *name)
{
    char *const argv[] = {name, (char *)"child", 0};
    int status = -1;
    pid_t child = fork();
    if (child == 0) {
        call_system(BY_CHILD);
        execv("/proc/self/exe", argv);
        _exit(1);
    }
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        printf("a child ended with %d; ", status);
}

static int be_target(char *name)
{
    char line[64];
    setvbuf(stdout, 0, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        long sum = 0;
        for (long i = 0; i < CALLS; i++)
            sum += f_add(i, 1);
        call_system(CALLS - BY_CHILD - BY_PROGRAM);
        have_child(name);
        printf("done %ld\n", sum);
    }
    return EXIT_CODE;
}

/* counters[which] += 1, and a record with that in the ring. */
static int load_counting(uint32_t type, int counters, int ring, int which)
{
    const struct bpf_insn body[] = {
        LD_VALUE(1, counters, 8 * which), MOV(2, 1), ATOMIC_ADD(1, 2, 0), ST(BPF_DW, 10, -8, which), LD_MAP(1, ring),
        MOVR(2, 10), ADD(2, -8), MOV(3, 8), MOV(4, 0), CALL(BPF_FUNC_ringbuf_output), MOV(0, 0), EXIT,
    };
    return loaded(LOAD(type, body));
}

static int load_call_counting(int counters)
{
    const struct bpf_insn body[] = {
        LDX(BPF_DW, 1, 1, 8), JNE(1, SYS_getpgid, 4), LD_VALUE(1, counters, 8 * SYSTEM), MOV(2, 1), ATOMIC_ADD(1, 2, 0), MOV(0, 0), EXIT,
    };
    return loaded(LOAD(BPF_PROG_TYPE_RAW_TRACEPOINT, body));
}

static void attach_to_calls(int program)
{
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.raw_tracepoint.name = (uintptr_t)"sys_enter";
    attr.raw_tracepoint.prog_fd = (uint32_t)program;
    good("BPF_RAW_TRACEPOINT_OPEN", bpf(BPF_RAW_TRACEPOINT_OPEN, &attr));
}

static void attach_to_return(int program, const char *path, uint64_t offset, pid_t pid)
{
    struct perf_event_attr attr;
    unsigned type;
    FILE *file = fopen("/sys/bus/event_source/devices/uprobe/type", "r");
    if (!file || fscanf(file, "%u", &type) != 1)
        die("uprobe/type", -errno);
    fclose(file);
    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    attr.type = type;
    attr.config = 1;
    attr.config1 = (uintptr_t)path;
    attr.config2 = offset;
    int fd = (int)syscall(SYS_perf_event_open, &attr, pid, -1, -1, PERF_FLAG_FD_CLOEXEC);
    if (fd < 0)
        die("perf_event_open", -errno);
    if (ioctl(fd, PERF_EVENT_IOC_SET_BPF, program) < 0 || ioctl(fd, PERF_EVENT_IOC_ENABLE, 0) < 0)
        die("attaching", -errno);
}

/* Where the reader stands in a ring, and the writers; and what they have written, twice over. */
struct ring {
    volatile uint64_t *read, *written;
    volatile char *data;
};

static struct ring map_ring(int fd)
{
    long page = sysconf(_SC_PAGESIZE);
    char *consumer = mmap(0, page, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *producer = mmap(0, page + 2 * RING_BYTES, PROT_READ, MAP_SHARED, fd, page);
    if (consumer == MAP_FAILED || producer == MAP_FAILED)
        die("mapping the ring", -errno);
    return (struct ring){(uint64_t *)consumer, (uint64_t *)producer, producer + page};
}

static long take_records(struct ring ring)
{
    long records = 0;
    while (*ring.read != __atomic_load_n(ring.written, __ATOMIC_ACQUIRE)) {
        uint32_t length = *(volatile uint32_t *)(ring.data + *ring.read % RING_BYTES);
        if (length & BPF_RINGBUF_BUSY_BIT)
            break;
        if (length != 8)
            die("a record of another length", -EPROTO);
        __atomic_store_n(ring.read, *ring.read + 16, __ATOMIC_RELEASE);
        records++;
    }
    return records;
}

/* Until the end of the input; the records meanwhile. */
static long serve(int fd, struct ring ring)
{
    long records = 0;
    int epoll = good("epoll_create1", epoll_create1(EPOLL_CLOEXEC));
    struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event))
        die("EPOLL_CTL_ADD", -errno);
    event.data.fd = STDIN_FILENO;
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, STDIN_FILENO, &event))
        die("EPOLL_CTL_ADD", -errno);
    for (;;) {
        char byte;
        int ready = epoll_wait(epoll, &event, 1, -1);
        if (ready < 0 && errno != EINTR)
            die("epoll_wait", -errno);
        records += take_records(ring);
        if (ready == 1 && event.data.fd == STDIN_FILENO && read(STDIN_FILENO, &byte, 1) <= 0)
            return records + take_records(ring);
    }
}

int main(int argc, char **argv)
{
    uint64_t counts[COUNTERS];
    uint32_t key = 0;
    if (argc == 1)
        return be_target(argv[0]);
    if (argc == 2)
        return call_system(BY_PROGRAM), 0;
    if (argc != 5)
        return fputs("usage: faults [probes|calls PID PATH OFFSET]\n", stderr), 2;
    pid_t pid = atoi(argv[2]);
    uint64_t offset = strtoull(argv[4], 0, 10);
    int counters = good("counters", create_map(BPF_MAP_TYPE_ARRAY, 4, sizeof counts, 1, 0, 0));
    int ring_fd = good("ring", create_map(BPF_MAP_TYPE_RINGBUF, 0, 0, RING_BYTES, 0, 0));
    struct ring ring = map_ring(ring_fd);
    attach_uprobe(load_counting(BPF_PROG_TYPE_KPROBE, counters, ring_fd, IN), argv[3], offset, pid);
    attach_to_return(load_counting(BPF_PROG_TYPE_KPROBE, counters, ring_fd, OUT), argv[3], offset, pid);
    if (!strcmp(argv[1], "calls"))
        attach_to_calls(load_call_counting(counters));
    puts("attached");
    fflush(stdout);
    long records = serve(ring_fd, ring);
    good("look-up", lookup(counters, &key, counts));
    printf("in %lu out %lu records %ld calls %lu\n", counts[IN], counts[OUT], records, counts[SYSTEM]);
    return 0;
}
