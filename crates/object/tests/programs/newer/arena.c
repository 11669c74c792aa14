/* Memory that a program shares with its user: its pages, variables in it, and pointers that go from one view of it to the other. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define BPF_MAP_TYPE_ARENA 33
#define __arena __attribute__((address_space(1)))

char LICENSE[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_ARENA);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 16);
	enum { WHERE = 0x100000000000ull } map_extra;
} memory SEC(".maps");

struct node { struct node __arena *next; long number; };

struct node __arena head = { 0, 7 };
long __arena total;
volatile int outside = 5;

void __arena *bpf_arena_alloc_pages(void *map, void __arena *address, __u32 pages, int node, __u64 flags) __ksym __weak;

SEC("syscall")
int walk(void *context)
{
	struct node __arena *node = &head;
	for (int i = 0; i < 4 && node; i++) {
		total += node->number + outside;
		node = node->next;
	}
	return 0;
}

SEC("syscall")
int grow(void *context)
{
	struct node __arena *fresh = bpf_arena_alloc_pages(&memory, 0, 1, -1, 0);
	if (!fresh)
		return 1;
	fresh->next = head.next;
	struct node *plain = (struct node *)fresh;
	asm volatile("" : "+r"(plain));
	plain->number = 3;
	head.next = (struct node __arena *)plain;
	return 0;
}
