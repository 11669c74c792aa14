/* Fields and enumerators that the kernel's types do not have: one for each program but the last, also in what it calls. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>

#define CORE __attribute__((preserve_access_index))

char LICENSE[] SEC("license") = "GPL";

struct entity { long first; struct { long field; } no_such[3]; } CORE;
struct task_struct___own { int pid; long no_such_field; struct entity se; } CORE;
struct no_such_type { long field; } CORE;
enum pid_type { PIDTYPE_NO_SUCH = 7 };

SEC("raw_tp")
long field(struct task_struct___own *task)
{
	return task->pid + task->no_such_field;
}

SEC("raw_tp")
long inside(struct task_struct___own *task)
{
	return task->se.no_such[1].field;
}

static __noinline long of_other(struct no_such_type *it)
{
	return it->field;
}

SEC("raw_tp")
long called(struct no_such_type *it)
{
	return of_other(it);
}

SEC("raw_tp")
long enumerator(void *context)
{
	return bpf_core_enum_value(enum pid_type, PIDTYPE_NO_SUCH);
}

SEC("raw_tp")
long without(struct task_struct___own *task)
{
	return task->pid;
}
