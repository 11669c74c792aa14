/* What bpftool loads, attaches and runs: a program at each system call, and a map that it counts in. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} entered SEC(".maps");

SEC("raw_tp/sys_enter")
int counted(void *context)
{
	__u32 key = 0;
	__u64 *count = bpf_map_lookup_elem(&entered, &key);
	if (count)
		__sync_fetch_and_add(count, 1);
	return 5;
}

char LICENSE[] SEC("license") = "GPL";
