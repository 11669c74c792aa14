/* Random operations on random maps, by a tool and by programs, with a transcript.
 *
 *     differ SEED FIRST COUNT quiet|verbose KIND...
 *
 * Does the rounds FIRST to FIRST + COUNT - 1. A round makes one map, of the kinds by turns, and works on it by bpf(2)
 * and by a program that is run by BPF_PROG_TEST_RUN; everything follows from SEED and the round's number. For each it
 * prints one line with a digest of all results, or, if verbose, every operation with its result. The same
 * transcript must come from whoever runs it: what the kernel leaves open (the order of a hash's elements, what a bloom
 * filter says of what is not in it) is sorted or left out, and nothing else is. It must be kept on CPU 0.
 *
 * The program is an interpreter: it takes operations from one array and writes results to another, so that one test
 * run does SCRIPT operations at the price of one call. Exit code 0 if all rounds could be done. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/bpf.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SCRIPT = 192, LONGEST = 64, CPUS_AT_MOST = 64, RUNS = 24, PAGE = 4096 };
enum family { KEYED, INDEXED, PREFIXED, PILE, BLOOM, RING };

struct kind {
    const char *name;
    uint32_t type;
    enum family family;
    int is_percpu, is_lru;
};

static const struct kind KINDS[] = {
    {"hash", BPF_MAP_TYPE_HASH, KEYED, 0, 0},
    {"percpu_hash", BPF_MAP_TYPE_PERCPU_HASH, KEYED, 1, 0},
    {"lru_hash", BPF_MAP_TYPE_LRU_HASH, KEYED, 0, 1},
    {"lru_percpu_hash", BPF_MAP_TYPE_LRU_PERCPU_HASH, KEYED, 1, 1},
    {"array", BPF_MAP_TYPE_ARRAY, INDEXED, 0, 0},
    {"percpu_array", BPF_MAP_TYPE_PERCPU_ARRAY, INDEXED, 1, 0},
    {"lpm_trie", BPF_MAP_TYPE_LPM_TRIE, PREFIXED, 0, 0},
    {"queue", BPF_MAP_TYPE_QUEUE, PILE, 0, 0},
    {"stack", BPF_MAP_TYPE_STACK, PILE, 0, 0},
    {"bloom", 30, BLOOM, 0, 0},
    {"ringbuf", BPF_MAP_TYPE_RINGBUF, RING, 0, 0},
};

/* An operation for the program, and its result. */
struct order {
    uint32_t what, size;
    uint64_t flags;
    uint8_t key[LONGEST], value[LONGEST];
};
struct outcome {
    int64_t ret;
    uint8_t value[LONGEST];
};

/* What the program does; which numbers mean what depends on the map's family. */
enum { LOOKUP, UPDATE, DELETE, MODIFY, KEYED_ORDERS };
enum { PUSH, POP, PEEK, PILE_ORDERS };
enum { OUTPUT, SUBMIT, DISCARD, QUERY, RING_ORDERS };

static const struct kind *kind;
static uint32_t key_size, value_size, max_entries, flags, universe;
static uint64_t map_extra;
static int map = -1, script = -1, results = -1, program = -1;
static uint32_t cpus;
static int verbose;

/* --- random numbers and the transcript --- */

static uint64_t state;

static uint64_t mixed(uint64_t word)
{
    word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9;
    word = (word ^ word >> 27) * 0x94d049bb133111eb;
    return word ^ word >> 31;
}

static uint64_t any(void) { return mixed(state += 0x9e3779b97f4a7c15); }
static uint64_t below(uint64_t limit) { return any() % limit; }

static uint64_t digest, operations;

static void note(const void *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++)
        digest = (digest ^ ((const uint8_t *)bytes)[i]) * 0x100000001b3;
}

static void hex(const char *name, const uint8_t *bytes, size_t length)
{
    if (length)
        printf(" %s ", name);
    for (size_t i = 0; i < length; i++)
        printf("%02x", bytes[i]);
}

