/* Structures of functions that programs stand in for: members in another order than the kernel's, a program in two of them, and
 * members without one. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

struct sock;
struct bpf_dummy_ops_state;

struct tcp_congestion_ops {
	char name[16];
	__u32 (*undo_cwnd)(struct sock *);
	void (*cong_avoid)(struct sock *, __u32, __u32);
	__u32 (*ssthresh)(struct sock *);
	void (*init)(struct sock *);
	__u32 flags;
};

struct bpf_dummy_ops {
	int (*test_2)(struct bpf_dummy_ops_state *, int, unsigned short, char, unsigned long);
	int (*test_1)(struct bpf_dummy_ops_state *);
};

int calls;

SEC("struct_ops/of_any_name")
int threshold(__u64 *context)
{
	calls++;
	return 2;
}

SEC("struct_ops")
int avoid(__u64 *context)
{
	calls += context[1];
	return 0;
}

SEC("struct_ops/threshold")
int undo(__u64 *context)
{
	return 10;
}

SEC("struct_ops/test_2")
int dummy(__u64 *context)
{
	return context[1] + context[4];
}

SEC(".struct_ops")
struct tcp_congestion_ops first = {
	.ssthresh = (void *)threshold,
	.cong_avoid = (void *)avoid,
	.undo_cwnd = (void *)undo,
	.name = "first",
};

SEC(".struct_ops")
struct tcp_congestion_ops second = {
	.ssthresh = (void *)threshold,
	.cong_avoid = (void *)avoid,
	.undo_cwnd = (void *)undo,
	.name = "second",
};

SEC(".struct_ops")
struct bpf_dummy_ops third = { .test_2 = (void *)dummy };
