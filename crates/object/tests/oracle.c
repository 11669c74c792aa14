/* Says what libbpf makes of an object file: its maps, and the instructions of each program as they go to the kernel.
 *
 * libbpf's own calls of bpf() come through the `syscall` below. A program that it loads is written down, and a small one
 * goes to the kernel in its place, so that the verifier has no say. Maps are as the kernel says that it made them.
 */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <dlfcn.h>
#include <linux/bpf.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct bpf_object *object;

static long forward(long number, long a, long b, long c, long d, long e, long f)
{
	long (*next)(long, ...) = dlsym(RTLD_NEXT, "syscall");
	return next(number, a, b, c, d, e, f);
}

static const char *known(const char *name)
{
	struct bpf_program *program;
	bpf_object__for_each_program(program, object)
		if (!strncmp(bpf_program__name(program), name, BPF_OBJ_NAME_LEN - 1))
			return bpf_program__name(program);
	return NULL;
}

static void words(uint64_t from, unsigned size)
{
	const uint8_t *bytes = (void *)(uintptr_t)from;
	printf("x");
	for (unsigned i = 0; i < size; i++)
		printf("%02x", bytes[i]);
	printf(" ");
}

static long load(union bpf_attr *attr)
{
	const char *name = object ? known(attr->prog_name) : NULL;
	if (!name)
		return -1;
	printf("program %s %u %u %u ", attr->prog_name, attr->prog_type, attr->expected_attach_type, attr->prog_flags);
	const uint8_t *insns = (void *)(uintptr_t)attr->insns;
	for (unsigned i = 0; i < attr->insn_cnt * 8; i++)
		printf("%02x", insns[i]);
	printf(" %u ", attr->attach_btf_id);
	words(attr->func_info, attr->func_info_cnt * attr->func_info_rec_size);
	words(attr->line_info, attr->line_info_cnt * attr->line_info_rec_size);
	printf("\n");
	struct bpf_insn small[] = { { .code = 0xb7 }, { .code = 0x95 } };
	return bpf_prog_load(BPF_PROG_TYPE_SOCKET_FILTER, "small", "GPL", small, 2, NULL);
}

long syscall(long number, ...)
{
	va_list list;
	va_start(list, number);
	long a[6];
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	if (number == SYS_bpf && a[0] == BPF_PROG_LOAD) {
		long fd = load((union bpf_attr *)a[1]);
		if (fd >= 0)
			return fd;
	}
	if (number == SYS_bpf && a[0] == BPF_BTF_LOAD && object) {
		union bpf_attr *attr = (void *)a[1];
		printf("types ");
		words(attr->btf, attr->btf_size);
		printf("\n");
	}
	return forward(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* The place of the map or program with an id. */
static int place(int is_program, uint32_t id)
{
	struct bpf_program *program;
	struct bpf_map *map;
	int at = 0;
	if (is_program) {
		bpf_object__for_each_program(program, object) {
			struct bpf_prog_info info = {};
			uint32_t size = sizeof info;
			if (!bpf_obj_get_info_by_fd(bpf_program__fd(program), &info, &size) && info.id == id)
				return at;
			at++;
		}
	} else {
		bpf_object__for_each_map(map, object) {
			struct bpf_map_info info = {};
			uint32_t size = sizeof info;
			if (!bpf_obj_get_info_by_fd(bpf_map__fd(map), &info, &size) && info.id == id)
				return at;
			at++;
		}
	}
	return -1;
}

/* What a map holds that libbpf has put there: variables, programs, maps. */
static void contents(int fd, const struct bpf_map_info *info)
{
	static uint8_t value[1 << 20];
	int is_program = info->type == BPF_MAP_TYPE_PROG_ARRAY;
	if (info->type == BPF_MAP_TYPE_ARRAY && info->max_entries == 1 && info->value_size <= sizeof value) {
		uint32_t zero = 0;
		if (!bpf_map_lookup_elem(fd, &zero, value)) {
			printf("value %d ", fd);
			words((uintptr_t)value, info->value_size);
			printf("\n");
		}
	}
	if (is_program || info->type == BPF_MAP_TYPE_ARRAY_OF_MAPS) {
		for (uint32_t index = 0, id; index < info->max_entries; index++)
			if (!bpf_map_lookup_elem(fd, &index, &id))
				printf("element %d %u %d\n", fd, index, place(is_program, id));
	}
}

static void made(const struct bpf_map *map)
{
	struct bpf_map_info info = {};
	uint32_t size = sizeof info;
	int fd = bpf_map__fd(map);
	if (bpf_map__type(map) == BPF_MAP_TYPE_STRUCT_OPS || bpf_obj_get_info_by_fd(fd, &info, &size))
		return;
	printf("made %d %u %u %u %u %u %llu %u %u\n", fd, info.type, info.key_size, info.value_size, info.max_entries,
	       info.map_flags, (unsigned long long)info.map_extra, info.btf_key_type_id, info.btf_value_type_id);
	contents(fd, &info);
}

/* As tools do once they run, where the file leaves something open that libbpf does not decide. */
static void complete(struct bpf_map *map)
{
	switch (bpf_map__type(map)) {
	case BPF_MAP_TYPE_STACK_TRACE:
		bpf_map__set_value_size(map, 127 * 8);
		break;
	case BPF_MAP_TYPE_PERF_EVENT_ARRAY:
	case BPF_MAP_TYPE_CGROUP_STORAGE:
	case BPF_MAP_TYPE_SK_STORAGE:
	case BPF_MAP_TYPE_INODE_STORAGE:
	case BPF_MAP_TYPE_TASK_STORAGE:
	case 32: /* BPF_MAP_TYPE_CGRP_STORAGE */
		return;
	}
	if (!bpf_map__max_entries(map))
		bpf_map__set_max_entries(map, 1);
}

int main(int count, char **words)
{
	struct bpf_program *program;
	struct bpf_map *map;
	if (count == 1) { /* sections on stdin */
		char name[256];
		libbpf_set_print(NULL);
		while (fgets(name, sizeof name, stdin)) {
			enum bpf_prog_type type = 0;
			enum bpf_attach_type attach = 0;
			name[strcspn(name, "\n")] = 0;
			if (!libbpf_prog_type_by_name(name, &type, &attach))
				printf("%s %d %d\n", name, type, attach);
		}
		return 0;
	}
	if (!strcmp(words[1], "--version")) {
		printf("%u %u\n", libbpf_major_version(), libbpf_minor_version());
		return 0;
	}
	object = bpf_object__open_file(words[1], NULL);
	if (!object)
		return 1;
	bpf_object__for_each_program(program, object) {
		bpf_program__set_autoload(program, true);
		/* What tools name once they run. */
		if (!strncmp(bpf_program__section_name(program), "fe", 2))
			bpf_program__set_attach_target(program, 0, "vfs_read");
	}
	bpf_object__for_each_map(map, object) {
		bpf_map__set_pin_path(map, NULL);
		bpf_map__set_autocreate(map, true);
		printf("map %s %u\n", bpf_map__name(map), bpf_map__type(map));
		complete(map);
	}
	int failed = bpf_object__load(object);
	bpf_object__for_each_map(map, object)
		made(map);
	return failed ? 2 : 0;
}
