/* A tool that exercises maps of objects by system calls and test runs, and prints what comes of it: the same on every
 * engine. Says nothing of ids and addresses, which are not. */
#include "functions.h"
#include "raw.h"
#include <fcntl.h>
#include <sys/stat.h>

enum { RAW_TP = BPF_PROG_TYPE_RAW_TRACEPOINT, KPROBE = BPF_PROG_TYPE_KPROBE };

static void say(const char *what, long result) { printf("%s: %ld\n", what, result); }

static const struct bpf_insn nothing[] = {MOV(0, 0), EXIT};

/* Every map type that a tool can create without more than sizes, as inner map. */
static void inner_types(void)
{
    static const struct { uint32_t type, key, value, entries, flags; } maps[] = {
        {BPF_MAP_TYPE_HASH, 4, 8, 4, 0},           {BPF_MAP_TYPE_ARRAY, 4, 8, 4, 0},
        {BPF_MAP_TYPE_PROG_ARRAY, 4, 4, 4, 0},     {BPF_MAP_TYPE_PERF_EVENT_ARRAY, 4, 4, 4, 0},
        {BPF_MAP_TYPE_PERCPU_HASH, 4, 8, 4, 0},    {BPF_MAP_TYPE_PERCPU_ARRAY, 4, 8, 4, 0},
        {BPF_MAP_TYPE_STACK_TRACE, 4, 8, 4, 0},    {BPF_MAP_TYPE_CGROUP_ARRAY, 4, 4, 4, 0},
        {BPF_MAP_TYPE_LRU_HASH, 4, 8, 4, 0},       {BPF_MAP_TYPE_LRU_PERCPU_HASH, 4, 8, 4, 0},
        {BPF_MAP_TYPE_LPM_TRIE, 8, 8, 4, 1},       {BPF_MAP_TYPE_QUEUE, 0, 8, 4, 0},
        {BPF_MAP_TYPE_STACK, 0, 8, 4, 0},          {BPF_MAP_TYPE_RINGBUF, 0, 0, 4096, 0},
        {BPF_MAP_TYPE_BLOOM_FILTER, 0, 8, 4, 0},   {BPF_MAP_TYPE_USER_RINGBUF, 0, 0, 4096, 0},
    };
    for (size_t i = 0; i < LENGTH(maps); i++) {
        int inner = create_map(maps[i].type, maps[i].key, maps[i].value, maps[i].entries, maps[i].flags, 0);
        int array = create_map(BPF_MAP_TYPE_ARRAY_OF_MAPS, 4, 4, 2, 0, inner);
        int hash = create_map(BPF_MAP_TYPE_HASH_OF_MAPS, 8, 4, 2, 0, inner);
        printf("inner type %u: %d %d %d\n", maps[i].type, inner < 0 ? inner : 0, array < 0 ? array : 0,
               hash < 0 ? hash : 0);
        if (array >= 0)
            say(" in itself", update_at(array, 0, (uint32_t)array));
        if (array >= 0)
            say(" nested", create_map(BPF_MAP_TYPE_ARRAY_OF_MAPS, 4, 4, 2, 0, array));
        if (array >= 0)
            say(" inserted", update_at(array, 0, (uint32_t)inner));
        close(hash), close(array), close(inner);
    }
    int program = loaded(LOAD(RAW_TP, nothing)), counter = create_counter();
    say("inner descriptor of nothing", create_map(BPF_MAP_TYPE_ARRAY_OF_MAPS, 4, 4, 2, 0, 999));
    say("inner descriptor -1", create_map(BPF_MAP_TYPE_HASH_OF_MAPS, 4, 4, 2, 0, -1));
    say("inner descriptor of a program", create_map(BPF_MAP_TYPE_ARRAY_OF_MAPS, 4, 4, 2, 0, program));
    say("inner descriptor of a file", create_map(BPF_MAP_TYPE_ARRAY_OF_MAPS, 4, 4, 2, 0, 0));
    say("values of 8 bytes", create_map(BPF_MAP_TYPE_ARRAY_OF_MAPS, 4, 8, 2, 0, counter));
    say("values of 8 bytes in a hash", create_map(BPF_MAP_TYPE_HASH_OF_MAPS, 4, 8, 2, 0, counter));
    say("both wrong", create_map(BPF_MAP_TYPE_ARRAY_OF_MAPS, 4, 8, 2, 0, 999));
    say("no elements", create_map(BPF_MAP_TYPE_ARRAY_OF_MAPS, 4, 4, 0, 0, counter));
    close(program), close(counter);
}

