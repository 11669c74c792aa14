/* What a tool asks of descriptors in the kernel that it works with: inside a guest and from its host it prints the same.
 *
 *     descriptors counters     read() of perf events' values
 *     descriptors query        BPF_TASK_FD_QUERY
 *     descriptors refused      what names something of the machine that the tool runs on */
#include "raw.h"

#include <fcntl.h>
#include <net/if.h>
#include <sys/mman.h>

#define SAY(what) printf("%s: %ld\n", #what, (long)(what))

static struct perf_event_attr clock_attr(uint64_t format)
{
    struct perf_event_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    attr.type = PERF_TYPE_SOFTWARE;
    attr.config = PERF_COUNT_SW_CPU_CLOCK;
    attr.read_format = format;
    attr.disabled = 1;
    return attr;
}

static int perf_open(struct perf_event_attr *attr, int pid, int cpu, int group)
{
    int fd = (int)syscall(SYS_perf_event_open, attr, pid, cpu, group, PERF_FLAG_FD_CLOEXEC);
    return fd < 0 ? -errno : fd;
}

static int counter(uint64_t format, int group)
{
    struct perf_event_attr attr = clock_attr(format);
    return good("counter", perf_open(&attr, -1, 0, group));
}

static long values(int fd, void *buffer, size_t size)
{
    long count = read(fd, buffer, size);
    return count < 0 ? -errno : count;
}

static void control(int fd, unsigned command, unsigned long argument)
{
    if (ioctl(fd, command, argument) < 0)
        die("perf ioctl", -errno);
}

/* One value, then with times and the event's number, then those of a group. */
static void counters(void)
{
    uint64_t value[16] = {0}, before, id, other;
    int plain = counter(0, -1);
    SAY(values(plain, value, 8));
    SAY(value[0]);
    SAY(values(plain, value, sizeof value));
    control(plain, PERF_EVENT_IOC_ENABLE, 0);
    while (values(plain, value, 8) == 8 && value[0] == 0)
        ;
    SAY(value[0] > 0);
    control(plain, PERF_EVENT_IOC_DISABLE, 0);
    SAY(values(plain, value, 8));
    before = value[0];
    SAY(values(plain, value, 8));
    SAY(value[0] == before);
    control(plain, PERF_EVENT_IOC_RESET, 0);
    SAY(values(plain, value, 8));
    SAY(value[0]);

    int timed = counter(PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING | PERF_FORMAT_ID, -1);
    control(timed, PERF_EVENT_IOC_ID, (unsigned long)&id);
    control(timed, PERF_EVENT_IOC_ENABLE, 0);
    SAY(values(timed, value, 8));
    SAY(values(timed, value, 24));
    SAY(values(timed, value, 32));
    SAY(values(timed, value, sizeof value));
    SAY(value[0] > 0 && value[1] >= value[0] && value[2] == value[1]);
    SAY(value[3] == id);

    int leader = counter(PERF_FORMAT_GROUP | PERF_FORMAT_ID, -1), sibling = counter(PERF_FORMAT_GROUP | PERF_FORMAT_ID, leader);
    control(leader, PERF_EVENT_IOC_ID, (unsigned long)&id);
    control(sibling, PERF_EVENT_IOC_ID, (unsigned long)&other);
    SAY(values(leader, value, 32));
    SAY(values(leader, value, 40));
    SAY(value[0]);
    SAY(value[2] == id && value[4] == other);
    SAY(values(sibling, value, 64));

    /* Nothing is read of others. */
    int map = create_counter();
    struct bpf_insn body[] = {MOV(0, 0), EXIT};
    SAY(values(map, value, 8));
    SAY(values(loaded(LOAD(BPF_PROG_TYPE_RAW_TRACEPOINT, body)), value, 8));
    int ends[2];
    if (pipe(ends) || write(ends[1], "plain file", 10) != 10)
        die("pipe", -errno);
    SAY(values(ends[0], value, 16));
}

struct answer {
    long result;
    unsigned length, program, type;
    uint64_t offset, address;
    char name[64];
};

static struct answer query(int pid, int fd, unsigned room, unsigned flags)
{
    struct answer answer = {.name = "untouched"};
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.task_fd_query.pid = (uint32_t)pid;
    attr.task_fd_query.fd = (uint32_t)fd;
    attr.task_fd_query.flags = flags;
    attr.task_fd_query.buf_len = room;
    attr.task_fd_query.buf = (uintptr_t)answer.name;
    answer.result = bpf(BPF_TASK_FD_QUERY, &attr);
    answer.length = attr.task_fd_query.buf_len;
    answer.program = attr.task_fd_query.prog_id;
    answer.type = attr.task_fd_query.fd_type;
    answer.offset = attr.task_fd_query.probe_offset;
    answer.address = attr.task_fd_query.probe_addr;
    return answer;
}

