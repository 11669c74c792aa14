/* The smallest eBPF tool there is: attaches to places in a file that a process maps.
 *
 *   attach PID PATH CYCLES KIND:OFFSET...
 *
 * OFFSET is a file offset; KIND is p for a place itself and r for the return of the function there, with a program
 * that only returns 0; P and R are the same with a program that counts, T is as p with one that prints "hit A B" to the
 * trace pipe, of the first two arguments. At a - it says "waiting" and goes on when it is sent a line. Attaches to and detaches from all places
 * CYCLES times, leaves them attached the last time, and says "attached". At end of file on its input it
 * copies the trace pipe's lines up to "hit 10" if there is a T, says "count N" and ends. Only plain system calls, no
 * library.
 *
 * PID may be "copy": a child that stays a copy of the tool, holds nothing of it, and says "copy PID".
 *
 * L is as P with a program that counts to three by callbacks. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/user.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "functions.h"

enum { MAX_PLACES = 512 };

static void die(const char *what)
{
    perror(what);
    exit(1);
}

static int bpf(int command, union bpf_attr *attr, const char *what)
{
    int result = (int)syscall(SYS_bpf, command, attr, sizeof *attr);
    if (result < 0)
        die(what);
    return result;
}

static int create_counter(void)
{
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.map_type = BPF_MAP_TYPE_ARRAY;
    attr.key_size = 4;
    attr.value_size = 8;
    attr.max_entries = 1;
    return bpf(BPF_MAP_CREATE, &attr, "BPF_MAP_CREATE");
}

static uint64_t read_counter(int map)
{
    union bpf_attr attr;
    uint64_t value = 0;
    uint32_t key = 0;
    memset(&attr, 0, sizeof attr);
    attr.map_fd = (uint32_t)map;
    attr.key = (uintptr_t)&key;
    attr.value = (uintptr_t)&value;
    bpf(BPF_MAP_LOOKUP_ELEM, &attr, "BPF_MAP_LOOKUP_ELEM");
    return value;
}

/* The program's callback begins at a slot; 0: it has none. */
static int load_program(const struct bpf_insn *body, unsigned length, int callback)
{
    static char log[4096];
    struct bpf_func_info functions[2];
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    if (callback)
        describe_functions(&attr, functions, callback);
    attr.prog_type = BPF_PROG_TYPE_KPROBE;
    attr.insns = (uintptr_t)body;
    attr.insn_cnt = length;
    attr.license = (uintptr_t)"GPL";
    attr.log_buf = (uintptr_t)log;
    attr.log_size = sizeof log;
    attr.log_level = 1;
    return bpf(BPF_PROG_LOAD, &attr, "BPF_PROG_LOAD");
}

static int load_empty(void)
{
    const struct bpf_insn body[] = {
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = 0},
        {.code = BPF_JMP | BPF_EXIT},
    };
    return load_program(body, sizeof body / sizeof body[0], 0);
}

/* lock *counter += 1; return 0 */
static int load_counting(int map)
{
    const struct bpf_insn body[] = {
        {.code = BPF_LD | BPF_DW | BPF_IMM, .dst_reg = 1, .src_reg = BPF_PSEUDO_MAP_VALUE, .imm = map},
        {.code = 0},
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 2, .imm = 1},
        {.code = BPF_STX | BPF_DW | BPF_ATOMIC, .dst_reg = 1, .src_reg = 2, .imm = BPF_ADD},
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = 0},
        {.code = BPF_JMP | BPF_EXIT},
    };
    return load_program(body, sizeof body / sizeof body[0], 0);
}

/* loop(3, callback); return 0. The callback: lock *counter += 1; return 0 */
static int load_looping(int map)
{
    const struct bpf_insn body[] = {
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 1, .imm = 3},
        {.code = BPF_LD | BPF_DW | BPF_IMM, .dst_reg = 2, .src_reg = BPF_PSEUDO_FUNC, .imm = 6},
        {.code = 0},
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 3, .imm = 0},
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 4, .imm = 0},
        {.code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_loop},
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = 0},
        {.code = BPF_JMP | BPF_EXIT},
        {.code = BPF_LD | BPF_DW | BPF_IMM, .dst_reg = 1, .src_reg = BPF_PSEUDO_MAP_VALUE, .imm = map},
        {.code = 0},
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 2, .imm = 1},
        {.code = BPF_STX | BPF_DW | BPF_ATOMIC, .dst_reg = 1, .src_reg = 2, .imm = BPF_ADD},
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = 0},
        {.code = BPF_JMP | BPF_EXIT},
    };
    return load_program(body, sizeof body / sizeof body[0], 8);
}