/* One line of the transcript: an operation's arguments, its result, and the value that it gave, if any. */
static void tell(const char *what, const uint8_t *key, const uint8_t *value, uint64_t with, int64_t ret,
                 const uint8_t *out, size_t length)
{
    operations++;
    note(&ret, sizeof ret);
    note(out, length);
    if (!verbose)
        return;
    printf("  %s", what);
    if (key)
        hex("key", key, key_size);
    if (value)
        hex("value", value, value_size);
    printf(" flags %llu = %lld", (unsigned long long)with, (long long)ret);
    hex("gives", out, length);
    putchar('\n');
}

static void die(const char *what)
{
    fflush(stdout);
    fprintf(stderr, "differ: %s of a %s (key %u, value %u, max %u, flags %#x): %s\n", what, kind->name, key_size,
            value_size, max_entries, flags, strerror(errno));
    exit(1);
}

/* --- bpf(2) --- */

static long bpf(int command, union bpf_attr *attr)
{
    long result = syscall(SYS_bpf, command, attr, sizeof *attr);
    return result < 0 ? -errno : result;
}

static long element(int command, int fd, const void *key, void *value, uint64_t with)
{
    union bpf_attr attr = {.map_fd = fd, .key = (uintptr_t)key, .value = (uintptr_t)value, .flags = with};
    return bpf(command, &attr);
}

static int create(uint32_t type, uint32_t key, uint32_t value, uint32_t entries, uint32_t with, uint64_t extra)
{
    union bpf_attr attr = {
        .map_type = type, .key_size = key, .value_size = value, .max_entries = entries, .map_flags = with};
    /* map_extra: newer than some headers. */
    memcpy((char *)&attr + 64, &extra, sizeof extra);
    return bpf(BPF_MAP_CREATE, &attr);
}

/* --- keys and values --- */

static void choose_key(uint8_t *key)
{
    memset(key, 0, LONGEST);
    uint64_t number = below(universe);
    if (kind->family == PREFIXED) {
        /* Few bits that differ, so that prefixes lie in each other. */
        uint32_t bits = 8 * (key_size - 4), length = below(bits + 1);
        if (below(40) == 0)
            length = bits + 1 + below(3);
        memcpy(key, &length, 4);
        for (uint32_t i = 4; i < key_size; i++)
            key[i] = "\x00\x80\xff\x01"[below(4)];
        return;
    }
    for (uint32_t i = 0; i < key_size; i++)
        key[i] = i < 4 ? number >> 8 * i : kind->family == INDEXED ? 0 : mixed(number + i);
}

static void choose_value(uint8_t *value)
{
    uint64_t seed = kind->family == BLOOM ? below(universe) : any();
    for (uint32_t i = 0; i < LONGEST; i++)
        value[i] = i < value_size ? mixed(seed + i / 8) >> i % 8 * 8 : 0;
}

static uint64_t choose_flags(void)
{
    static const uint64_t CHOICES[] = {0, 0, 0, 0, 1, 2, 2, 3, 4, 8, 1ull << 40};
    return CHOICES[below(sizeof CHOICES / sizeof *CHOICES)];
}

static size_t stride(void) { return kind->is_percpu ? (value_size + 7) / 8 * 8 : value_size; }
static size_t copies(void) { return kind->is_percpu ? cpus : 1; }

/* What pads a per-CPU value is not part of it. */
static size_t squeeze(uint8_t *values)
{
    for (size_t cpu = 0; cpu < copies(); cpu++)
        memmove(values + cpu * value_size, values + cpu * stride(), value_size);
    return copies() * value_size;
}

/* --- what a bloom filter must say: the values that were pushed --- */

static uint64_t pushed[1 << 14];
static size_t pushed_count;

static uint64_t name_of(const uint8_t *value)
{
    uint64_t name = 0;
    for (uint32_t i = 0; i < value_size; i++)
        name = mixed(name ^ value[i]) + i;
    return name;
}

static int was_pushed(const uint8_t *value)
{
    uint64_t name = name_of(value);
    for (size_t i = 0; i < pushed_count; i++)
        if (pushed[i] == name)
            return 1;
    return 0;
}

static void remember(const uint8_t *value)
{
    if (pushed_count < sizeof pushed / sizeof *pushed && !was_pushed(value))
        pushed[pushed_count++] = name_of(value);
}

