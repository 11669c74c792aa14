/* Writes down each program that a tool loads; for LD_PRELOAD.
 *
 * A file for each call of BPF_PROG_LOAD goes to the directory $BEELINE_CAPTURE: lines of a word and what it says, bytes in
 * hexadecimal. So that the tool goes on to its next program, loads always succeed, and nothing is attached: probes are
 * /dev/null.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static long forward(long number, long a, long b, long c, long d, long e, long f)
{
	long (*next)(long, ...) = dlsym(RTLD_NEXT, "syscall");
	return next(number, a, b, c, d, e, f);
}

static long bpf(int command, union bpf_attr *attr)
{
	return forward(SYS_bpf, command, (long)attr, sizeof *attr, 0, 0, 0);
}

static long info(int fd, void *to, uint32_t size)
{
	union bpf_attr attr = { .info = { .bpf_fd = fd, .info_len = size, .info = (uintptr_t)to } };
	return bpf(BPF_OBJ_GET_INFO_BY_FD, &attr);
}

static void bytes(FILE *file, const char *what, const void *from, size_t size)
{
	const uint8_t *byte = from;
	fprintf(file, "%s ", what);
	for (size_t i = 0; i < size; i++)
		fprintf(file, "%02x", byte[i]);
	fprintf(file, "\n");
}

/* The type information behind a descriptor. */
static void types(FILE *file, int fd)
{
	struct bpf_btf_info about = {};
	if (info(fd, &about, sizeof about))
		return;
	void *data = malloc(about.btf_size);
	struct bpf_btf_info again = { .btf = (uintptr_t)data, .btf_size = about.btf_size };
	if (data && !info(fd, &again, sizeof again))
		bytes(file, "btf", data, about.btf_size);
	free(data);
}

/* The one value of a map that nobody can change any more. */
static void constant(FILE *file, int fd, const struct bpf_map_info *map)
{
	uint32_t key = 0;
	void *value = calloc(1, map->value_size);
	union bpf_attr attr = { .map_fd = fd, .key = (uintptr_t)&key, .value = (uintptr_t)value };
	if (value && !bpf(BPF_MAP_LOOKUP_ELEM, &attr))
		bytes(file, "constant", value, map->value_size);
	free(value);
}

/* Every map that an instruction names. */
static void maps(FILE *file, const struct bpf_insn *insns, unsigned count)
{
	for (unsigned i = 0; i + 1 < count; i++) {
		struct bpf_map_info map = {};
		int names_map = insns[i].code == (BPF_LD | BPF_IMM | BPF_DW) &&
				(insns[i].src_reg == BPF_PSEUDO_MAP_FD || insns[i].src_reg == BPF_PSEUDO_MAP_VALUE);
		if (!names_map || info(insns[i].imm, &map, sizeof map))
			continue;
		fprintf(file, "map %d %u %u %u %u %u %s\n", insns[i].imm, map.type, map.key_size, map.value_size,
			map.max_entries, map.map_flags, map.name);
		if (map.type == BPF_MAP_TYPE_ARRAY && map.max_entries == 1 && map.map_flags & BPF_F_RDONLY_PROG)
			constant(file, insns[i].imm, &map);
	}
}

static void capture(const union bpf_attr *attr)
{
	static unsigned number;
	const char *directory = getenv("BEELINE_CAPTURE");
	char path[4096];
	if (!directory)
		return;
	snprintf(path, sizeof path, "%s/%d.%04u", directory, getpid(), __atomic_add_fetch(&number, 1, __ATOMIC_RELAXED));
	FILE *file = fopen(path, "w");
	if (!file)
		return;
	const struct bpf_insn *insns = (void *)(uintptr_t)attr->insns;
	fprintf(file, "program %u %u %u %u %s\n", attr->prog_type, attr->expected_attach_type, attr->prog_flags,
		attr->attach_btf_id, attr->prog_name);
	fprintf(file, "license %s\n", (const char *)(uintptr_t)attr->license);
	bytes(file, "insns", insns, (size_t)attr->insn_cnt * sizeof *insns);
	maps(file, insns, attr->insn_cnt);
	if (attr->prog_btf_fd) {
		types(file, attr->prog_btf_fd);
		bytes(file, "functions", (void *)(uintptr_t)attr->func_info,
		      (size_t)attr->func_info_cnt * attr->func_info_rec_size);
		bytes(file, "lines", (void *)(uintptr_t)attr->line_info,
		      (size_t)attr->line_info_cnt * attr->line_info_rec_size);
	}
	fclose(file);
}

