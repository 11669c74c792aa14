/* Functions, callbacks, variables, elements of maps, options of the kernel, weak externs. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "Dual MIT/GPL";

struct inner {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 4);
	__type(key, int);
	__type(value, long);
} inner SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 2);
	__type(key, int);
	__array(values, struct inner);
} outer SEC(".maps") = { .values = { [1] = &inner } };

int next(void *context);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 3);
	__uint(key_size, 4);
	__array(values, int(void *));
} jumps SEC(".maps") = { .values = { [2] = (void *)&next } };

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 16);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct { int a; char b[6]; });
	__type(value, struct { long a[3]; });
} hash SEC(".maps");

extern int LINUX_KERNEL_VERSION __kconfig;
extern long CONFIG_THAT_IS_NOT __kconfig __weak;
extern _Bool CONFIG_NOR_THIS __kconfig __weak;
extern const void no_such_symbol __ksym __weak;
extern const int no_such_variable __ksym __weak;
extern void no_such_function(int) __ksym __weak;

const volatile int limit = 7;
static volatile const long secret = 5;
long counted = 3;
static volatile int hidden;
volatile int zeros[30];
volatile int own SEC(".data.own") = 8;

static __noinline int twice(int a)
{
	hidden += a;
	return a * 2 + zeros[a & 15];
}

__noinline int four_times(int a)
{
	return twice(a) + twice(a + 1);
}

static long each(__u32 index, void *context)
{
	counted += index + twice(index);
	return 0;
}

SEC("raw_tp/sys_enter")
int first(void *context)
{
	int key = 1;
	bpf_loop(limit, each, 0, 0);
	void *found = bpf_map_lookup_elem(&outer, &key);
	if (found)
		counted += secret + own;
	if (&no_such_symbol || &no_such_variable)
		return 1;
	if (no_such_function)
		no_such_function(3);
	bpf_tail_call(context, &jumps, 2);
	return four_times(LINUX_KERNEL_VERSION) + CONFIG_THAT_IS_NOT + CONFIG_NOR_THIS;
}

SEC("raw_tp/sys_enter")
int next(void *context)
{
	return four_times(2) + zeros[29];
}

SEC("?uprobe.s//bin/true:main")
int third(void *context)
{
	struct { int a; char b[6]; } key = {};
	return bpf_map_delete_elem(&hash, &key);
}
