/* Fields that are larger, smaller or something else in the kernel; types that match it and that do not; its arrays. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

char LICENSE[] SEC("license") = "GPL";

#define CORE __attribute__((preserve_access_index))

struct list_head { struct list_head *next, *prev; } CORE;
struct hlist_node { struct hlist_node *next, **pprev; } CORE;
struct hlist_head { struct hlist_node *first; } CORE;

/* In the kernel pid is an int, flags an unsigned int, comm an array of 16, start_time of 64 bits. */
struct task_struct { long long pid; unsigned long long flags; char comm[16]; unsigned start_time; } CORE;
struct task_struct___2 { struct list_head pid; unsigned char flags; int comm; struct list_head tasks; } CORE;
struct task_struct___3 { char comm[1]; unsigned in_execve : 1; unsigned sched_reset_on_fork : 3; struct { int tgid; }; } CORE;
struct mm_struct { unsigned long saved_auxv[1]; struct { unsigned long total_vm; }; } CORE;
struct sk_buff { struct { unsigned char pkt_type : 3, ignore_df : 1; }; unsigned short protocol; unsigned char cb[0]; } CORE;
struct cgroup { unsigned long ancestors[0]; } CORE;

struct list_head___same { struct list_head *next, *prev; };
struct list_head___less { struct list_head *prev; };
struct list_head___more { struct list_head *next, *prev, *third; };
struct list_head___unlike { struct list_head *next; int prev; };
struct hlist_head___forward { struct hlist_node *first; };
union list_head___union { struct list_head *next; };
enum pid_type { PIDTYPE_PID = 5, PIDTYPE_TGID };
enum pid_type___less { PIDTYPE_PID___less };
enum pid_type___more { PIDTYPE_PID___more, PIDTYPE_NOBODY___more };
enum pid_type___wide { PIDTYPE_SID___wide = 0x100000000ULL };
enum bpf_attach_type___mine { BPF_TRACE_FENTRY___mine = 1000 };
typedef int (*work_func_t)(void *work);
typedef void (*smp_call_func_t)(void *info);
typedef int (*smp_call_func_t___unlike)(void *info, int more);

SEC("raw_tp/1")
long resized(struct task_struct *task)
{
	struct task_struct___2 *second = (void *)task;
	long sum = 0;
	if (bpf_core_field_size(task->pid) == 8)
		sum += task->pid;
	sum += task->flags + second->flags + task->start_time;
	if (bpf_core_field_exists(second->comm))
		sum += second->comm;
	sum += bpf_core_field_exists(second->pid);
	sum += (long)second->tasks.prev;
	return sum;
}

SEC("raw_tp/2")
long arrays(struct mm_struct *memory)
{
	struct sk_buff *packet = (void *)memory;
	struct task_struct *task = (void *)memory;
	struct task_struct___3 *third = (void *)memory;
	struct cgroup *group = (void *)memory;
	long sum = task->comm[3] + task[1].comm[2] + third->comm[0];
	sum += memory->total_vm + memory->saved_auxv[0] + third->tgid;
	sum += packet->protocol + packet->cb[5] + group->ancestors[2];
	sum += bpf_core_field_size(task->comm[2]) + bpf_core_field_offset(task->comm[7]);
	return sum;
}

SEC("raw_tp/3")
long bits(struct sk_buff *packet)
{
	struct task_struct___3 *task = (void *)packet;
	long sum = BPF_CORE_READ_BITFIELD(packet, pkt_type) + BPF_CORE_READ_BITFIELD(packet, ignore_df);
	sum += BPF_CORE_READ_BITFIELD_PROBED(task, sched_reset_on_fork);
	if (bpf_core_field_exists(task->in_execve))
		sum += BPF_CORE_READ_BITFIELD(task, in_execve);
	return sum;
}

SEC("raw_tp/4")
long matches(void *context)
{
	long sum = bpf_core_type_matches(struct list_head);
	sum = sum * 2 + bpf_core_type_matches(struct list_head___same);
	sum = sum * 2 + bpf_core_type_matches(struct list_head___less);
	sum = sum * 2 + bpf_core_type_matches(struct list_head___more);
	sum = sum * 2 + bpf_core_type_matches(struct list_head___unlike);
	sum = sum * 2 + bpf_core_type_matches(struct hlist_head___forward);
	sum = sum * 2 + bpf_core_type_matches(union list_head___union);
	sum = sum * 2 + bpf_core_type_matches(enum pid_type);
	sum = sum * 2 + bpf_core_type_matches(enum pid_type___less);
	sum = sum * 2 + bpf_core_type_matches(enum pid_type___more);
	sum = sum * 2 + bpf_core_type_matches(enum pid_type___wide);
	sum = sum * 2 + bpf_core_type_matches(struct task_struct);
	sum = sum * 2 + bpf_core_type_matches(work_func_t);
	sum = sum * 2 + bpf_core_type_matches(smp_call_func_t);
	return sum;
}

SEC("raw_tp/5")
long exist(void *context)
{
	long sum = bpf_core_type_exists(struct list_head___more);
	sum = sum * 2 + bpf_core_type_exists(union list_head___union);
	sum = sum * 2 + bpf_core_type_exists(work_func_t);
	sum = sum * 2 + bpf_core_type_exists(smp_call_func_t);
	sum = sum * 2 + bpf_core_type_exists(smp_call_func_t___unlike);
	sum += bpf_core_type_size(struct list_head___more) + bpf_core_type_size(struct task_struct___3);
	sum += bpf_core_enum_value(enum pid_type, PIDTYPE_PID);
	sum += bpf_core_enum_value(enum bpf_attach_type___mine, BPF_TRACE_FENTRY___mine);
	sum += bpf_core_enum_value_exists(enum pid_type___wide, PIDTYPE_SID___wide);
	return sum;
}