/* bpf_trace_printk("hit %d %lx", 11, first argument, second) */
static int load_printing(void)
{
    int32_t format[4];
    memcpy(format, "hit %d %lx\0\0\0\0\0", sizeof format);
    const struct bpf_insn body[] = {
        {.code = BPF_LDX | BPF_DW | BPF_MEM, .dst_reg = 3, .src_reg = 1, .off = offsetof(struct user_regs_struct, rdi)},
        {.code = BPF_LDX | BPF_DW | BPF_MEM, .dst_reg = 4, .src_reg = 1, .off = offsetof(struct user_regs_struct, rsi)},
        {.code = BPF_ST | BPF_W | BPF_MEM, .dst_reg = 10, .off = -16, .imm = format[0]},
        {.code = BPF_ST | BPF_W | BPF_MEM, .dst_reg = 10, .off = -12, .imm = format[1]},
        {.code = BPF_ST | BPF_W | BPF_MEM, .dst_reg = 10, .off = -8, .imm = format[2]},
        {.code = BPF_ALU64 | BPF_MOV | BPF_X, .dst_reg = 1, .src_reg = 10},
        {.code = BPF_ALU64 | BPF_ADD | BPF_K, .dst_reg = 1, .imm = -16},
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 2, .imm = 11},
        {.code = BPF_JMP | BPF_CALL, .imm = BPF_FUNC_trace_printk},
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = 0},
        {.code = BPF_JMP | BPF_EXIT},
    };
    return load_program(body, sizeof body / sizeof body[0], 0);
}

/* The kernel's trace pipe needs its file system mounted: for us alone, if nobody has. */
static FILE *open_trace_pipe(void)
{
    const char *path = "/sys/kernel/tracing/trace_pipe";
    if (access(path, F_OK) != 0 && unshare(CLONE_NEWNS) == 0 && mount("none", "/", 0, MS_REC | MS_PRIVATE, 0) == 0)
        mount("tracefs", "/sys/kernel/tracing", "tracefs", 0, 0);
    /* A kernel that has once tripped over itself stops tracing. */
    FILE *on = fopen("/sys/kernel/tracing/tracing_on", "w");
    if (on) {
        fputs("1", on);
        fclose(on);
    }
    FILE *file = fopen(path, "r");
    if (!file)
        die(path);
    return file;
}

static void copy_hits(void)
{
    FILE *pipe = open_trace_pipe();
    char line[256];
    while (fgets(line, sizeof line, pipe)) {
        if (!strstr(line, ": hit "))
            continue;
        fputs(line, stdout);
        if (strstr(line, ": hit 10 "))
            break;
    }
    fclose(pipe);
}

static uint32_t uprobe_type(void)
{
    FILE *file = fopen("/sys/bus/event_source/devices/uprobe/type", "r");
    unsigned type;
    if (!file || fscanf(file, "%u", &type) != 1)
        die("uprobe/type");
    fclose(file);
    return type;
}

static int attach(int program, uint32_t type, const char *path, pid_t pid, const char *place)
{
    struct perf_event_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    attr.type = type;
    attr.config = place[0] == 'r' || place[0] == 'R';
    attr.config1 = (uintptr_t)path;
    attr.config2 = strtoull(place + 2, 0, 0);
    attr.sample_period = 1;
    attr.wakeup_events = 1;
    int fd = (int)syscall(SYS_perf_event_open, &attr, pid, -1, -1, PERF_FLAG_FD_CLOEXEC);
    if (fd < 0)
        die("perf_event_open");
    if (ioctl(fd, PERF_EVENT_IOC_SET_BPF, program) < 0)
        die("PERF_EVENT_IOC_SET_BPF");
    if (ioctl(fd, PERF_EVENT_IOC_ENABLE, 0) < 0)
        die("PERF_EVENT_IOC_ENABLE");
    return fd;
}

static void wait_for_line(void)
{
    puts("waiting");
    fflush(stdout);
    for (int c = getchar(); c != EOF && c != '\n'; c = getchar())
        ;
}

static pid_t copy_itself(void)
{
    pid_t copy = fork();
    if (copy < 0)
        die("fork");
    if (copy) {
        printf("copy %d\n", copy);
        fflush(stdout);
        return copy;
    }
    close_range(0, ~0U, 0);
    for (;;)
        pause();
}

int main(int argc, char **argv)
{
    if (argc < 5 || argc - 4 > MAX_PLACES) {
        fputs("usage: attach PID PATH CYCLES KIND:OFFSET...\n", stderr);
        return 2;
    }
    int fds[MAX_PLACES], counter = create_counter(), looping = 0, printing = 0;
    int empty = load_empty(), counting = load_counting(counter);
    uint32_t type = uprobe_type();
    pid_t pid = strcmp(argv[1], "copy") ? atoi(argv[1]) : copy_itself();
    for (long cycle = strtol(argv[3], 0, 10); cycle > 0; cycle--) {
        for (int i = 4; i < argc; i++) {
            fds[i - 4] = -1;
            if (strcmp(argv[i], "-") == 0) {
                wait_for_line();
                continue;
            }
            int counts = argv[i][0] == 'P' || argv[i][0] == 'R', loops = argv[i][0] == 'L', prints = argv[i][0] == 'T';
            if (loops && !looping)
                looping = load_looping(counter);
            if (prints && !printing)
                printing = load_printing();
            int program = loops ? looping : prints ? printing : counts ? counting : empty;
            fds[i - 4] = attach(program, type, argv[2], pid, argv[i]);
        }
        for (int i = 4; i < argc && cycle > 1; i++)
            close(fds[i - 4]);
    }
    puts("attached");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    if (printing)
        copy_hits();
    printf("count %lu\n", (unsigned long)read_counter(counter));
    return 0;
}