/* Which maps are like the template. */
static void likeness(void)
{
    static const struct { uint32_t type, key, value, entries, flags; } maps[] = {
        {BPF_MAP_TYPE_HASH, 4, 8, 4, 0},  {BPF_MAP_TYPE_HASH, 4, 8, 5, 0},
        {BPF_MAP_TYPE_HASH, 8, 8, 4, 0},  {BPF_MAP_TYPE_HASH, 4, 4, 4, 0},
        {BPF_MAP_TYPE_HASH, 4, 8, 4, BPF_F_NO_PREALLOC},  {BPF_MAP_TYPE_HASH, 4, 8, 4, BPF_F_RDONLY},
        {BPF_MAP_TYPE_HASH, 4, 8, 4, BPF_F_RDONLY_PROG},  {BPF_MAP_TYPE_ARRAY, 4, 8, 4, 0},
        {BPF_MAP_TYPE_ARRAY, 4, 8, 5, 0}, {BPF_MAP_TYPE_ARRAY, 4, 8, 4, BPF_F_INNER_MAP},
        {BPF_MAP_TYPE_ARRAY, 4, 8, 5, BPF_F_INNER_MAP},   {BPF_MAP_TYPE_ARRAY, 4, 8, 4, BPF_F_MMAPABLE},
        {BPF_MAP_TYPE_PERCPU_ARRAY, 4, 8, 4, 0},          {BPF_MAP_TYPE_PERCPU_ARRAY, 4, 8, 5, 0},
        {BPF_MAP_TYPE_RINGBUF, 0, 0, 4096, 0},            {BPF_MAP_TYPE_RINGBUF, 0, 0, 8192, 0},
        {BPF_MAP_TYPE_QUEUE, 0, 8, 4, 0}, {BPF_MAP_TYPE_QUEUE, 0, 8, 9, 0},
    };
    for (size_t i = 0; i < LENGTH(maps); i++) {
        int inner = create_map(maps[i].type, maps[i].key, maps[i].value, maps[i].entries, maps[i].flags, 0);
        int outer = create_map(BPF_MAP_TYPE_ARRAY_OF_MAPS, 4, 4, 1, 0, inner);
        printf("like %zu (%d):", i, outer < 0 ? outer : 0);
        for (size_t j = 0; j < LENGTH(maps); j++) {
            int other = create_map(maps[j].type, maps[j].key, maps[j].value, maps[j].entries, maps[j].flags, 0);
            printf(" %d", update_at(outer, 0, (uint32_t)other));
            close(other);
        }
        puts("");
        close(outer), close(inner);
    }
}

static int held(const void *key, int map, int command)
{
    uint32_t id = 0;
    int result = lookup(map, key, &id);
    if (result < 0)
        return result;
    int fd = fd_of_id(command, id);
    if (fd >= 0)
        close(fd);
    return fd < 0 ? fd : 1;
}

/* Elements of one map by all commands. `fit` are descriptors of two objects for it, which are closed. */
static void elements(const char *name, int map, int is_hash, const int fit[2], int is_program)
{
    uint64_t keys[4] = {0, 1, 2, 7}, next = 99;
    uint32_t id, ids[2] = {id_of(fit[0], is_program), id_of(fit[1], is_program)};
    int by_id = is_program ? BPF_PROG_GET_FD_BY_ID : BPF_MAP_GET_FD_BY_ID;
    printf("%s\n", name);
    say(" empty", lookup(map, &keys[0], &id));
    say(" first key of none", element(BPF_MAP_GET_NEXT_KEY, map, 0, &next, 0));
    for (uint64_t flags = 0; flags < 9; flags++) {
        printf(" flags %lu: %d %d\n", (unsigned long)flags, update(map, &keys[0], &fit[0], flags),
               update(map, &keys[3], &fit[0], flags));
        element(BPF_MAP_DELETE_ELEM, map, &keys[3], 0, 0);
    }
    for (int bad = -1; bad < 2; bad++)
        say(" bad descriptor", update(map, &keys[1], &bad, 0));
    int bad = 999;
    say(" no descriptor", update(map, &keys[1], &bad, 0));
    say(" bad descriptor, bad flags", update(map, &keys[1], &bad, BPF_EXIST | BPF_NOEXIST));
    say(" bad descriptor, bad key", update(map, &keys[3], &bad, 0));
    say(" own descriptor", update(map, &keys[1], &map, 0));
    say(" another", update(map, &keys[1], &fit[1], 0));
    say(" full or out of range", update(map, &keys[3], &fit[1], 0));
    id = 0;
    say(" look-up", lookup(map, &keys[0], &id));
    say(" is the first", id == ids[0]);
    say(" look-up", lookup(map, &keys[1], &id));
    say(" is the second", id == ids[1]);
    say(" look-up of none", lookup(map, &keys[3], &id));
    say(" look-up and delete", element(BPF_MAP_LOOKUP_AND_DELETE_ELEM, map, &keys[0], &id, 0));
    say(" first key", element(BPF_MAP_GET_NEXT_KEY, map, 0, &next, 0));
    say(" is one", next < 2);
    if (!is_hash) {
        say(" next key", element(BPF_MAP_GET_NEXT_KEY, map, &keys[0], &next, 0));
        say(" last key", element(BPF_MAP_GET_NEXT_KEY, map, &keys[1], &next, 0));
    }
    close(fit[0]), close(fit[1]);
    say(" held without descriptor", held(&keys[0], map, by_id));
    say(" delete", element(BPF_MAP_DELETE_ELEM, map, &keys[0], 0, 0));
    say(" delete again", element(BPF_MAP_DELETE_ELEM, map, &keys[0], 0, 0));
    say(" delete out of range", element(BPF_MAP_DELETE_ELEM, map, &keys[3], 0, 0));
    say(" the second stays", held(&keys[1], map, by_id));
    say(" freeze", element(BPF_MAP_FREEZE, map, 0, 0, 0));
    say(" frozen", update(map, &keys[1], &map, 0));
    close(map);
}