#include "differ_program.h"

/* --- test runs --- */

static void tell_keyed(const struct order *order, const struct outcome *outcome)
{
    static const char *NAMES[] = {"program lookup", "program update", "program delete", "program modify"};
    int gives = order->what != UPDATE && order->what != DELETE && outcome->ret == 1;
    tell(NAMES[order->what], order->key, order->value, order->flags, outcome->ret, outcome->value,
         gives ? value_size : 0);
}

static void tell_pile(const struct order *order, const struct outcome *outcome)
{
    static const char *NAMES[] = {"program push", "program pop", "program peek"};
    if (kind->family == BLOOM) {
        if (order->what == PEEK && outcome->ret && !was_pushed(order->value))
            return tell(NAMES[PEEK], 0, order->value, 0, -ENOENT, 0, 0);
        if (order->what == PEEK && !was_pushed(order->value))
            return tell(NAMES[PEEK], 0, order->value, 0, -ENOENT, 0, 0);
        if (order->what == PUSH && outcome->ret == 0)
            remember(order->value);
        return tell(NAMES[order->what], 0, order->value, order->flags, outcome->ret, 0, 0);
    }
    tell(NAMES[order->what], 0, order->what == PUSH ? order->value : 0, order->flags, outcome->ret, outcome->value,
         order->what != PUSH && outcome->ret == 0 ? value_size : 0);
}

static void tell_ring(const struct order *order, const struct outcome *outcome)
{
    static const char *NAMES[] = {"program output", "program submit", "program discard", "program query"};
    tell(NAMES[order->what], 0, 0, order->what == OUTPUT ? order->flags << 32 | (order->size & 127) : order->flags,
         outcome->ret, 0, 0);
}

/* One test run: SCRIPT random operations of the program. */
static void run(void)
{
    static struct order todo[SCRIPT];
    static struct outcome done[SCRIPT];
    uint32_t zero = 0;
    for (int i = 0; i < SCRIPT; i++) {
        struct order *order = &todo[i];
        do
            order->what = below(orders());
        while (!is_served(order->what));
        order->size = any();
        order->flags = kind->family == RING ? below(5) : choose_flags();
        choose_key(order->key);
        choose_value(order->value);
    }
    memset(done, 0, sizeof done);
    if (element(BPF_MAP_UPDATE_ELEM, script, &zero, todo, 0) || element(BPF_MAP_UPDATE_ELEM, results, &zero, done, 0))
        die("no script for the program");
    union bpf_attr attr = {.test = {.prog_fd = program}};
    long ran = bpf(BPF_PROG_TEST_RUN, &attr);
    if (ran < 0) {
        errno = -ran;
        die("no test run");
    }
    if (element(BPF_MAP_LOOKUP_ELEM, results, &zero, done, 0))
        die("no results of the program");
    for (int i = 0; i < SCRIPT; i++)
        (kind->family == RING ? tell_ring : kind->family >= PILE ? tell_pile : tell_keyed)(&todo[i], &done[i]);
}

/* --- the tool's own operations --- */

static uint8_t in[LONGEST * CPUS_AT_MOST], out[LONGEST * CPUS_AT_MOST];

static void fill_values(void)
{
    memset(in, 0, sizeof in);
    for (size_t cpu = 0; cpu < copies(); cpu++) {
        uint8_t value[LONGEST];
        choose_value(value);
        memcpy(in + cpu * stride(), value, value_size);
    }
}

static int by_bytes(const void *a, const void *b, void *size) { return memcmp(a, b, *(size_t *)size); }

