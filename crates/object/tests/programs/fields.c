/* Each kind of relocation to the kernel's types. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

char LICENSE[] SEC("license") = "GPL";

#define CORE __attribute__((preserve_access_index))

struct list_head { struct list_head *next; } CORE;
struct task_struct { int pid; char comm[16]; struct list_head tasks; unsigned sched_reset_on_fork : 1; int gone; } CORE;
struct task_struct___other { int tgid; } CORE;
struct no_such_struct { int field; } CORE;
enum pid_type { PIDTYPE_TGID = 77, PIDTYPE_NONE = 9 };
enum no_such_enum { NO_SUCH = 3 };

SEC("raw_tp/sys_enter")
long fields(struct task_struct *task)
{
	long sum = 0;
	sum += bpf_core_field_exists(task->pid) + bpf_core_field_exists(task->gone);
	sum += bpf_core_field_size(task->comm) + bpf_core_field_offset(task->tasks.next);
	sum += BPF_CORE_READ_BITFIELD_PROBED(task, sched_reset_on_fork);
	sum += BPF_CORE_READ((struct task_struct___other *)task, tgid);
	if (bpf_core_field_exists(task->gone))
		sum += BPF_CORE_READ(task, gone);
	return sum;
}

SEC("raw_tp/sys_exit")
long types(void *context)
{
	long sum = bpf_core_type_exists(struct task_struct) + bpf_core_type_exists(struct no_such_struct);
	sum += bpf_core_type_size(struct list_head);
	if (bpf_core_type_exists(struct no_such_struct))
		sum += bpf_core_type_size(struct no_such_struct);
	sum += bpf_core_type_id_kernel(struct task_struct) + bpf_core_type_id_local(struct list_head);
	sum += bpf_core_enum_value_exists(enum pid_type, PIDTYPE_TGID);
	sum += bpf_core_enum_value_exists(enum pid_type, PIDTYPE_NONE);
	sum += bpf_core_enum_value(enum pid_type, PIDTYPE_TGID);
	sum += bpf_core_enum_value_exists(enum no_such_enum, NO_SUCH);
	return sum;
}