static int batch(int command, int map, void *keys, void *values, uint32_t *count, uint32_t *cursor, int goes_on)
{
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.batch.map_fd = (uint32_t)map;
    attr.batch.keys = (uintptr_t)keys;
    attr.batch.values = (uintptr_t)values;
    attr.batch.count = *count;
    attr.batch.in_batch = goes_on ? (uintptr_t)cursor : 0;
    attr.batch.out_batch = (uintptr_t)cursor;
    int result = bpf(command, &attr);
    *count = attr.batch.count;
    return result;
}

/* Three elements at once, of which there is room for two. */
static void batches(const char *name, int map, int is_hash, const int fit[2], int is_program)
{
    uint32_t few[3] = {0, 1, 2}, fds[3] = {(uint32_t)fit[0], (uint32_t)fit[1], (uint32_t)fit[0]}, ids[8] = {0}, seen[16];
    uint64_t many[3] = {0, 1, 2};
    uint32_t count = 3, cursor[2] = {0}, sum = 2 * id_of(fit[0], is_program) + id_of(fit[1], is_program);
    void *keys = is_hash ? (void *)many : (void *)few;
    printf("%s in batches\n", name);
    int result = batch(BPF_MAP_UPDATE_BATCH, map, keys, fds, &count, cursor, 0);
    printf(" update %d, %u done\n", result, count);
    count = 8;
    result = batch(BPF_MAP_LOOKUP_BATCH, map, seen, ids, &count, cursor, 0);
    printf(" look-up %d, %u done, ids %d\n", result, count, ids[0] + ids[1] + id_of(fit[0], is_program) == sum);
    count = 2;
    result = batch(BPF_MAP_DELETE_BATCH, map, keys, 0, &count, cursor, 0);
    printf(" delete %d, %u done\n", result, count);
    count = 8;
    result = batch(BPF_MAP_LOOKUP_AND_DELETE_BATCH, map, seen, ids, &count, cursor, 0);
    printf(" take %d\n", result);
    close(map), close(fit[0]), close(fit[1]);
}

static void all_batches(void)
{
    int maps[2] = {create_counter(), create_counter()};
    batches("array of maps", create_map(BPF_MAP_TYPE_ARRAY_OF_MAPS, 4, 4, 2, 0, maps[0]), 0, maps, 0);
    int others[2] = {create_counter(), create_counter()};
    batches("hash of maps", create_map(BPF_MAP_TYPE_HASH_OF_MAPS, 8, 4, 2, 0, others[0]), 1, others, 0);
    int programs[2] = {loaded(LOAD(RAW_TP, nothing)), loaded(LOAD(RAW_TP, nothing))};
    batches("program array", create_map(BPF_MAP_TYPE_PROG_ARRAY, 4, 4, 2, 0, 0), 0, programs, 1);
}

