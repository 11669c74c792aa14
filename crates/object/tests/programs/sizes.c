/* Maps whose size the file leaves open, rings of sizes that no kernel takes, and what maps hold from the start. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

#define STORAGE(name, kind) \
	struct { \
		__uint(type, kind); \
		__uint(map_flags, BPF_F_NO_PREALLOC); \
		__type(key, int); \
		__type(value, struct stored); \
	} name SEC(".maps")

struct stored { long count; char text[12]; };

STORAGE(of_task, BPF_MAP_TYPE_TASK_STORAGE);
STORAGE(of_socket, BPF_MAP_TYPE_SK_STORAGE);
STORAGE(of_inode, BPF_MAP_TYPE_INODE_STORAGE);
STORAGE(of_cgroup, 32); /* BPF_MAP_TYPE_CGRP_STORAGE, which older headers do not have */

struct {
	__uint(type, BPF_MAP_TYPE_CGROUP_STORAGE);
	__type(key, struct bpf_cgroup_storage_key);
	__type(value, struct stored);
} old_of_cgroup SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(key_size, sizeof(int));
	__uint(value_size, sizeof(int));
} events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERF_EVENT_ARRAY);
	__uint(max_entries, 3);
	__type(key, int);
	__type(value, int);
} few_events SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1);
} smallest_ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 5 * 4096);
} odd_ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_USER_RINGBUF);
	__uint(max_entries, 4097);
} user_ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_BLOOM_FILTER);
	__uint(max_entries, 1000);
	__uint(map_extra, 7);
	__uint(value_size, 24);
} seen SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC | BPF_F_RDONLY_PROG);
	__uint(max_entries, 9);
	__type(key, struct { __u32 bits; __u8 address[16]; });
	__type(value, int);
} routes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_QUEUE);
	__uint(max_entries, 10);
	__type(value, struct stored);
} waiting SEC(".maps");

struct inner_ring {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} first_ring SEC(".maps"), second_ring SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH_OF_MAPS);
	__uint(max_entries, 6);
	__uint(key_size, 4);
	__array(values, struct inner_ring);
} by_number SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY_OF_MAPS);
	__uint(max_entries, 5);
	__uint(key_size, 4);
	__array(values, struct inner_ring);
} by_place SEC(".maps") = { .values = { [4] = &first_ring, [1] = &second_ring } };

int counted(void *context);

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(key_size, 4);
	__uint(max_entries, 4);
	__array(values, int(void *));
} jumps SEC(".maps") = { .values = { [3] = (void *)&counted, [0] = (void *)&counted } };

const volatile char greeting[] = "a constant of a section";
volatile const long numbers[3] SEC(".rodata.numbers") = { 1, -2, 3 };
volatile unsigned short halves[5] SEC(".data.halves") = { 5, 4, 3, 2, 1 };
volatile long nothing SEC(".bss.of_own");

SEC("raw_tp/sys_enter")
int counted(void *context)
{
	int zero = 0;
	bpf_perf_event_output(context, &events, BPF_F_CURRENT_CPU, &zero, 4);
	bpf_perf_event_output(context, &few_events, 2, &zero, 4);
	bpf_ringbuf_output(&smallest_ring, &zero, 4, 0);
	bpf_ringbuf_output(&odd_ring, &zero, 4, 0);
	bpf_tail_call(context, &jumps, 3);
	nothing += greeting[halves[2] & 15] + numbers[1];
	return 0;
}

SEC("cgroup_skb/egress")
int stored(struct __sk_buff *packet)
{
	struct stored *own = bpf_get_local_storage(&old_of_cgroup, 0);
	struct stored *of_other = packet->sk ? bpf_sk_storage_get(&of_socket, packet->sk, 0, 1) : 0;
	own->count += of_other ? of_other->count : 1;
	return 1;
}
