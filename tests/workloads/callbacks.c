/* Programs with callbacks, each run once by BPF_PROG_TEST_RUN: bpf_loop with all that may be wrong with it, and
 * bpf_for_each_map_elem over every type of map that has it, with callbacks that change, delete and stop.
 *
 * Says what the helpers returned, what the callbacks have seen, and what is in the maps afterwards. Raw instructions and
 * plain system calls, no library. */
#define _GNU_SOURCE
#include "functions.h"
#include <string.h>

typedef struct bpf_insn insn;

#define OP(c, d, s, o, i) ((insn){.code = (c), .dst_reg = (d), .src_reg = (s), .off = (o), .imm = (i)})
#define SET(d, i) OP(BPF_ALU64 | BPF_MOV | BPF_K, d, 0, 0, i)
#define COPY(d, s) OP(BPF_ALU64 | BPF_MOV | BPF_X, d, s, 0, 0)
#define ADD(d, i) OP(BPF_ALU64 | BPF_ADD | BPF_K, d, 0, 0, i)
#define ADD_REG(d, s) OP(BPF_ALU64 | BPF_ADD | BPF_X, d, s, 0, 0)
#define MUL(d, i) OP(BPF_ALU64 | BPF_MUL | BPF_K, d, 0, 0, i)
#define AND(d, i) OP(BPF_ALU64 | BPF_AND | BPF_K, d, 0, 0, i)
#define LOAD(size, d, s, o) OP(BPF_LDX | BPF_MEM | (size), d, s, o, 0)
#define STORE(d, o, s) OP(BPF_STX | BPF_MEM | BPF_DW, d, s, o, 0)
#define JEQ(d, i, o) OP(BPF_JMP | BPF_JEQ | BPF_K, d, 0, o, i)
#define JNE(d, i, o) OP(BPF_JMP | BPF_JNE | BPF_K, d, 0, o, i)
#define CALL(i) OP(BPF_JMP | BPF_CALL, 0, 0, 0, i)
#define EXIT OP(BPF_JMP | BPF_EXIT, 0, 0, 0, 0)
/* Two slots each. */
#define WIDE(d, kind, low, high) OP(BPF_LD | BPF_IMM | BPF_DW, d, kind, 0, low), OP(0, 0, 0, 0, high)
#define NUMBER(d, n) WIDE(d, 0, (int32_t)(uint32_t)(n), (int32_t)((uint64_t)(n) >> 32))
/* The function so many slots behind the next instruction. */
#define FUNCTION(d, distance) WIDE(d, BPF_PSEUDO_FUNC, (distance) + 1, 0)
#define LENGTH(a) ((int)(sizeof(a) / sizeof *(a)))

enum { MAX_ENTRIES = 64, MAX_CPUS = 1024, MAX_LOOPS = 8 << 20 };

static int bpf(int command, union bpf_attr *attr)
{
    return (int)syscall(SYS_bpf, command, attr, sizeof *attr);
}

static int need(int result, const char *what)
{
    if (result < 0) {
        perror(what);
        exit(1);
    }
    return result;
}

static int create(unsigned type, unsigned key_size, unsigned value_size, unsigned entries)
{
    union bpf_attr attr = {.map_type = type, .key_size = key_size, .value_size = value_size, .max_entries = entries};
    return need(bpf(BPF_MAP_CREATE, &attr), "BPF_MAP_CREATE");
}

/* Loads a program whose callback begins at a slot, and runs it. */
static void run(const insn *insns, int length, int callback)
{
    static char log[1 << 16];
    struct bpf_func_info functions[2];
    union bpf_attr attr = {
        .prog_type = BPF_PROG_TYPE_RAW_TRACEPOINT, .insns = (uintptr_t)insns, .insn_cnt = (uint32_t)length,
        .license = (uintptr_t)"GPL",
    };
    describe_functions(&attr, functions, callback);
    int program = bpf(BPF_PROG_LOAD, &attr);
    if (program < 0) {
        attr.log_buf = (uintptr_t)log;
        attr.log_size = sizeof log;
        attr.log_level = 1;
        bpf(BPF_PROG_LOAD, &attr);
        fprintf(stderr, "%s\n", log);
        need(program, "BPF_PROG_LOAD");
    }
    union bpf_attr test;
    memset(&test, 0, sizeof test);
    test.test.prog_fd = (uint32_t)program;
    need(bpf(BPF_PROG_TEST_RUN, &test), "BPF_PROG_TEST_RUN");
    close(program);
    close((int)attr.prog_btf_fd);
}