/* All keys, with their values, sorted where the order is open. With `take` each is deleted as it is seen. */
static void walk(int take)
{
    size_t size = key_size + copies() * value_size, count = 0, limit = 2 * max_entries + 8;
    uint8_t *all = calloc(limit, size), key[LONGEST], next[LONGEST];
    long ret = element(BPF_MAP_GET_NEXT_KEY, map, 0, next, 0);
    while (ret == 0 && count < limit) {
        memcpy(key, next, key_size);
        memset(out, 0, sizeof out);
        ret = element(BPF_MAP_LOOKUP_ELEM, map, key, out, 0);
        if (ret)
            break;
        if (take && (ret = element(BPF_MAP_DELETE_ELEM, map, key, 0, 0)))
            break; /* which key is the first is open */
        squeeze(out);
        memcpy(all + count * size, key, key_size);
        memcpy(all + count * size + key_size, out, size - key_size);
        count++;
        ret = element(BPF_MAP_GET_NEXT_KEY, map, key, next, 0);
    }
    if (kind->family == KEYED)
        qsort_r(all, count, size, by_bytes, &size);
    for (size_t i = 0; i < count; i++)
        tell(take ? "walk and delete" : "walk", all + i * size, 0, 0, i, all + i * size + key_size, size - key_size);
    tell("end of walk", 0, 0, 0, ret, 0, 0);
    free(all);
}

/* All elements by batches of `each`, and more if the kernel says that a bucket holds more. */
static void batches(int command, uint32_t each)
{
    size_t size = key_size + copies() * value_size, count = 0, limit = 2 * max_entries + 8;
    uint8_t *all = calloc(limit, size), *keys = calloc(limit, key_size);
    uint8_t *values = calloc(limit, copies() * stride());
    uint8_t cursor[2][LONGEST];
    long ret = 0;
    int first = 1;
    while (ret == 0 && count < limit) {
        union bpf_attr attr = {.batch = {.in_batch = first ? 0 : (uintptr_t)cursor[0],
                                         .out_batch = (uintptr_t)cursor[1],
                                         .keys = (uintptr_t)keys,
                                         .values = (uintptr_t)values,
                                         .count = each,
                                         .map_fd = map}};
        ret = bpf(command, &attr);
        if (ret == -ENOSPC && each < limit) {
            each = each * 2 < limit ? each * 2 : limit;
            ret = 0;
            continue;
        }
        if (ret && ret != -ENOENT)
            break;
        for (uint32_t i = 0; i < attr.batch.count && count < limit; i++, count++) {
            squeeze(values + i * copies() * stride());
            memcpy(all + count * size, keys + i * key_size, key_size);
            memcpy(all + count * size + key_size, values + i * copies() * stride(), copies() * value_size);
        }
        memcpy(cursor[0], cursor[1], sizeof *cursor);
        first = 0;
    }
    if (kind->family == KEYED)
        qsort_r(all, count, size, by_bytes, &size);
    for (size_t i = 0; i < count; i++)
        tell("batch", all + i * size, 0, command, i, all + i * size + key_size, size - key_size);
    tell("end of batches", 0, 0, command, ret, 0, 0);
    free(all), free(keys), free(values);
}

/* Updates or deletes a few elements by one call. */
static void change_batch(int command)
{
    uint32_t count = 1 + below(12);
    uint8_t *keys = calloc(count, key_size), *values = calloc(count, copies() * stride());
    for (uint32_t i = 0; i < count; i++) {
        uint8_t key[LONGEST];
        choose_key(key);
        fill_values();
        memcpy(keys + i * key_size, key, key_size);
        memcpy(values + i * copies() * stride(), in, copies() * stride());
    }
    union bpf_attr attr = {
        .batch = {.keys = (uintptr_t)keys, .values = (uintptr_t)values, .count = count, .map_fd = map}};
    long ret = bpf(command, &attr);
    tell(command == BPF_MAP_UPDATE_BATCH ? "update batch" : "delete batch", 0, 0, count, ret, 0, 0);
    /* The kernel leaves the count alone where a map has no batches. */
    if (ret != -ENOTSUP && ret != -524)
        tell("done of the batch", 0, 0, count, attr.batch.count, 0, 0);
    free(keys), free(values);
}

