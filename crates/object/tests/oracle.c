/* Says what libbpf makes of an object file: its maps, and the instructions of each program as they go to the kernel.
 *
 * libbpf's own calls of bpf() come through the `syscall` below. A program that it loads is written down, and a small one
 * goes to the kernel in its place, so that the verifier has no say.
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
		printf("map %s %u %u %u %u %u\n", bpf_map__name(map), bpf_map__type(map), bpf_map__key_size(map),
		       bpf_map__value_size(map), bpf_map__max_entries(map), bpf_map__map_flags(map));
		/* What tools set once they run. */
		if (bpf_map__type(map) == BPF_MAP_TYPE_STACK_TRACE)
			bpf_map__set_value_size(map, 127 * 8);
		if (!bpf_map__max_entries(map))
			bpf_map__set_max_entries(map, 1);
	}
	int failed = bpf_object__load(object);
	bpf_object__for_each_map(map, object)
		printf("fd %d\n", bpf_map__fd(map));
	return failed ? 2 : 0;
}