static void all_elements(void)
{
    int maps[2] = {create_counter(), create_counter()};
    int array = good("array of maps", create_map(BPF_MAP_TYPE_ARRAY_OF_MAPS, 4, 4, 2, 0, maps[0]));
    elements("array of maps", array, 0, maps, 0);
    int others[2] = {create_counter(), create_counter()};
    int hash = good("hash of maps", create_map(BPF_MAP_TYPE_HASH_OF_MAPS, 8, 4, 2, 0, others[0]));
    elements("hash of maps", hash, 1, others, 0);
    int programs[2] = {loaded(LOAD(RAW_TP, nothing)), loaded(LOAD(RAW_TP, nothing))};
    int programs_array = good("program array", create_map(BPF_MAP_TYPE_PROG_ARRAY, 4, 4, 2, 0, 0));
    elements("program array", programs_array, 0, programs, 1);
}

/* tail_call(context, programs, index); else r0 = otherwise. The context is in r6. */
#define TAIL_CALL(programs, index) MOVR(1, 6), LD_MAP(2, programs), MOV(3, index), CALL(BPF_FUNC_tail_call)

static void program_types(void)
{
    int array = good("program array", create_map(BPF_MAP_TYPE_PROG_ARRAY, 4, 4, 4, 0, 0));
    int raw = loaded(LOAD(RAW_TP, nothing)), probe = loaded(LOAD(KPROBE, nothing));
    int session = load_program(KPROBE, BPF_TRACE_KPROBE_MULTI, nothing, LENGTH(nothing));
    const struct bpf_insn calls[] = {MOVR(6, 1), TAIL_CALL(array, 0), MOV(0, 3), EXIT};
    say("first type", update_at(array, 0, (uint32_t)probe));
    say("another type", update_at(array, 1, (uint32_t)raw));
    say("another attach type", update_at(array, 1, (uint32_t)session));
    say("a user of another type", LOAD(RAW_TP, calls));
    say("a user of the type", LOAD(KPROBE, calls) >= 0);
    int decided = good("program array", create_map(BPF_MAP_TYPE_PROG_ARRAY, 4, 4, 4, 0, 0));
    const struct bpf_insn decides[] = {MOVR(6, 1), TAIL_CALL(decided, 0), MOV(0, 3), EXIT};
    say("a user decides", LOAD(RAW_TP, decides) >= 0);
    say("not its type", update_at(decided, 0, (uint32_t)probe));
    say("its type", update_at(decided, 0, (uint32_t)raw));
}

/* As LOAD, of a program whose second function begins at a slot: without type information of both the kernel has no tail
 * calls in functions. */
static int load_with_function(const struct bpf_insn *body, size_t length, int second)
{
    struct bpf_func_info functions[2];
    union bpf_attr attr = program_attr(RAW_TP, body, length);
    describe_functions(&attr, functions, second);
    int program = loaded(bpf(BPF_PROG_LOAD, &attr));
    close((int)attr.prog_btf_fd);
    return program;
}

/* The next program returns in place of the function, into a program that has its own maps again. */
static void tail_calls_in_functions(int array, int a, int b, uint32_t endless)
{
    const struct bpf_insn once[] = {
        MOVR(6, 1), CALL_LOCAL(7), MOVR(7, 0), COUNT(a), MOVR(0, 7), EXIT,
        MOVR(6, 1), TAIL_CALL(array, 2), MOV(0, 6), EXIT,
    };
    const struct bpf_insn nesting[] = {
        MOVR(6, 1), COUNT(b), MOVR(1, 6), CALL_LOCAL(7), MOVR(7, 0), COUNT(a), MOVR(0, 7), EXIT,
        MOVR(6, 1), TAIL_CALL(array, 0), MOV(0, 6), EXIT,
    };
    int program = load_with_function(once, LENGTH(once), 9), nested = load_with_function(nesting, LENGTH(nesting), 14);
    say("in a function", run_once(program));
    printf("returns %ld, runs %ld\n", take_count(a), take_count(b));
    say("to nothing", delete_at(array, 2));
    say("in a function", run_once(program));
    printf("returns %ld, runs %ld\n", take_count(a), take_count(b));
    say("itself", update_at(array, 0, (uint32_t)nested));
    say("nested", run_once(nested));
    printf("returns %ld, runs %ld\n", take_count(a), take_count(b));
    say("as before", update_at(array, 0, endless));
    say("as before", update_at(array, 2, (uint32_t)program));
}

