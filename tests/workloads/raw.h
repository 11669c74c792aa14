/* For tools made of plain system calls: bpf(), perf_event_open() and programs as arrays of instructions. Calls give the
 * negative error number where they fail. */
#pragma once
#include <errno.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Instructions. */
#define INSN(c, d, s, o, i) ((struct bpf_insn){.code = (c), .dst_reg = (d), .src_reg = (s), .off = (o), .imm = (int)(i)})
#define MOV(d, i) INSN(BPF_ALU64 | BPF_MOV | BPF_K, d, 0, 0, i)
#define MOVR(d, s) INSN(BPF_ALU64 | BPF_MOV | BPF_X, d, s, 0, 0)
#define ADD(d, i) INSN(BPF_ALU64 | BPF_ADD | BPF_K, d, 0, 0, i)
#define AND(d, i) INSN(BPF_ALU64 | BPF_AND | BPF_K, d, 0, 0, i)
#define LSH(d, i) INSN(BPF_ALU64 | BPF_LSH | BPF_K, d, 0, 0, i)
#define OR(d, s) INSN(BPF_ALU64 | BPF_OR | BPF_X, d, s, 0, 0)
#define LDX(size, d, s, o) INSN(BPF_LDX | BPF_MEM | (size), d, s, o, 0)
#define STX(size, d, s, o) INSN(BPF_STX | BPF_MEM | (size), d, s, o, 0)
#define ST(size, d, o, i) INSN(BPF_ST | BPF_MEM | (size), d, 0, o, i)
#define ATOMIC_ADD(d, s, o) INSN(BPF_STX | BPF_DW | BPF_ATOMIC, d, s, o, BPF_ADD)
#define JEQ(d, i, o) INSN(BPF_JMP | BPF_JEQ | BPF_K, d, 0, o, i)
#define JNE(d, i, o) INSN(BPF_JMP | BPF_JNE | BPF_K, d, 0, o, i)
#define JA(o) INSN(BPF_JMP | BPF_JA, 0, 0, o, 0)
#define CALL(i) INSN(BPF_JMP | BPF_CALL, 0, 0, 0, i)
#define CALL_LOCAL(o) INSN(BPF_JMP | BPF_CALL, 0, BPF_PSEUDO_CALL, 0, o)
#define EXIT INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0)
/* Two slots each. */
#define LD_MAP(d, fd) INSN(BPF_LD | BPF_DW | BPF_IMM, d, BPF_PSEUDO_MAP_FD, 0, fd), INSN(0, 0, 0, 0, 0)
#define LD_VALUE(d, fd, o) INSN(BPF_LD | BPF_DW | BPF_IMM, d, BPF_PSEUDO_MAP_VALUE, 0, fd), INSN(0, 0, 0, 0, o)
#define LD_64(d, v) INSN(BPF_LD | BPF_DW | BPF_IMM, d, 0, 0, (uint64_t)(v)), INSN(0, 0, 0, 0, (uint64_t)(v) >> 32)
/* *(u64 *)(value of the array `fd`, which has one element) += 1; uses r1 and r2. Four slots. */
#define COUNT(fd) LD_VALUE(1, fd, 0), MOV(2, 1), ATOMIC_ADD(1, 2, 0)
#define LENGTH(array) (sizeof(array) / sizeof(array)[0])
#define LOAD(type, body) load_program(type, 0, body, LENGTH(body))

static inline int bpf(int command, union bpf_attr *attr)
{
    int result = (int)syscall(SYS_bpf, command, attr, sizeof *attr);
    return result < 0 ? -errno : result;
}

static inline void die(const char *what, int result)
{
    fprintf(stderr, "%s: %s\n", what, strerror(-result));
    exit(1);
}

static inline int good(const char *what, int result)
{
    if (result < 0)
        die(what, result);
    return result;
}

static inline int create_map(uint32_t type, uint32_t key, uint32_t value, uint32_t entries, uint32_t flags, int inner)
{
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.map_type = type;
    attr.key_size = key;
    attr.value_size = value;
    attr.max_entries = entries;
    attr.map_flags = flags;
    attr.inner_map_fd = (uint32_t)inner;
    return bpf(BPF_MAP_CREATE, &attr);
}

/* An array of one 8-byte value. */
static inline int create_counter(void) { return good("counter", create_map(BPF_MAP_TYPE_ARRAY, 4, 8, 1, 0, 0)); }

