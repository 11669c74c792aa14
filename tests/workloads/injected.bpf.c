/* What a host injects into a guest: it counts and reports calls of sethostname in every way that it can. */
#include <linux/bpf.h>
#include <linux/ptrace.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
#include <bpf/bpf_tracing.h>

struct event {
	__u32 tid;
	__u32 length;
	char comm[16];
};

/* So that the file has its type: records are of it, and nothing else is. */
const struct event *unused __attribute__((unused));

/* As the guest's kernel has it, wherever that is. */
struct task_struct {
	int pid;
	char comm[16];
} __attribute__((preserve_access_index));

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, 4);
	__uint(value_size, 4);
} samples SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 64);
	__type(key, __u32);
	__type(value, __u64);
} lengths SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} calls SEC(".maps");

const volatile __u32 shift = 1;
__u64 returns = 0;

struct enter {
	__u64 common;
	__u64 number;
	char *name;
	__u64 length;
};

SEC("tracepoint/syscalls/sys_enter_sethostname")
int enter(struct enter *context)
{
	struct task_struct *task = (void *)bpf_get_current_task();
	struct event event = { .length = context->length };
	__u32 key = context->length, zero = 0;
	__u64 one = 1, *count;

	event.tid = BPF_CORE_READ(task, pid);
	BPF_CORE_READ_STR_INTO(&event.comm, task, comm);
	bpf_ringbuf_output(&events, &event, sizeof(event), 0);
	bpf_perf_event_output(context, &samples, BPF_F_CURRENT_CPU, &event, sizeof(event));
	count = bpf_map_lookup_elem(&lengths, &key);
	if (count)
		__sync_fetch_and_add(count, 1);
	else
		bpf_map_update_elem(&lengths, &key, &one, 0);
	count = bpf_map_lookup_elem(&calls, &zero);
	if (count)
		*count += 1;
	return 0;
}

SEC("kretprobe/__x64_sys_sethostname")
int leave(void *context)
{
	__sync_fetch_and_add(&returns, 1 << shift);
	return 0;
}

/* Each way to attach has its count. */
__u64 seen[9];

#define SEEN(number, section, name)              \
	SEC(section)                             \
	int name(void *context)                  \
	{                                        \
		__sync_fetch_and_add(&seen[number], 1); \
		return 0;                        \
	}

SEEN(0, "?raw_tp/sys_enter", at_raw_tracepoint)
SEEN(1, "?tp_btf/sys_enter", at_typed_tracepoint)
SEEN(2, "?fentry/__x64_sys_sethostname", at_entry)
SEEN(3, "?fexit/__x64_sys_sethostname", at_exit)
SEEN(4, "?kprobe/__x64_sys_sethostname", at_kprobe)
SEEN(5, "?ksyscall/sethostname", at_system_call)
SEEN(6, "?kprobe.multi/__x64_sys_sethostnam*", at_several)
SEEN(7, "?uprobe//lib/x86_64-linux-gnu/libc.so.6:malloc", at_uprobe)
SEEN(8, "?perf_event", at_sample)

SEC("?tracepoint/syscalls/sys_enter_no_such_call")
int nowhere(void *context)
{
	return 0;
}

SEC("?xdp")
int packets(void *context)
{
	return XDP_PASS;
}

SEC("?tracepoint/syscalls/sys_enter_sethostname")
int refused(struct enter *context)
{
	/* Reads where nothing is. */
	return *(volatile int *)((char *)context + 16384);
}

SEC("?tracepoint/syscalls/sys_enter_sethostname")
int too_far(struct enter *context)
{
	/* Behind the record of this tracepoint, which only the attachment knows. */
	return *(volatile int *)((char *)context + 4096);
}

char LICENSE[] SEC("license") = "GPL";