static void one_element(void)
{
    static const struct { const char *name; int command; } COMMANDS[] = {
        {"lookup", BPF_MAP_LOOKUP_ELEM}, {"update", BPF_MAP_UPDATE_ELEM}, {"delete", BPF_MAP_DELETE_ELEM},
        {"lookup and delete", BPF_MAP_LOOKUP_AND_DELETE_ELEM}, {"next key", BPF_MAP_GET_NEXT_KEY}};
    uint8_t key[LONGEST];
    size_t which = below(5);
    int command = COMMANDS[which].command;
    choose_key(key);
    fill_values();
    memset(out, 0, sizeof out);
    if (command == BPF_MAP_GET_NEXT_KEY && kind->family == KEYED)
        return; /* in open order: walk() */
    int is_update = command == BPF_MAP_UPDATE_ELEM;
    uint64_t with = is_update ? choose_flags() : below(12) ? 0 : choose_flags();
    if (command == BPF_MAP_GET_NEXT_KEY || command == BPF_MAP_DELETE_ELEM)
        with = 0; /* no field of theirs: the kernel refuses the attribute */
    if (kind->family == BLOOM && command == BPF_MAP_LOOKUP_ELEM)
        memcpy(out, in, value_size);
    long ret = element(command, map, key_size ? key : 0, is_update ? in : out, with);
    size_t given = command == BPF_MAP_GET_NEXT_KEY ? key_size : squeeze(out);
    if (kind->family == BLOOM) {
        if (is_update && ret == 0)
            remember(in);
        if (command == BPF_MAP_LOOKUP_ELEM && !was_pushed(in) && (ret == 0 || ret == -ENOENT))
            ret = -ENOENT;
        given = 0;
    }
    tell(COMMANDS[which].name, key, is_update ? in : 0, with, ret, out, ret == 0 && !is_update ? given : 0);
}

/* Takes what is in the ring buffer as libbpf does. */
static uint8_t *ring_page, *ring_data;

static void map_ring(void)
{
    ring_page = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, map, 0);
    ring_data = mmap(0, PAGE + 2 * (size_t)max_entries, PROT_READ, MAP_SHARED, map, PAGE);
    if (ring_page == MAP_FAILED || ring_data == MAP_FAILED)
        die("no mapping");
}

static void consume(uint64_t at_most)
{
    uint64_t *consumer = (uint64_t *)ring_page, position = *consumer;
    while (at_most-- && position < __atomic_load_n((uint64_t *)ring_data, __ATOMIC_ACQUIRE)) {
        uint8_t *record = ring_data + PAGE + (position & (max_entries - 1));
        uint32_t header = __atomic_load_n((uint32_t *)record, __ATOMIC_ACQUIRE), size = header & ~(3u << 30);
        tell("record", 0, 0, size, header, record + 8, header >> 30 ? 0 : size);
        position += (size + 8 + 7) / 8 * 8;
        __atomic_store_n(consumer, position, __ATOMIC_RELEASE);
    }
}

static void by_tool(void)
{
    if (kind->family == RING)
        return consume(below(60));
    for (int i = below(16); i > 0; i--)
        one_element();
    if (kind->family >= PILE)
        return;
    switch (below(10)) {
    case 0: return walk(0);
    case 1: return below(3) ? walk(0) : walk(1);
    case 2: return batches(BPF_MAP_LOOKUP_BATCH, 1 + below(max_entries + 3));
    case 3:
        if (kind->family != KEYED)
            return batches(BPF_MAP_LOOKUP_AND_DELETE_BATCH, 1 + below(5));
        return below(3) ? (void)0 : batches(BPF_MAP_LOOKUP_AND_DELETE_BATCH, 1 + below(max_entries + 3));
    case 4: return change_batch(BPF_MAP_UPDATE_BATCH);
    case 5: return change_batch(BPF_MAP_DELETE_BATCH);
    }
}

/* --- rounds --- */

