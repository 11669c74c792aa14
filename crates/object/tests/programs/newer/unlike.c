/* Functions of the kernel's under names of the file's own; weak ones whose parameters are others than the kernel's, which counts as if
 * the kernel did not have them; structures of functions that nobody makes unless he is told. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

struct task_struct { int pid; };
struct bpf_dummy_ops_state;

extern struct task_struct *bpf_task_from_pid___now(int pid) __ksym __weak;
extern struct task_struct *bpf_task_from_pid___then(int pid, long flags) __ksym __weak;
extern void bpf_task_release___other(int task) __ksym __weak;
extern void bpf_task_release(struct task_struct *task) __ksym;

struct bpf_dummy_ops___mine {
	int (*test_1)(struct bpf_dummy_ops_state *);
};

SEC("syscall")
int chosen(void *context)
{
	struct task_struct *task = 0;
	if (bpf_task_from_pid___then)
		task = bpf_task_from_pid___then(1, 0);
	else if (bpf_task_from_pid___now)
		task = bpf_task_from_pid___now(1);
	if (bpf_task_release___other)
		bpf_task_release___other(1);
	if (task)
		bpf_task_release(task);
	return 0;
}

SEC("struct_ops")
int linked(__u64 *context)
{
	return 1;
}

SEC("?struct_ops.s/test_1")
int asleep(__u64 *context)
{
	return 2;
}

SEC(".struct_ops.link")
struct bpf_dummy_ops___mine first = { .test_1 = (void *)linked };

SEC("?.struct_ops.link")
struct bpf_dummy_ops___mine second = { .test_1 = (void *)asleep };
