/* A tool that gives up its capabilities and then gives programs to events of the kernel's, and to an array through which
 * one that runs there jumps: it must gain nothing by those that Beeline has. Says if each try is refused, and ends when it is sent a line. */
#define _GNU_SOURCE
#include "raw.h"
#include <sys/prctl.h>

/* An array of programs, used by a program that is attached in the kernel. */
static int array_in_kernel(void)
{
    int array = good("array", create_map(BPF_MAP_TYPE_PROG_ARRAY, 4, 4, 1, 0, 0));
    const struct bpf_insn jumps[] = {LD_MAP(2, array), MOV(3, 0), CALL(BPF_FUNC_tail_call), MOV(0, 0), EXIT};
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.raw_tracepoint.name = (uintptr_t)"sched_process_exec";
    attr.raw_tracepoint.prog_fd = (uint32_t)loaded(LOAD(BPF_PROG_TYPE_RAW_TRACEPOINT, jumps));
    good("BPF_RAW_TRACEPOINT_OPEN", bpf(BPF_RAW_TRACEPOINT_OPEN, &attr));
    return array;
}

int main(void)
{
    const struct bpf_insn body[] = {MOV(0, 0), EXIT};
    int sampling = loaded(LOAD(BPF_PROG_TYPE_PERF_EVENT, body));
    int raw = loaded(LOAD(BPF_PROG_TYPE_RAW_TRACEPOINT, body));
    struct perf_event_attr event = {
        .type = PERF_TYPE_SOFTWARE, .size = sizeof event, .config = PERF_COUNT_SW_TASK_CLOCK,
        .sample_period = 1000000, .disabled = 1, .exclude_kernel = 1,
    };
    int fd = (int)syscall(SYS_perf_event_open, &event, 0, -1, -1, 0);
    if (fd < 0)
        die("perf_event_open", -errno);
    int array = array_in_kernel();
    if (setuid(65534) != 0)
        die("setuid", -errno);
    int set = ioctl(fd, PERF_EVENT_IOC_SET_BPF, sampling) < 0 ? -errno : 0;
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.raw_tracepoint.name = (uintptr_t)"sched_switch";
    attr.raw_tracepoint.prog_fd = (uint32_t)raw;
    int open = bpf(BPF_RAW_TRACEPOINT_OPEN, &attr);
    memset(&attr, 0, sizeof attr);
    attr.attach_bpf_fd = (uint32_t)raw;
    attr.attach_type = BPF_CGROUP_INET_EGRESS;
    int detach = bpf(BPF_PROG_DETACH, &attr);
    int late = LOAD(BPF_PROG_TYPE_RAW_TRACEPOINT, body);
    int put = update_at(array, 0, (uint32_t)raw), put_late = late < 0 ? late : update_at(array, 0, (uint32_t)late);
    const int results[] = {set, open, detach, put, put_late};
    const char *names[] = {"event", "tracepoint", "cgroup", "element", "late element"};
    for (int i = 0; i < 5; i++)
        printf("%s%s %s", i ? ", " : "", names[i], results[i] < 0 ? "refused" : "taken");
    puts("");
    fflush(stdout);
    getchar();
    return 0;
}