static void choose_map(void)
{
    static const uint32_t SIZES[] = {1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 17, 24, 31, 32, 40, 48, 56, 63, 64};
    enum { SIZE_COUNT = sizeof SIZES / sizeof *SIZES };
    key_size = SIZES[below(SIZE_COUNT)];
    value_size = SIZES[below(SIZE_COUNT)];
    max_entries = below(3) ? 1 + below(20) : 1 + below(300);
    flags = map_extra = 0;
    universe = 1 + max_entries + below(max_entries + 2);
    if (kind->family == KEYED && !kind->is_lru && below(2))
        flags = BPF_F_NO_PREALLOC;
    if (kind->is_lru) {
        /* Below what makes it evict, which is the kernel's own choice. */
        max_entries += 40;
        universe = 1 + max_entries / 4;
    }
    if (key_size == 1 && universe > 256)
        universe = 256;
    if (kind->family == INDEXED)
        key_size = 4;
    if (kind->family == PREFIXED) {
        key_size = 5 + below(16);
        flags = BPF_F_NO_PREALLOC;
    }
    if (kind->family >= PILE)
        key_size = 0;
    if (kind->family == BLOOM)
        map_extra = below(16);
    if (kind->family == RING) {
        value_size = 0;
        max_entries = PAGE << below(3);
    }
}

static void round_of(uint64_t seed, uint64_t number)
{
    state = mixed(seed) ^ mixed(number * 2 + 1);
    digest = 0xcbf29ce484222325;
    pushed_count = 0;
    choose_map();
    map = create(kind->type, key_size, value_size, max_entries, flags, map_extra);
    if (map < 0) {
        errno = -map;
        die("no map");
    }
    load();
    if (kind->family == RING)
        map_ring();
    uint64_t before = operations;
    for (int i = 0; i < RUNS; i++) {
        by_tool();
        run();
    }
    if (below(3) == 0 && kind->family != RING) {
        union bpf_attr attr = {.map_fd = map};
        tell("freeze", 0, 0, 0, bpf(BPF_MAP_FREEZE, &attr), 0, 0);
        by_tool();
        run();
        by_tool();
    }
    if (kind->family == RING)
        consume(UINT64_MAX);
    else if (kind->family < PILE)
        walk(0);
    printf("round %llu %s key %u value %u max %u flags %#x extra %llu: %llu operations, digest %016llx\n",
           (unsigned long long)number, kind->name, key_size, value_size, max_entries, flags,
           (unsigned long long)map_extra, (unsigned long long)(operations - before), (unsigned long long)digest);
    if (kind->family == RING) {
        munmap(ring_page, PAGE);
        munmap(ring_data, PAGE + 2 * (size_t)max_entries);
    }
    close(program);
    close(map);
}

static const struct kind *kind_named(const char *name)
{
    for (size_t i = 0; i < sizeof KINDS / sizeof *KINDS; i++)
        if (strcmp(KINDS[i].name, name) == 0)
            return &KINDS[i];
    fprintf(stderr, "differ: no kind of map is called %s\n", name);
    exit(2);
}

/* Possible CPUs, as the size of per-CPU values counts them. */
static uint32_t possible_cpus(void)
{
    FILE *file = fopen("/sys/devices/system/cpu/possible", "r");
    unsigned first = 0, last = 0;
    int read = file ? fscanf(file, "%u-%u", &first, &last) : 0;
    if (file)
        fclose(file);
    return read == 2 ? last + 1 : first + 1;
}

int main(int argc, char **argv)
{
    if (argc < 6) {
        fprintf(stderr, "usage: differ SEED FIRST COUNT quiet|verbose KIND...\n");
        return 2;
    }
    uint64_t seed = strtoull(argv[1], 0, 0), first = strtoull(argv[2], 0, 0), count = strtoull(argv[3], 0, 0);
    verbose = strcmp(argv[4], "verbose") == 0;
    cpus = possible_cpus();
    if (cpus > CPUS_AT_MOST) {
        fprintf(stderr, "differ: %u CPUs are more than it has room for\n", cpus);
        return 2;
    }
    kind = kind_named("array");
    script = create(BPF_MAP_TYPE_ARRAY, 4, SCRIPT * sizeof(struct order), 1, 0, 0);
    results = create(BPF_MAP_TYPE_ARRAY, 4, SCRIPT * sizeof(struct outcome), 1, 0, 0);
    if (script < 0 || results < 0) {
        errno = script < 0 ? -script : -results;
        die("no map for the program");
    }
    for (uint64_t number = first; number < first + count; number++) {
        kind = kind_named(argv[5 + number % (argc - 5)]);
        round_of(seed, number);
    }
    printf("%llu operations\n", (unsigned long long)operations);
    return 0;
}
