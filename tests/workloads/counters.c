/* Counts calls by their first argument, in every kind of map that counts, and says the sums.
 *
 *   counters PATH plain|churn OFFSET,OFFSET... PID...
 *
 * Attaches a program to the places of the file in each process and says "attached". The program adds one to the element
 * of the call's first argument: without a lock in the per-CPU kinds, by an atomic addition in the others. With
 * "churn" it also inserts and deletes an element of a hash, and counts what it could not. At end of file on its
 * input it says, for each map, "NAME SUM SUM ...", element by element. Only plain system calls, no library. */
#define _GNU_SOURCE
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { ELEMENTS = 64, CPUS_AT_MOST = 1024, RDI = 112, ADD = 0 };

static const struct { const char *name; uint32_t type; int is_percpu; } COUNTERS[] = {
    {"percpu_array", BPF_MAP_TYPE_PERCPU_ARRAY, 1},
    {"percpu_hash", BPF_MAP_TYPE_PERCPU_HASH, 1},
    {"array", BPF_MAP_TYPE_ARRAY, 0},
    {"hash", BPF_MAP_TYPE_HASH, 0},
};
enum { COUNTER_COUNT = sizeof COUNTERS / sizeof *COUNTERS };

static int counters[COUNTER_COUNT], churned, refused;
static struct bpf_insn code[256];
static int length;

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

static int create(uint32_t type, uint32_t entries)
{
    union bpf_attr attr = {.map_type = type, .key_size = 4, .value_size = 8, .max_entries = entries};
    return bpf(BPF_MAP_CREATE, &attr, "BPF_MAP_CREATE");
}

static void element(int command, int map, uint32_t key, uint64_t *values)
{
    union bpf_attr attr = {.map_fd = map, .key = (uintptr_t)&key, .value = (uintptr_t)values};
    bpf(command, &attr, "a map's element");
}

static void put(uint8_t op, uint8_t dst, uint8_t src, int16_t off, int32_t imm)
{
    code[length++] = (struct bpf_insn){.code = op, .dst_reg = dst, .src_reg = src, .off = off, .imm = imm};
}

/* r1 = the map, r2 = the key at r10 - 4, r3 = the value at r10 - 16; r0 = what the helper gives */
static void put_call(int map, int helper)
{
    put(0x18, 1, BPF_PSEUDO_MAP_FD, 0, map);
    put(0, 0, 0, 0, 0);
    put(0xbf, 2, 10, 0, 0);
    put(0x07, 2, 0, 0, -4);
    put(0xbf, 3, 10, 0, 0);
    put(0x07, 3, 0, 0, -16);
    put(0xb7, 4, 0, 0, 0);
    put(0x85, 0, 0, 0, helper);
}

static void put_count(int map, int is_percpu)
{
    put_call(map, BPF_FUNC_map_lookup_elem);
    put(0x15, 0, 0, is_percpu ? 3 : 2, 0);
    if (is_percpu) {
        put(0x79, 1, 0, 0, 0);
        put(0x07, 1, 0, 0, 1);
        put(0x7b, 0, 1, 0, 0);
    } else {
        put(0xb7, 1, 0, 0, 1);
        put(0xdb, 0, 1, 0, ADD);
    }
}

static int load(int churns)
{
    static char log[1 << 14];
    put(0x79, 6, 1, RDI, 0);
    put(0x63, 10, 6, -4, 0);
    put(0x7b, 10, 6, -16, 0);
    for (int i = 0; i < COUNTER_COUNT; i++)
        put_count(counters[i], COUNTERS[i].is_percpu);
    for (int i = 0; churns && i < 2; i++) {
        put_call(churned, i ? BPF_FUNC_map_delete_elem : BPF_FUNC_map_update_elem);
        int skip = length;
        put(0x15, 0, 0, 0, 0);
        put_count(refused, 0);
        code[skip].off = length - skip - 1;
    }
    put(0xb7, 0, 0, 0, 0);
    put(0x95, 0, 0, 0, 0);
    union bpf_attr attr = {.prog_type = BPF_PROG_TYPE_KPROBE, .insns = (uintptr_t)code, .insn_cnt = length,
                           .license = (uintptr_t)"GPL", .log_buf = (uintptr_t)log, .log_size = sizeof log,
                           .log_level = 1};
    int program = (int)syscall(SYS_bpf, BPF_PROG_LOAD, &attr, sizeof attr);
    if (program < 0) {
        fputs(log, stderr);
        die("BPF_PROG_LOAD");
    }
    return program;
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

static void attach(int program, const char *path, pid_t pid, uint64_t offset)
{
    struct perf_event_attr attr = {.size = sizeof attr, .type = uprobe_type(), .config1 = (uintptr_t)path,
                                   .config2 = offset, .sample_period = 1, .wakeup_events = 1};
    int fd = (int)syscall(SYS_perf_event_open, &attr, pid, -1, -1, PERF_FLAG_FD_CLOEXEC);
    if (fd < 0)
        die("perf_event_open");
    if (ioctl(fd, PERF_EVENT_IOC_SET_BPF, program) < 0 || ioctl(fd, PERF_EVENT_IOC_ENABLE, 0) < 0)
        die("attaching");
}

static int possible_cpus(void)
{
    FILE *file = fopen("/sys/devices/system/cpu/possible", "r");
    int first = 0, last = 0, read = file ? fscanf(file, "%d-%d", &first, &last) : 0;
    if (file)
        fclose(file);
    return (read == 2 ? last : first) + 1;
}

static void say_sums(const char *name, int map, int is_percpu, int cpus)
{
    static uint64_t values[CPUS_AT_MOST];
    fputs(name, stdout);
    for (uint32_t key = 0; key < ELEMENTS; key++) {
        uint64_t sum = 0;
        element(BPF_MAP_LOOKUP_ELEM, map, key, values);
        for (int cpu = 0; cpu < (is_percpu ? cpus : 1); cpu++)
            sum += values[cpu];
        printf(" %lu", (unsigned long)sum);
    }
    putchar('\n');
}

int main(int argc, char **argv)
{
    static uint64_t zeros[CPUS_AT_MOST];
    int cpus = possible_cpus();
    if (argc < 5 || cpus > CPUS_AT_MOST) {
        fputs("usage: counters PATH plain|churn OFFSET,OFFSET... PID...\n", stderr);
        return 2;
    }
    for (int i = 0; i < COUNTER_COUNT; i++) {
        counters[i] = create(COUNTERS[i].type, ELEMENTS);
        for (uint32_t key = 0; key < ELEMENTS; key++)
            element(BPF_MAP_UPDATE_ELEM, counters[i], key, zeros);
    }
    churned = create(BPF_MAP_TYPE_HASH, ELEMENTS);
    refused = create(BPF_MAP_TYPE_ARRAY, ELEMENTS);
    int program = load(strcmp(argv[2], "churn") == 0);
    for (char *place = strtok(argv[3], ","); place; place = strtok(0, ","))
        for (int i = 4; i < argc; i++)
            attach(program, argv[1], atoi(argv[i]), strtoull(place, 0, 0));
    puts("attached");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    for (int i = 0; i < COUNTER_COUNT; i++)
        say_sums(COUNTERS[i].name, counters[i], COUNTERS[i].is_percpu, cpus);
    say_sums("refused", refused, 0, cpus);
    return 0;
}