/* What programs leave: r0 of the helper, and what the callbacks have added up. */
static struct { int64_t returned, sum, calls, zero; } result;
static int results;

/* Which elements of a hash come before the last one is not said. */
static void read_result(int any)
{
    uint32_t key = 0;
    union bpf_attr attr = {.map_fd = (uint32_t)results, .key = (uintptr_t)&key, .value = (uintptr_t)&result};
    need(bpf(BPF_MAP_LOOKUP_ELEM, &attr), "BPF_MAP_LOOKUP_ELEM");
    printf("returned %ld sum %ld calls %ld\n", (long)result.returned, any ? 0 : (long)result.sum, (long)result.calls);
}

/* `result = {r0, *(fp - 16), *(fp - 8)}; return 0`: 10 slots. */
#define LEAVE                                                                                                     \
    WIDE(1, BPF_PSEUDO_MAP_VALUE, results, 0), STORE(1, 0, 0), LOAD(BPF_DW, 2, 10, -16), STORE(1, 8, 2),          \
        LOAD(BPF_DW, 2, 10, -8), STORE(1, 16, 2), SET(0, 0), EXIT
/* `*(fp - 16) = *(fp - 8) = 0`, and r3 points to the first of them. The zero is one that a verifier does not know, so that
 * it does not count along. */
#define BEGIN                                                                                                     \
    WIDE(1, BPF_PSEUDO_MAP_VALUE, results, 24), LOAD(BPF_DW, 1, 1, 0), STORE(10, -16, 1), STORE(10, -8, 1), COPY(3, 10), ADD(3, -16)

static void loop(uint64_t count, uint64_t flags, int stop)
{
    const insn insns[] = {
        BEGIN, NUMBER(1, count), FUNCTION(2, 12), NUMBER(4, flags), CALL(BPF_FUNC_loop), LEAVE,
        /* callback(index, sums): sum += index * 3; calls += 1; return calls == stop */
        MUL(1, 3), LOAD(BPF_DW, 3, 2, 0), ADD_REG(3, 1), STORE(2, 0, 3), LOAD(BPF_DW, 3, 2, 8), ADD(3, 1),
        STORE(2, 8, 3), SET(0, 0), JNE(3, stop, 1), SET(0, 1), EXIT,
    };
    printf("loop %ld flags %ld stop %d: ", (long)count, (long)flags, stop);
    run(insns, LENGTH(insns), LENGTH(insns) - 11);
    read_result(0);
}

static int is_percpu(unsigned type)
{
    return type == BPF_MAP_TYPE_PERCPU_HASH || type == BPF_MAP_TYPE_PERCPU_ARRAY || type == BPF_MAP_TYPE_LRU_PERCPU_HASH;
}

static int is_array(unsigned type)
{
    return type == BPF_MAP_TYPE_ARRAY || type == BPF_MAP_TYPE_PERCPU_ARRAY;
}

static void fill(int map, unsigned entries)
{
    for (uint32_t key = 0; key < entries; key++) {
        uint64_t values[MAX_CPUS];
        for (int cpu = 0; cpu < MAX_CPUS; cpu++)
            values[cpu] = key * 7 + 1;
        union bpf_attr attr = {.map_fd = (uint32_t)map, .key = (uintptr_t)&key, .value = (uintptr_t)values};
        need(bpf(BPF_MAP_UPDATE_ELEM, &attr), "BPF_MAP_UPDATE_ELEM");
    }
}