static inline int element(int command, int map, const void *key, void *value, uint64_t flags)
{
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.map_fd = (uint32_t)map;
    attr.key = (uintptr_t)key;
    attr.value = (uintptr_t)value;
    attr.flags = flags;
    return bpf(command, &attr);
}
static inline int update(int map, const void *key, const void *value, uint64_t flags)
{
    return element(BPF_MAP_UPDATE_ELEM, map, key, (void *)value, flags);
}
static inline int update_at(int map, uint32_t key, uint32_t value) { return update(map, &key, &value, BPF_ANY); }
static inline int lookup(int map, const void *key, void *value)
{
    return element(BPF_MAP_LOOKUP_ELEM, map, key, value, 0);
}
static inline int delete_at(int map, uint32_t key) { return element(BPF_MAP_DELETE_ELEM, map, &key, 0, 0); }

/* The value of a counter, set to 0. */
static inline long take_count(int map)
{
    uint32_t key = 0;
    uint64_t value = 0, zero = 0;
    good("look-up", lookup(map, &key, &value));
    good("update", update(map, &key, &zero, BPF_ANY));
    return (long)value;
}

static char load_log[1 << 16];

static inline union bpf_attr program_attr(uint32_t type, const struct bpf_insn *body, size_t length)
{
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.prog_type = type;
    attr.insns = (uintptr_t)body;
    attr.insn_cnt = (uint32_t)length;
    attr.license = (uintptr_t)"GPL";
    attr.log_buf = (uintptr_t)load_log;
    attr.log_size = sizeof load_log;
    attr.log_level = 1;
    load_log[0] = 0;
    return attr;
}

static inline int load_program(uint32_t type, uint32_t attach_type, const struct bpf_insn *body, size_t length)
{
    union bpf_attr attr = program_attr(type, body, length);
    attr.expected_attach_type = attach_type;
    return bpf(BPF_PROG_LOAD, &attr);
}

/* As LOAD, and ends with the verifier's words where that fails. */
static inline int loaded(int program)
{
    if (program < 0) {
        fprintf(stderr, "%s\n", load_log);
        die("BPF_PROG_LOAD", program);
    }
    return program;
}

/* r0 of one run, by BPF_PROG_TEST_RUN. */
static inline int run_once(int program)
{
    union bpf_attr attr;
    uint64_t context[12] = {0};
    memset(&attr, 0, sizeof attr);
    attr.test.prog_fd = (uint32_t)program;
    attr.test.ctx_in = (uintptr_t)context;
    attr.test.ctx_size_in = sizeof context;
    good("BPF_PROG_TEST_RUN", bpf(BPF_PROG_TEST_RUN, &attr));
    return (int)attr.test.retval;
}

static inline uint32_t id_of(int fd, int is_program)
{
    union bpf_attr attr;
    struct bpf_map_info map;
    struct bpf_prog_info program;
    memset(&attr, 0, sizeof attr);
    memset(&map, 0, sizeof map);
    memset(&program, 0, sizeof program);
    attr.info.bpf_fd = (uint32_t)fd;
    attr.info.info_len = is_program ? sizeof program : sizeof map;
    attr.info.info = is_program ? (uintptr_t)&program : (uintptr_t)&map;
    good("BPF_OBJ_GET_INFO_BY_FD", bpf(BPF_OBJ_GET_INFO_BY_FD, &attr));
    return is_program ? program.id : map.id;
}

static inline int fd_of_id(int command, uint32_t id)
{
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.map_id = id;
    return bpf(command, &attr);
}

/* Attaches a program of type kprobe to a place in a file, or to the return of the function there, in one process; in all
 * with -1. */
static inline int attach_probe(int program, const char *path, uint64_t offset, pid_t pid, int is_return)
{
    struct perf_event_attr attr;
    unsigned type;
    FILE *file = fopen("/sys/bus/event_source/devices/uprobe/type", "r");
    if (!file || fscanf(file, "%u", &type) != 1)
        die("uprobe/type", -errno);
    fclose(file);
    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    attr.type = type;
    attr.config = is_return != 0;
    attr.config1 = (uintptr_t)path;
    attr.config2 = offset;
    attr.sample_period = 1;
    attr.wakeup_events = 1;
    int fd = (int)syscall(SYS_perf_event_open, &attr, pid, pid < 0 ? 0 : -1, -1, PERF_FLAG_FD_CLOEXEC);
    if (fd < 0)
        die("perf_event_open", -errno);
    if (ioctl(fd, PERF_EVENT_IOC_SET_BPF, program) < 0 || ioctl(fd, PERF_EVENT_IOC_ENABLE, 0) < 0)
        die("attaching", -errno);
    return fd;
}

static inline int attach_uprobe(int program, const char *path, uint64_t offset, pid_t pid)
{
    return attach_probe(program, path, offset, pid, 0);
}
