/* A reader of perf buffers as Go's are: the events are opened enabled, mapped, put into the array, and then waited for
 * in an epoll set. A program that sends one record, run by BPF_PROG_TEST_RUN, shows when a record arrives. */
#define _GNU_SOURCE
#include "raw.h"
#include <sys/epoll.h>
#include <sys/mman.h>

enum { PAGES = 2, PAGE = 4096, MAX_CPUS = 256 };

static int array, sends, cpus;

struct buffers {
    int epoll, fds[MAX_CPUS];
    struct perf_event_mmap_page *pages[MAX_CPUS];
};

/* Opens a CPU's buffer in the array, enabled or not. */
static void open_buffer(struct buffers *buffers, int cpu, int disabled)
{
    struct perf_event_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    attr.type = PERF_TYPE_SOFTWARE;
    attr.config = PERF_COUNT_SW_BPF_OUTPUT;
    attr.sample_type = PERF_SAMPLE_RAW;
    attr.disabled = (unsigned)disabled;
    attr.watermark = 1;
    attr.wakeup_watermark = 1;
    int fd = (int)syscall(SYS_perf_event_open, &attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC);
    if (fd < 0)
        die("perf_event_open", -errno);
    struct perf_event_mmap_page *page = mmap(0, (1 + PAGES) * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        die("mmap", -errno);
    good("update", update_at(array, (uint32_t)cpu, (uint32_t)fd));
    struct epoll_event event = {.events = EPOLLIN};
    if (epoll_ctl(buffers->epoll, EPOLL_CTL_ADD, fd, &event) < 0)
        die("epoll_ctl", -errno);
    buffers->fds[cpu] = fd;
    buffers->pages[cpu] = page;
}

static struct buffers open_buffers(int disabled)
{
    struct buffers buffers = {.epoll = epoll_create1(EPOLL_CLOEXEC)};
    for (int cpu = 0; cpu < cpus; cpu++)
        open_buffer(&buffers, cpu, disabled);
    return buffers;
}

static void tell(struct buffers *buffers, unsigned long command, int argument)
{
    for (int cpu = 0; cpu < cpus; cpu++)
        if (ioctl(buffers->fds[cpu], command, argument) < 0)
            die("ioctl", -errno);
}

/* Reads all buffers, and returns the number of bytes. */
static unsigned long long read_all(struct buffers *buffers)
{
    unsigned long long bytes = 0;
    for (int cpu = 0; cpu < cpus; cpu++) {
        struct perf_event_mmap_page *page = buffers->pages[cpu];
        uint64_t head = __atomic_load_n(&page->data_head, __ATOMIC_ACQUIRE);
        bytes += head - page->data_tail;
        __atomic_store_n(&page->data_tail, head, __ATOMIC_RELEASE);
    }
    return bytes;
}

/* Sends one record, and says whether it has arrived and whether the reader was woken. */
static void send_one(const char *when, struct buffers *buffers)
{
    struct epoll_event event;
    while (epoll_wait(buffers->epoll, &event, 1, 0) > 0)
        ;
    int result = run_once(sends);
    int woken = epoll_wait(buffers->epoll, &event, 1, result ? 50 : 5000);
    printf("%s: helper %d, %llu bytes, woken %d\n", when, result, read_all(buffers), woken);
}

int main(void)
{
    cpus = (int)sysconf(_SC_NPROCESSORS_CONF);
    if (cpus > MAX_CPUS)
        cpus = MAX_CPUS;
    array = good("array", create_map(BPF_MAP_TYPE_PERF_EVENT_ARRAY, 4, 4, (uint32_t)cpus, 0, 0));
    const struct bpf_insn body[] = {
        ST(BPF_DW, 10, -8, 0x1234), LD_MAP(2, array), LD_64(3, BPF_F_CURRENT_CPU), MOVR(4, 10), ADD(4, -8), MOV(5, 8),
        CALL(BPF_FUNC_perf_event_output), EXIT,
    };
    sends = loaded(LOAD(BPF_PROG_TYPE_RAW_TRACEPOINT, body));

    struct buffers buffers = open_buffers(0);
    send_one("opened enabled", &buffers);
    send_one("a second record", &buffers);
    tell(&buffers, PERF_EVENT_IOC_DISABLE, 0);
    send_one("disabled", &buffers);
    tell(&buffers, PERF_EVENT_IOC_ENABLE, 0);
    send_one("enabled again", &buffers);

    buffers = open_buffers(1);
    send_one("opened disabled", &buffers);
    tell(&buffers, PERF_EVENT_IOC_PAUSE_OUTPUT, 0);
    send_one("disabled and resumed", &buffers);
    tell(&buffers, PERF_EVENT_IOC_ENABLE, 0);
    send_one("enabled", &buffers);
    tell(&buffers, PERF_EVENT_IOC_PAUSE_OUTPUT, 1);
    send_one("paused", &buffers);
    tell(&buffers, PERF_EVENT_IOC_ENABLE, 0);
    send_one("paused and enabled", &buffers);
    return 0;
}