static long load(const void *from, size_t size)
{
	/* What the tool does not give is 0. */
	union bpf_attr attr = {};
	memcpy(&attr, from, size < sizeof attr ? size : sizeof attr);
	capture(&attr);
	long fd = forward(SYS_bpf, BPF_PROG_LOAD, (long)from, size, 0, 0, 0);
	if (fd >= 0 || !attr.prog_name[0])
		return fd;
	struct bpf_insn small[] = { { .code = BPF_ALU64 | BPF_MOV | BPF_K }, { .code = BPF_JMP | BPF_EXIT } };
	union bpf_attr other = { .prog_type = BPF_PROG_TYPE_SOCKET_FILTER, .insn_cnt = 2, .insns = (uintptr_t)small,
				 .license = (uintptr_t)"GPL" };
	return bpf(BPF_PROG_LOAD, &other);
}

static int nothing(void)
{
	return open("/dev/null", O_RDWR | O_CLOEXEC);
}

/* Kernels that are built without kprobes have no such files; that programs for them load does not need them. */
static const char *pretended(const char *path)
{
	if (!strcmp(path, "/sys/bus/event_source/devices/kprobe/type"))
		return "100\n";
	if (!strcmp(path, "/sys/bus/event_source/devices/kprobe/format/retprobe"))
		return "config:0\n";
	return NULL;
}

/* Lists of what may be probed: without them bcc's tools go on by /proc/kallsyms alone, if they are told that they may not look. */
static int is_list_of_probes(const char *path)
{
	const char *name = strrchr(path, '/');
	return name && (!strcmp(name, "/blacklist") || !strcmp(name, "/available_filter_functions"));
}

static int open_or_pretend(const char *path, int flags, int mode)
{
	const char *content = pretended(path);
	if (!content) {
		int fd = forward(SYS_openat, AT_FDCWD, (long)path, flags, mode, 0, 0);
		if (fd < 0 && errno == ENOENT && is_list_of_probes(path))
			errno = EPERM;
		return fd;
	}
	int fd = memfd_create("pretended", MFD_CLOEXEC);
	if (fd >= 0 && pwrite(fd, content, strlen(content), 0) < 0)
		return -1;
	return fd;
}

int open(const char *path, int flags, ...)
{
	va_list list;
	va_start(list, flags);
	int mode = va_arg(list, int);
	va_end(list);
	return open_or_pretend(path, flags, mode);
}

int open64(const char *path, int flags, ...)
{
	va_list list;
	va_start(list, flags);
	int mode = va_arg(list, int);
	va_end(list);
	return open_or_pretend(path, flags, mode);
}

long syscall(long number, ...)
{
	va_list list;
	va_start(list, number);
	long a[6];
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	if (number == SYS_bpf && a[0] == BPF_PROG_LOAD)
		return load((void *)a[1], a[2]);
	if (number == SYS_bpf && (a[0] == BPF_LINK_CREATE || a[0] == BPF_RAW_TRACEPOINT_OPEN))
		return nothing();
	if (number == SYS_perf_event_open) {
		const struct perf_event_attr *event = (void *)a[0];
		if (event->type != PERF_TYPE_SOFTWARE || event->config != PERF_COUNT_SW_BPF_OUTPUT)
			return nothing();
	}
	return forward(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int ioctl(int fd, unsigned long request, ...)
{
	va_list list;
	va_start(list, request);
	long argument = va_arg(list, long);
	va_end(list);
	long result = forward(SYS_ioctl, fd, request, argument, 0, 0, 0);
	if (result < 0 && errno == ENOTTY && (request >> 8 & 0xff) == '$')
		return 0;
	return result;
}
