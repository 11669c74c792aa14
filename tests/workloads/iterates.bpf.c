/* A map of many elements, an iterator over them, and a program that uses the map. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

/* As the kernel has them, wherever that is. */
struct seq_file;
struct bpf_iter_meta {
	struct seq_file *seq;
	__u64 session_id;
	__u64 seq_num;
} __attribute__((preserve_access_index));

struct bpf_iter__bpf_map_elem {
	struct bpf_iter_meta *meta;
	void *key;
	void *value;
} __attribute__((preserve_access_index));

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 100000);
	__type(key, __u32);
	__type(value, __u64);
} numbers SEC(".maps");

static const char element_format[] = "%u: %llu\n";

SEC("iter/bpf_map_elem")
int elements(struct bpf_iter__bpf_map_elem *context)
{
	__u32 *key = context->key;
	__u64 *value = context->value;

	if (key && value) {
		__u64 data[] = { *key, *value };

		bpf_seq_printf(context->meta->seq, element_format, sizeof(element_format), data, sizeof(data));
	}
	return 0;
}

SEC("raw_tp/sys_enter")
int count(void *context)
{
	__u32 key = 0;
	__u64 *value = bpf_map_lookup_elem(&numbers, &key);

	if (value)
		__sync_fetch_and_add(value, 0);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