static void say(const char *what, struct answer answer, unsigned program)
{
    printf("%s: %ld, type %u, \"%s\" (%u), offset %lu, address %d, this program %d\n", what, answer.result, answer.type,
           answer.name, answer.length, (unsigned long)answer.offset, answer.address != 0, answer.program == program);
}

static int kprobe(const char *function, int program)
{
    struct perf_event_attr attr;
    unsigned type;
    FILE *file = fopen("/sys/bus/event_source/devices/kprobe/type", "r");
    if (!file || fscanf(file, "%u", &type) != 1)
        die("kprobe/type", -errno);
    fclose(file);
    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    attr.type = type;
    attr.config1 = (uintptr_t)function;
    int fd = good("perf_event_open", perf_open(&attr, -1, 0, -1));
    control(fd, PERF_EVENT_IOC_SET_BPF, (unsigned long)program);
    return fd;
}

static void queries(void)
{
    struct bpf_insn body[] = {MOV(0, 0), EXIT};
    int probe = loaded(LOAD(BPF_PROG_TYPE_KPROBE, body)), raw = loaded(LOAD(BPF_PROG_TYPE_RAW_TRACEPOINT, body));
    unsigned probe_id = id_of(probe, 1), raw_id = id_of(raw, 1);
    int event = kprobe("__x64_sys_sethostname", probe), me = getpid();
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.raw_tracepoint.name = (uintptr_t)"sched_switch";
    attr.raw_tracepoint.prog_fd = (uint32_t)raw;
    int link = good("raw tracepoint", bpf(BPF_RAW_TRACEPOINT_OPEN, &attr));
    say("kprobe", query(me, event, 64, 0), probe_id);
    say("kprobe, by a copy", query(me, dup(event), 64, 0), probe_id);
    say("kprobe, little room", query(me, event, 8, 0), probe_id);
    say("kprobe, no room", query(me, event, 0, 0), probe_id);
    say("raw tracepoint", query(me, link, 64, 0), raw_id);
    say("flags", query(me, link, 64, 1), raw_id);
    say("an event without a program", query(me, counter(0, -1), 64, 0), 0);
    say("a program", query(me, raw, 64, 0), 0);
    say("a file", query(me, open("/dev/null", O_RDONLY), 64, 0), 0);
    say("no descriptor", query(me, 999, 64, 0), 0);
    say("no process", query(-1, event, 64, 0), 0);
    say("process 0", query(0, event, 64, 0), 0);
}

static int link_to(int program, int target, uint32_t type)
{
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.link_create.prog_fd = (uint32_t)program;
    attr.link_create.target_fd = (uint32_t)target;
    attr.link_create.attach_type = type;
    return bpf(BPF_LINK_CREATE, &attr);
}

static void refused(void)
{
    struct bpf_insn body[] = {MOV(0, 1), EXIT};
    int filter = loaded(load_program(BPF_PROG_TYPE_CGROUP_SKB, BPF_CGROUP_INET_INGRESS, body, LENGTH(body)));
    int packets = loaded(LOAD(BPF_PROG_TYPE_XDP, body)), cgroup = open("/sys/fs/cgroup", O_RDONLY | O_DIRECTORY);
    int device = (int)if_nametoindex("lo");
    SAY(link_to(filter, cgroup, BPF_CGROUP_INET_INGRESS));
    SAY(link_to(packets, device, BPF_XDP));
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.target_fd = (uint32_t)cgroup;
    attr.attach_bpf_fd = (uint32_t)filter;
    attr.attach_type = BPF_CGROUP_INET_INGRESS;
    SAY(bpf(BPF_PROG_ATTACH, &attr));
    SAY(bpf(BPF_PROG_DETACH, &attr));
    memset(&attr, 0, sizeof attr);
    attr.query.target_fd = (uint32_t)cgroup;
    attr.query.attach_type = BPF_CGROUP_INET_INGRESS;
    SAY(bpf(BPF_PROG_QUERY, &attr));
    attr = program_attr(BPF_PROG_TYPE_XDP, body, LENGTH(body));
    attr.prog_ifindex = (uint32_t)device;
    SAY(bpf(BPF_PROG_LOAD, &attr));
    memset(&attr, 0, sizeof attr);
    attr.map_type = BPF_MAP_TYPE_ARRAY;
    attr.key_size = attr.value_size = 4;
    attr.max_entries = 1;
    attr.map_ifindex = (uint32_t)device;
    SAY(bpf(BPF_MAP_CREATE, &attr));
    struct perf_event_attr own = clock_attr(0);
    SAY(perf_open(&own, 0, -1, -1));
}

int main(int argc, char **argv)
{
    const char *what = argc == 2 ? argv[1] : "";
    if (!strcmp(what, "counters"))
        counters();
    else if (!strcmp(what, "query"))
        queries();
    else if (!strcmp(what, "refused"))
        refused();
    else
        return 2;
    return 0;
}
