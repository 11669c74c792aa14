/* A tool that gives up its capabilities and then gives a program to an event of the kernel's: it must gain nothing by
 * those that Beeline has. Says if each try is refused, and ends when it is sent a line. */
#define _GNU_SOURCE
#include "raw.h"
#include <sys/prctl.h>

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
    if (setuid(65534) != 0)
        die("setuid", -errno);
    int set = ioctl(fd, PERF_EVENT_IOC_SET_BPF, sampling) < 0 ? errno : 0;
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.raw_tracepoint.name = (uintptr_t)"sched_switch";
    attr.raw_tracepoint.prog_fd = (uint32_t)raw;
    int open = bpf(BPF_RAW_TRACEPOINT_OPEN, &attr);
    memset(&attr, 0, sizeof attr);
    attr.attach_bpf_fd = (uint32_t)raw;
    attr.attach_type = BPF_CGROUP_INET_EGRESS;
    int detach = bpf(BPF_PROG_DETACH, &attr);
    printf("event %s, tracepoint %s, cgroup %s\n", set ? "refused" : "taken", open < 0 ? "refused" : "taken",
           detach < 0 ? "refused" : "taken");
    fflush(stdout);
    getchar();
    return 0;
}
