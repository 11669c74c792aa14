/* Maps that the kernel hands to an iterator: pointers to its own structure, which may stand for a map where they are trusted. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

#define __arena __attribute__((address_space(1)))
#define preserved __attribute__((preserve_access_index))

char LICENSE[] SEC("license") = "GPL";

struct bpf_map { __u32 max_entries; struct bpf_map *inner_map_meta; } preserved;
struct seq_file;
struct bpf_iter_meta { struct seq_file *seq; } preserved;
struct bpf_iter__bpf_map { struct bpf_iter_meta *meta; struct bpf_map *map; } preserved;

void __arena *bpf_arena_alloc_pages(void *map, void __arena *address, __u32 pages, int node, __u64 flags) __ksym __weak;

SEC("iter.s/bpf_map")
int a_map(struct bpf_iter__bpf_map *context)
{
	struct bpf_map *map = context->map;
	if (map)
		bpf_arena_alloc_pages(map, 0, map->max_entries, 0, 0);
	return 0;
}

SEC("iter.s/bpf_map")
int another_structure(struct bpf_iter__bpf_map *context)
{
	bpf_arena_alloc_pages((void *)context->meta->seq, 0, 1, 0, 0);
	return 0;
}

SEC("iter.s/bpf_map")
int one_that_is_not_trusted(struct bpf_iter__bpf_map *context)
{
	struct bpf_map *map = context->map;
	if (map)
		bpf_arena_alloc_pages(map->inner_map_meta, 0, 1, 0, 0);
	return 0;
}

SEC("iter.s/bpf_map")
int a_number(struct bpf_iter__bpf_map *context)
{
	bpf_arena_alloc_pages((void *)1, 0, 1, 0, 0);
	return 0;
}
