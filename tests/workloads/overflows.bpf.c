/* An iterator over a map whose text about one element is longer than the kernel has room for. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

enum { TOO_LONG = 500, PIECES = 1000 };

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

static const char format[] = "%u\n";

SEC("iter/bpf_map_elem")
int overflows(struct bpf_iter__bpf_map_elem *context)
{
	struct seq_file *seq = context->meta->seq;
	__u32 *key = context->key;
	char piece[64] = {};

	if (!key)
		return 0;
	__u64 number = *key;
	if (number == TOO_LONG)
		for (int i = 0; i < PIECES; i++)
			bpf_seq_write(seq, piece, sizeof(piece));
	else
		bpf_seq_printf(seq, format, sizeof(format), &number, sizeof(number));
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