static void tail_calls(void)
{
    int a = create_counter(), b = create_counter();
    int array = good("program array", create_map(BPF_MAP_TYPE_PROG_ARRAY, 4, 4, 8, 0, 0));
    const struct bpf_insn again[] = {MOVR(6, 1), COUNT(a), TAIL_CALL(array, 0), COUNT(b), MOV(0, 3), EXIT};
    int endless = loaded(LOAD(RAW_TP, again));
    say("alone", run_once(endless));
    printf("runs %ld, falls %ld\n", take_count(a), take_count(b));
    say("itself", update_at(array, 0, (uint32_t)endless));
    say("endless", run_once(endless));
    printf("runs %ld, falls %ld\n", take_count(a), take_count(b));

    /* Calls that find nothing, and how they count. */
    const struct bpf_insn missing[] = {
        MOVR(6, 1),        COUNT(a),           TAIL_CALL(array, 5), TAIL_CALL(array, 8), TAIL_CALL(array, -1),
        TAIL_CALL(array, 5), TAIL_CALL(array, 1), MOV(0, 4), EXIT,
    };
    int misses = loaded(LOAD(RAW_TP, missing));
    say("misses", update_at(array, 1, (uint32_t)misses));
    say("run", run_once(misses));
    printf("runs %ld, falls %ld\n", take_count(a), take_count(b));

    /* The index has 32 bits. */
    const struct bpf_insn wide[] = {
        MOVR(6, 1), COUNT(a), MOVR(1, 6), LD_MAP(2, array), LD_64(3, 0x500000002), CALL(BPF_FUNC_tail_call), MOV(0, 5), EXIT,
    };
    const struct bpf_insn other[] = {COUNT(b), MOV(0, 77), EXIT};
    int last = loaded(LOAD(RAW_TP, other));
    say("other", update_at(array, 2, (uint32_t)last));
    say("wide", run_once(loaded(LOAD(RAW_TP, wide))));
    printf("runs %ld, falls %ld\n", take_count(a), take_count(b));

    tail_calls_in_functions(array, a, b, (uint32_t)endless);
    say("empties", delete_at(array, 2));

    /* Replaced and deleted between runs. */
    say("replaced", update_at(array, 0, (uint32_t)last));
    say("run", run_once(endless));
    say("deleted", delete_at(array, 0));
    say("run", run_once(endless));
    take_count(a), take_count(b);

    /* With the last descriptor of the array its elements go. */
    int kept = dup(array);
    say("once more", update_at(array, 0, (uint32_t)last));
    close(array);
    say("run with a copy of the descriptor", run_once(endless));
    close(kept);
    int result = 77;
    /* The kernel does it a little later. */
    for (int i = 0; result == 77 && i < 100000; i++)
        result = run_once(endless);
    say("run without", result);
}

/* outer[key] -> inner; inner[0] += 1. Returns 1, or 2 where there is none. */
static int load_inner_counter(uint32_t type, int outer)
{
    const struct bpf_insn body[] = {
        ST(BPF_DW, 10, -8, 0),  MOVR(2, 10), ADD(2, -8),       LD_MAP(1, outer),
        CALL(BPF_FUNC_map_lookup_elem), JEQ(0, 0, 12), MOVR(1, 0), ST(BPF_W, 10, -12, 0), MOVR(2, 10), ADD(2, -12),
        CALL(BPF_FUNC_map_lookup_elem), JEQ(0, 0, 4), MOV(1, 1), ATOMIC_ADD(0, 1, 0), MOV(0, 1), EXIT,
        MOV(0, 9), EXIT, MOV(0, 2), EXIT,
    };
    return loaded(LOAD(type, body));
}

static void inner_maps(void)
{
    int first = create_counter(), second = create_counter();
    for (int is_hash = 0; is_hash < 2; is_hash++) {
        uint32_t type = is_hash ? BPF_MAP_TYPE_HASH_OF_MAPS : BPF_MAP_TYPE_ARRAY_OF_MAPS;
        uint64_t key = 0;
        int outer = good("outer", create_map(type, is_hash ? 8 : 4, 4, 4, 0, first));
        int program = load_inner_counter(RAW_TP, outer);
        say("no inner map", run_once(program));
        say("insert", update(outer, &key, &first, 0));
        say("run", run_once(program));
        say("replace", update(outer, &key, &second, 0));
        say("run", run_once(program));
        say("delete", element(BPF_MAP_DELETE_ELEM, outer, &key, 0, 0));
        say("run", run_once(program));
        printf("first %ld, second %ld\n", take_count(first), take_count(second));
    }
}

int main(void)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    inner_types();
    likeness();
    all_elements();
    all_batches();
    program_types();
    tail_calls();
    inner_maps();
    return 0;
}
