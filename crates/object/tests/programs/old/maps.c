/* Maps without types, as libbpf took them before its version 1 and other libraries have them: several in one section, one in a section
 * of its own, with fields behind the known ones and without the last. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

struct bpf_map_def { unsigned type, key_size, value_size, max_entries, map_flags; };
struct short_def { unsigned type, key_size, value_size, max_entries; };
struct long_def { struct bpf_map_def known; unsigned id, pinning; char namespace[8]; };

struct bpf_map_def counts SEC("maps") = {
	.type = BPF_MAP_TYPE_HASH, .key_size = 4, .value_size = 8, .max_entries = 100, .map_flags = BPF_F_NO_PREALLOC,
};
struct bpf_map_def totals SEC("maps") = {
	.type = BPF_MAP_TYPE_PERCPU_ARRAY, .key_size = 4, .value_size = 16, .max_entries = 2,
};
struct short_def events SEC("maps/events") = { .type = BPF_MAP_TYPE_PERF_EVENT_ARRAY, .key_size = 4, .value_size = 4 };
struct long_def stacks SEC("maps/stacks") = {
	.known = { .type = BPF_MAP_TYPE_STACK_TRACE, .key_size = 4, .value_size = 80, .max_entries = 64 },
	.pinning = 2, .namespace = "shared",
};

SEC("kprobe/vfs_read")
int old(void *context)
{
	int key = 1;
	long *count = bpf_map_lookup_elem(&counts, &key);
	long *total = bpf_map_lookup_elem(&totals, &key);
	if (count && total)
		*total += *count;
	key = bpf_get_stackid(context, &stacks, 0);
	return bpf_perf_event_output(context, &events, BPF_F_CURRENT_CPU, &key, sizeof key);
}
