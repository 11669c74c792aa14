/* Options of the kernel's configuration of every type; symbols, variables and functions that it has, and that it has not. */
#include <linux/bpf.h>
#include <stdbool.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

/* Those that every kernel with BPF has, and what few have. */
extern unsigned LINUX_KERNEL_VERSION __kconfig;
extern bool LINUX_HAS_BPF_COOKIE __kconfig __weak;
extern bool CONFIG_BPF_SYSCALL __kconfig;
extern enum libbpf_tristate CONFIG_BPF_JIT __kconfig __weak;
extern char CONFIG_BPF __kconfig;
extern unsigned short CONFIG_HZ __kconfig __weak;
extern long long CONFIG_LOG_BUF_SHIFT __kconfig __weak;
extern unsigned long CONFIG_PHYSICAL_START __kconfig __weak;
extern char CONFIG_CC_VERSION_TEXT[7] __kconfig __weak;
extern char CONFIG_DEFAULT_HOSTNAME[40] __kconfig __weak;

extern bool CONFIG_NO_SUCH_BOOL __kconfig __weak;
extern enum libbpf_tristate CONFIG_NO_SUCH_TRISTATE __kconfig __weak;
extern char CONFIG_NO_SUCH_CHAR __kconfig __weak;
extern char CONFIG_NO_SUCH_TEXT[5] __kconfig __weak;
extern short CONFIG_NO_SUCH_SHORT __kconfig __weak;
extern unsigned long CONFIG_NO_SUCH_LONG __kconfig __weak;

struct task_struct { int pid; };
struct rq { int cpu; };
struct no_such;

extern const void bpf_prog_put __ksym;
extern const void vfs_read __ksym __weak;
extern const void no_such_symbol __ksym __weak;
extern const int bpf_prog_active __ksym;
extern const struct rq runqueues __ksym __weak;
extern const struct no_such no_such_variable __ksym __weak;
extern void bpf_rcu_read_lock(void) __ksym;
extern void bpf_rcu_read_unlock(void) __ksym __weak;
extern struct task_struct *bpf_task_from_pid(int pid) __ksym __weak;
extern struct no_such *no_such_function(const struct no_such *it, int number) __ksym __weak;

SEC("raw_tp/sys_enter")
long options(void *context)
{
	long sum = LINUX_KERNEL_VERSION + LINUX_HAS_BPF_COOKIE + CONFIG_BPF_SYSCALL + CONFIG_BPF_JIT + CONFIG_BPF;
	sum += CONFIG_HZ + CONFIG_LOG_BUF_SHIFT + CONFIG_PHYSICAL_START;
	sum += CONFIG_CC_VERSION_TEXT[3] + CONFIG_DEFAULT_HOSTNAME[2];
	if (CONFIG_NO_SUCH_BOOL || CONFIG_NO_SUCH_TRISTATE == TRI_MODULE)
		sum *= 3;
	return sum + CONFIG_NO_SUCH_CHAR + CONFIG_NO_SUCH_TEXT[1] + CONFIG_NO_SUCH_SHORT + CONFIG_NO_SUCH_LONG;
}

SEC("raw_tp/sys_exit")
long symbols(void *context)
{
	long sum = (long)&bpf_prog_put + (long)&vfs_read;
	const struct rq *queue = bpf_per_cpu_ptr(&runqueues, 0);
	if (&no_such_symbol || &no_such_variable)
		sum += (long)&no_such_symbol + (long)&no_such_variable;
	return sum + *(int *)bpf_this_cpu_ptr(&bpf_prog_active) + (queue ? 1 : 0);
}

SEC("fentry/bpf_fentry_test1")
long functions(void *context)
{
	bpf_rcu_read_lock();
	if (bpf_rcu_read_unlock)
		bpf_rcu_read_unlock();
	if (no_such_function)
		return !no_such_function(0, 1);
	return bpf_task_from_pid ? 0 : 1;
}