/* How many elements there are, and the sum of all that is in them, all CPUs' together less what was in the others'. */
static void dump(int map, unsigned type)
{
    uint32_t key, *last = NULL, elements = 0;
    uint64_t keys = 0, changes = 0;
    for (;;) {
        union bpf_attr attr = {.map_fd = (uint32_t)map, .key = (uintptr_t)last, .next_key = (uintptr_t)&key};
        if (bpf(BPF_MAP_GET_NEXT_KEY, &attr) < 0)
            break;
        last = &key;
        static uint64_t values[MAX_CPUS];
        memset(values, 0, sizeof values);
        attr = (union bpf_attr){.map_fd = (uint32_t)map, .key = (uintptr_t)&key, .value = (uintptr_t)values};
        need(bpf(BPF_MAP_LOOKUP_ELEM, &attr), "BPF_MAP_LOOKUP_ELEM");
        elements++;
        keys += key * 11;
        for (int cpu = 0; cpu < (is_percpu(type) ? MAX_CPUS : 1); cpu++)
            changes += values[cpu] ? values[cpu] - (key * 7 + 1) : 0;
    }
    printf("  then %u elements, keys %lu, changes %lu\n", elements, (unsigned long)keys, (unsigned long)changes);
}

static void for_each(unsigned type, unsigned entries, uint64_t flags, int stop, int deletes)
{
    int map = create(type, 4, 8, MAX_ENTRIES);
    fill(map, is_array(type) ? MAX_ENTRIES : entries);
    const insn insns[] = {
        BEGIN, WIDE(1, BPF_PSEUDO_MAP_FD, map, 0), FUNCTION(2, 12), NUMBER(4, flags),
        CALL(BPF_FUNC_for_each_map_elem), LEAVE,
        /* callback(map, key, value, sums): r6 = key; sum += key * 1000003 + value; calls += 1 */
        LOAD(BPF_W, 6, 2, 0), LOAD(BPF_DW, 7, 3, 0), COPY(8, 6), MUL(8, 1000003), ADD_REG(8, 7),
        LOAD(BPF_DW, 5, 4, 0), ADD_REG(5, 8), STORE(4, 0, 5), LOAD(BPF_DW, 9, 4, 8), ADD(9, 1), STORE(4, 8, 9),
        /* *value += 5 */
        ADD(7, 5), STORE(3, 0, 7),
        /* if (deletes && key % 2) delete(map, &key) */
        SET(0, deletes), JEQ(0, 0, 3), AND(6, 1), JEQ(6, 0, 1), CALL(BPF_FUNC_map_delete_elem),
        /* return calls == stop */
        SET(0, 0), JNE(9, stop, 1), SET(0, 1), EXIT,
    };
    printf("for_each type %u of %u flags %ld stop %d deletes %d: ", type, entries, (long)flags, stop, deletes);
    run(insns, LENGTH(insns), LENGTH(insns) - 22);
    read_result(stop && !is_array(type));
    dump(map, type);
    close(map);
}

int main(void)
{
    results = create(BPF_MAP_TYPE_ARRAY, 4, sizeof result, 1);
    loop(0, 0, 0);
    loop(1, 0, 0);
    loop(1000, 0, 0);
    loop(1000, 0, 1);
    loop(1000, 0, 1000);
    loop(1000, 1, 0);
    loop(MAX_LOOPS, 0, 0);
    loop(MAX_LOOPS + 1, 0, 0);
    loop((1ull << 32) + 5, 0, 0);
    static const unsigned types[] = {
        BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_PERCPU_ARRAY, BPF_MAP_TYPE_HASH, BPF_MAP_TYPE_PERCPU_HASH,
    };
    for (int i = 0; i < LENGTH(types); i++) {
        for_each(types[i], 0, 0, 0, 0);
        for_each(types[i], 1, 0, 0, 0);
        for_each(types[i], MAX_ENTRIES, 0, 0, 0);
        for_each(types[i], MAX_ENTRIES, 0, 10, 0);
        for_each(types[i], MAX_ENTRIES, 1, 0, 0);
        for_each(types[i], MAX_ENTRIES, 0, 0, 1);
    }
    return 0;
}
