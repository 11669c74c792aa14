/* Maps whose elements a helper hands to a function of the program's, of each type that the helper may be given. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

char LICENSE[] SEC("license") = "GPL";

struct bpf_map;

static long see(struct bpf_map *map, const void *key, void *value, void *context)
{
	return 0;
}

#define OVER(name, kind, keys, flags) \
	struct { \
		__uint(type, BPF_MAP_TYPE_##kind); \
		__uint(max_entries, 4); \
		__uint(map_flags, flags); \
		__uint(key_size, keys); \
		__uint(value_size, 8); \
	} name##_map SEC(".maps"); \
	SEC("raw_tp/" #name) long name(void *context) \
	{ \
		return bpf_for_each_map_elem(&name##_map, see, 0, 0); \
	}

OVER(hash, HASH, 4, 0)
OVER(array, ARRAY, 4, 0)
OVER(hash_per_cpu, PERCPU_HASH, 4, 0)
OVER(array_per_cpu, PERCPU_ARRAY, 4, 0)
OVER(lru_hash, LRU_HASH, 4, 0)
OVER(lru_hash_per_cpu, LRU_PERCPU_HASH, 4, 0)
OVER(trie, LPM_TRIE, 8, BPF_F_NO_PREALLOC)
OVER(stack, STACK, 0, 0)
OVER(bloom, BLOOM_FILTER, 0, 0)
