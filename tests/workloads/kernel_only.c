/* A tool with maps that only a program in the kernel uses, at an exec: a queue, a stack, a Bloom filter and a hash. The
 * tool puts values in before it attaches the program and after, and takes them out at last, those of the hash by batches.
 *
 * usage: kernel_only COMMAND... */
#define _GNU_SOURCE
#include "raw.h"
#include <sys/wait.h>

enum { FILTERED = 7, LEAF_ADDS = 100, ELEMENTS = 50, BATCH = 8 };

static int queue, stack, filter, seen, hash;

static int push(int map, uint64_t value) { return update(map, NULL, &value, BPF_ANY); }

/* If the current command's name begins with these 8 bytes: takes a value of each of both, puts a greater one back, and
 * stores what the filter says of a number that it holds and of another. */
static int program(const char *name)
{
    uint64_t word;
    memcpy(&word, name, sizeof word);
#define MOVE(map) \
    LD_MAP(1, map), MOVR(2, 10), ADD(2, -8), CALL(BPF_FUNC_map_pop_elem), LDX(BPF_DW, 1, 10, -8), ADD(1, LEAF_ADDS), \
    STX(BPF_DW, 10, 1, -8), LD_MAP(1, map), MOVR(2, 10), ADD(2, -8), MOV(3, 0), CALL(BPF_FUNC_map_push_elem)
#define ASK(value, place) \
    ST(BPF_DW, 10, -8, value), LD_MAP(1, filter), MOVR(2, 10), ADD(2, -8), CALL(BPF_FUNC_map_peek_elem), \
    LD_VALUE(1, seen, 8 * (place)), STX(BPF_DW, 1, 0, 0)
    const struct bpf_insn body[] = {
        MOVR(1, 10), ADD(1, -16), MOV(2, 16), CALL(BPF_FUNC_get_current_comm),
        LDX(BPF_DW, 1, 10, -16), LD_64(2, word), INSN(BPF_JMP | BPF_JEQ | BPF_X, 1, 2, 2, 0), MOV(0, 0), EXIT,
        ST(BPF_DW, 10, -8, 0), MOVE(queue), MOVE(stack), ASK(FILTERED, 0), ASK(FILTERED + 1, 1),
        ST(BPF_DW, 10, -8, ELEMENTS + 1), LD_MAP(1, hash), MOVR(2, 10), ADD(2, -8), MOVR(3, 2), MOV(4, BPF_ANY),
        CALL(BPF_FUNC_map_update_elem), MOV(0, 0), EXIT,
    };
    return loaded(LOAD(BPF_PROG_TYPE_RAW_TRACEPOINT, body));
}

static void show(const char *what, int map)
{
    uint64_t value;
    printf("%s:", what);
    while (element(BPF_MAP_LOOKUP_AND_DELETE_ELEM, map, NULL, &value, 0) == 0)
        printf(" %lu", value);
    printf("\n");
}

/* Adds up all values, or takes them out. */
static void add_up(const char *what, int command)
{
    uint64_t keys[BATCH], values[BATCH], sum = 0;
    uint32_t from = 0, read = 0;
    union bpf_attr attr;
    for (int end = 0, first = 1; !end; first = 0) {
        memset(&attr, 0, sizeof attr);
        attr.batch.in_batch = first ? 0 : (uintptr_t)&from;
        attr.batch.out_batch = (uintptr_t)&from;
        attr.batch.keys = (uintptr_t)keys;
        attr.batch.values = (uintptr_t)values;
        attr.batch.count = BATCH;
        attr.batch.map_fd = (uint32_t)hash;
        int result = bpf(command, &attr);
        if (result < 0 && result != -ENOENT)
            die(what, result);
        end = result < 0;
        for (uint32_t n = 0; n < attr.batch.count; n++)
            sum += values[n];
        read += attr.batch.count;
    }
    printf("%s: %u, sum %lu\n", what, read, sum);
}

int main(int argc, char **argv)
{
    if (argc < 2)
        die("usage", -EINVAL);
    queue = good("queue", create_map(BPF_MAP_TYPE_QUEUE, 0, 8, 8, 0, 0));
    stack = good("stack", create_map(BPF_MAP_TYPE_STACK, 0, 8, 8, 0, 0));
    filter = good("filter", create_map(BPF_MAP_TYPE_BLOOM_FILTER, 0, 8, 64, 0, 0));
    seen = good("array", create_map(BPF_MAP_TYPE_ARRAY, 4, 16, 1, 0, 0));
    hash = good("hash", create_map(BPF_MAP_TYPE_HASH, 8, 8, 2 * ELEMENTS, 0, 0));
    for (uint64_t value = 1; value <= ELEMENTS; value++)
        good("update", update(hash, &value, &value, BPF_NOEXIST));
    for (uint64_t value = 1; value <= 3; value++) {
        good("push", push(queue, value));
        good("push", push(stack, value));
    }
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.raw_tracepoint.name = (uintptr_t)"sched_process_exec";
    attr.raw_tracepoint.prog_fd = (uint32_t)program("bothleaf");
    int link = good("BPF_RAW_TRACEPOINT_OPEN", bpf(BPF_RAW_TRACEPOINT_OPEN, &attr));
    good("push", push(queue, 4));
    good("push", push(stack, 4));
    good("push", push(filter, FILTERED));
    pid_t child = fork();
    if (child == 0) {
        execv(argv[1], argv + 1);
        _exit(127);
    }
    waitpid(child, NULL, 0);
    close(link);
    uint32_t key = 0;
    int64_t asked[2];
    good("look-up", lookup(seen, &key, asked));
    show("queue", queue);
    show("stack", stack);
    printf("filter: %ld, then %ld\n", asked[0], asked[1]);
    add_up("read", BPF_MAP_LOOKUP_BATCH);
    add_up("taken", BPF_MAP_LOOKUP_AND_DELETE_BATCH);
    add_up("left", BPF_MAP_LOOKUP_BATCH);
    return 0;
}
