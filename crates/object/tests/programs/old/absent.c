/* Externs that are not there and have to be, for which libbpf refuses the whole file: one program needs each, and one none of them. And
 * programs for structures of functions that the kernel does not have. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

struct bpf_dummy_ops_state;
struct bpf_dummy_ops { int (*no_such_member)(struct bpf_dummy_ops_state *); };
struct no_such_ops { int (*first)(void); };

extern int CONFIG_NO_SUCH_OPTION __kconfig;
extern int CONFIG_CC_VERSION_TEXT __kconfig;
extern const void no_such_symbol __ksym;
extern int no_such_function(int number) __ksym;
extern int bpf_rcu_read_lock(long number) __ksym;

SEC("syscall")
int option(void *context)
{
	return CONFIG_NO_SUCH_OPTION;
}

SEC("syscall")
int option_of_another_type(void *context)
{
	return CONFIG_CC_VERSION_TEXT;
}

SEC("syscall")
int symbol(void *context)
{
	return &no_such_symbol != context;
}

SEC("syscall")
int function(void *context)
{
	return no_such_function(1);
}

SEC("syscall")
int function_of_another_type(void *context)
{
	return bpf_rcu_read_lock(1);
}

SEC("syscall")
int without(void *context)
{
	return 0;
}

SEC("struct_ops")
int of_no_struct(__u64 *context)
{
	return 0;
}

SEC("struct_ops")
int of_no_member(__u64 *context)
{
	return 0;
}

SEC(".struct_ops")
struct no_such_ops first = { .first = (void *)of_no_struct };

SEC(".struct_ops")
struct bpf_dummy_ops second = { .no_such_member = (void *)of_no_member };
