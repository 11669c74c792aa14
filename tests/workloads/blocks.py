# A script for bcc that reports requests to disks when they are done, as disksnoop does.
import signal

from bcc import BPF

b = BPF(
    text=r"""
struct event {
    u32 bytes;
    char kind[8];
};
BPF_HASH(issued, u64, u64);
BPF_HISTOGRAM(latency);
BPF_PERF_OUTPUT(events);

TRACEPOINT_PROBE(block, block_rq_issue)
{
    u64 sector = args->sector, now = bpf_ktime_get_ns();
    issued.update(&sector, &now);
    return 0;
}

TRACEPOINT_PROBE(block, block_rq_complete)
{
    u64 sector = args->sector, *then = issued.lookup(&sector);
    struct event event = {};
    if (!then)
        return 0;
    latency.increment(bpf_log2l((bpf_ktime_get_ns() - *then) / 1000));
    issued.delete(&sector);
    event.bytes = args->nr_sector * 512;
    __builtin_memcpy(event.kind, args->rwbs, sizeof(event.kind));
    events.perf_submit(args, &event, sizeof(event));
    return 0;
}
"""
)


def show(cpu, data, size):
    event = b["events"].event(data)
    print(event.bytes, event.kind.decode(), flush=True)


b["events"].open_perf_buffer(show)
ended = []
# Not by an exception, which would come in the midst of a line.
signal.signal(signal.SIGINT, lambda number, frame: ended.append(number))
print("attached", flush=True)
while not ended:
    b.perf_buffer_poll(timeout=100)
print("latency", sum(count.value for count in b["latency"].values()))
