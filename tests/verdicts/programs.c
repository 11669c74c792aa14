/* Programs on which verifiers are easily of two minds; each is judged by the kernel and by Beeline. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define noinline __attribute__((noinline))

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 3);
	__uint(key_size, 4);
	__uint(value_size, 4);
} programs SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_SOCKMAP);
	__uint(max_entries, 4);
	__type(key, int);
	__type(value, __u64);
} sockets SEC(".maps");

static noinline int next_program(struct __sk_buff *packet, int which)
{
	if (which & 1)
		bpf_tail_call(packet, &programs, which & 2);
	else
		bpf_tail_call_static(packet, &programs, 1);
	return which;
}

/* Where the call succeeds, another program's end is the function's; so that is looked at first. */
SEC("tc")
int tail_calls_in_a_function(struct __sk_buff *packet)
{
	void *data = (void *)(long)packet->data, *end = (void *)(long)packet->data_end;
	if (data + 20 > end)
		return 0;
	return next_program(packet, packet->len) + next_program(packet, packet->mark);
}

SEC("tc")
int packet_after_a_tail_call(struct __sk_buff *packet)
{
	char *data = (void *)(long)packet->data, *end = (void *)(long)packet->data_end;
	if (data + 20 > end)
		return 0;
	return next_program(packet, packet->len) + data[3];
}

/* A constant becomes part of the jump, so paths with other constants are not alike. */
SEC("tc")
int tail_calls_by_constants(struct __sk_buff *packet)
{
	int which = 1;
	if (packet->mark == 5678)
		which = 2;
	if (packet->mark == 1234)
		which = 0;
	bpf_tail_call(packet, &programs, which);
	return 3;
}

static int tail_call_back(__u32 turn, void *context)
{
	bpf_tail_call(*(void **)context, &programs, 1);
	return 0;
}

SEC("tc")
int tail_call_in_a_callback(struct __sk_buff *packet)
{
	void *context = packet;
	bpf_loop(4, tail_call_back, &context, 0);
	return 0;
}

unsigned long long load_byte(void *packet, unsigned long long off) asm("llvm.bpf.load.byte");

static noinline int two_bytes(struct __sk_buff *packet, int off)
{
	int first = load_byte(packet, 12);
	return first + load_byte(packet, off) + off;
}

/* Where the packet ends too early the function does, with 0. */
SEC("tc")
int bytes_in_a_function(struct __sk_buff *packet)
{
	return two_bytes(packet, 7) + two_bytes(packet, packet->len) + load_byte(packet, 3);
}

/* Sockets from a map and from a look-up are not alike, though both may be released. */
SEC("tc")
int sockets_from_two_places(struct __sk_buff *packet)
{
	struct bpf_sock_tuple tuple = {};
	struct bpf_sock *found;
	int key = 0, result = 2;
	if (packet->mark & 1)
		found = bpf_map_lookup_elem(&sockets, &key);
	else
		found = bpf_sk_lookup_udp(packet, &tuple, sizeof(tuple.ipv4), BPF_F_CURRENT_NETNS, 0);
	if (!found)
		return 0;
	if (packet->mark & 2)
		result = bpf_sk_assign(packet, found, 0);
	bpf_sk_release(found);
	return result == 0;
}

struct timed {
	struct bpf_timer timer;
	long count;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 2);
	__type(key, int);
	__type(value, struct timed);
} timers SEC(".maps");

static int second(void *map, int *key, struct timed *value);

static int first(void *map, int *key, struct timed *value)
{
	value->count++;
	bpf_timer_set_callback(&value->timer, second);
	bpf_timer_start(&value->timer, 1000, 0);
	return 0;
}

static int second(void *map, int *key, struct timed *value)
{
	value->count += 2;
	bpf_timer_set_callback(&value->timer, first);
	bpf_timer_start(&value->timer, 1000, 0);
	return 0;
}

/* Callbacks that set each other: every one is looked at once. */
SEC("tc")
int timers_that_go_on(struct __sk_buff *packet)
{
	int key = 0;
	struct timed *value = bpf_map_lookup_elem(&timers, &key);
	if (!value)
		return 0;
	bpf_timer_init(&value->timer, &timers, 1);
	bpf_timer_set_callback(&value->timer, first);
	bpf_timer_start(&value->timer, 0, 0);
	return 0;
}

static const char nothing[10];

SEC("raw_tp/sys_enter")
int more_arguments_than_conversions(void *context)
{
	unsigned long long number = 42;
	bpf_snprintf(0, 0, nothing, &number, sizeof(number));
	return 0;
}

extern void *bpf_cpumask_create(void) __ksym __attribute__((weak));

/* Not called, but asked for. */
SEC("raw_tp/sys_enter")
int address_of_a_kernel_function(void *context)
{
	return bpf_cpumask_create ? 1 : 2;
}

struct bpf_user_pt_regs_t {};

char stack[64];

__attribute__((weak)) int of_registers(struct bpf_user_pt_regs_t *context)
{
	return bpf_get_stack(context, &stack, sizeof(stack), 0);
}

SEC("kprobe")
int registers_by_the_name_of_their_type(void *context)
{
	return of_registers(context);
}

SEC("no such section")
int without_a_type(void *context)
{
	return 0;
}

struct {
	__uint(type, BPF_MAP_TYPE_STACK_TRACE);
	__uint(max_entries, 4);
	__uint(key_size, 4);
	__uint(value_size, 64);
} stacks SEC(".maps");

SEC("syscall")
int asleep_with_a_map_of_stacks(void *context)
{
	int key = 0;
	return bpf_map_lookup_elem(&stacks, &key) ? 1 : 2;
}

SEC("syscall")
int asleep_with_an_array(void *context)
{
	int key = 0;
	return bpf_map_lookup_elem(&timers, &key) ? 1 : 2;
}

extern void bpf_throw(__u64 cookie) __ksym;

static int throw_back(__u32 turn, void *context)
{
	bpf_throw(turn);
	return 0;
}

SEC("tc")
int exception_in_a_callback(struct __sk_buff *packet)
{
	bpf_loop(4, throw_back, 0, 0);
	return 0;
}

char LICENSE[] SEC("license") = "GPL";
