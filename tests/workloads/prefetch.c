/* Goes through maps of some hundred elements in the ways that tools do: key by key with a look-up each, all keys first,
 * deleting and changing on the way, by duplicates and numbers that are used again, in children and threads, with places
 * that are not there. Prints what does not depend on the kernel's order, so that two runs can be compared; and on stderr
 * whether another's code is mapped. */
#define _GNU_SOURCE
#include "fast_path.h"
#include "raw.h"
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum { ELEMENTS = 400, WORDS = 256 };

static void fill(int map, uint64_t factor)
{
    for (uint64_t key = 0; key < ELEMENTS; key++) {
        uint64_t values[WORDS];
        for (int word = 0; word < WORDS; word++)
            values[word] = key * factor;
        element(BPF_MAP_UPDATE_ELEM, map, &key, values, 0);
    }
}

static int filled(uint32_t type, uint64_t factor)
{
    union bpf_attr attr = {.map_type = type, .key_size = 8, .value_size = 8, .max_entries = 10 * ELEMENTS};
    int map = good("map", bpf(BPF_MAP_CREATE, &attr));
    fill(map, factor);
    return map;
}

/* What is done with each element that an iteration comes to. */
enum { READ, READ_TWICE, DELETE, LEAVE };

static void iterate(const char *name, int map, int what)
{
    uint64_t key = 0, next = 0, values[WORDS] = {0}, keys = 0, sum = 0;
    long count = 0, failed = 0, found = element(BPF_MAP_GET_NEXT_KEY, map, 0, &next, 0);
    for (; found == 0 && count < 2 * ELEMENTS; count++) {
        key = next;
        keys += key;
        for (int turn = 0; turn < (what == READ_TWICE ? 2 : what != LEAVE); turn++) {
            failed += element(BPF_MAP_LOOKUP_ELEM, map, &key, values, 0);
            sum += values[0];
        }
        if (what == DELETE)
            failed += element(BPF_MAP_DELETE_ELEM, map, &key, 0, 0);
        found = element(BPF_MAP_GET_NEXT_KEY, map, &key, &next, 0);
    }
    printf("%s: %ld elements, keys %lu, values %lu, failed %ld, then %ld\n", name, count, (unsigned long)keys,
           (unsigned long)sum, failed, found);
}

/* All keys first, and twice; then the values, which may be changed, too: in an iteration the kernel would come to them again. */
static void gather(const char *name, int map, uint64_t change)
{
    static _Thread_local uint64_t keys[2 * ELEMENTS];
    uint64_t values[WORDS] = {0}, sum = 0;
    long count = 0, failed = 0;
    for (int turn = 0; turn < 2; turn++) {
        count = 0;
        while (count < 2 * ELEMENTS &&
               element(BPF_MAP_GET_NEXT_KEY, map, count ? &keys[count - 1] : 0, &keys[count], 0) == 0)
            count++;
    }
    for (long n = count - 1; n >= 0; n--) {
        for (int turn = 0; turn < (change ? 2 : 1); turn++) {
            failed += element(BPF_MAP_LOOKUP_ELEM, map, &keys[n], values, 0);
            sum += values[0];
            values[0] += change;
            if (change)
                failed += element(BPF_MAP_UPDATE_ELEM, map, &keys[n], values, BPF_EXIST);
        }
    }
    printf("%s: %ld elements, values %lu, failed %ld\n", name, count, (unsigned long)sum, failed);
}

/* One place for a key and the next, and places that are not there. */
static void places(int map)
{
    uint64_t key = 0, value = 0, sum = 0;
    long count = 1, found = element(BPF_MAP_GET_NEXT_KEY, map, 0, &key, 0);
    char *pages = mmap(0, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(pages + 4096, 4096, PROT_READ);
    mprotect(pages + 8192, 4096, PROT_NONE);
    for (; found == 0 && count < 2 * ELEMENTS; count++) {
        sum += key;
        found = element(BPF_MAP_GET_NEXT_KEY, map, &key, &key, 0);
        if (count != ELEMENTS / 2)
            continue;
        printf("next key nowhere: %d, read-only: %d, half: %d\n", element(BPF_MAP_GET_NEXT_KEY, map, &key, pages + 8192, 0),
               element(BPF_MAP_GET_NEXT_KEY, map, &key, pages + 4096, 0), element(BPF_MAP_GET_NEXT_KEY, map, &key, pages + 4092, 0));
        printf("key nowhere: %d, value nowhere: %d, null: %d\n", element(BPF_MAP_LOOKUP_ELEM, map, pages + 8192, &value, 0),
               element(BPF_MAP_LOOKUP_ELEM, map, &key, pages + 8192, 0), element(BPF_MAP_LOOKUP_ELEM, map, &key, 0, 0));
        printf("flags: %d, %d\n", element(BPF_MAP_LOOKUP_ELEM, map, &key, &value, 1),
               element(BPF_MAP_LOOKUP_ELEM, map, &key, &value, 1 << 20));
        uint64_t missing = 1 << 30;
        printf("a miss: %d\n", element(BPF_MAP_LOOKUP_ELEM, map, &missing, &value, 0));
        printf("again: %d\n", element(BPF_MAP_LOOKUP_ELEM, map, &key, &value, 0));
    }
    printf("in one place: %ld, keys %lu, then %ld\n", count, (unsigned long)sum, found);
}

static void *thread(void *map)
{
    for (int turn = 0; turn < 20; turn++) {
        uint64_t key = 0, next = 0, value, sum = 0;
        long found = element(BPF_MAP_GET_NEXT_KEY, *(int *)map, 0, &next, 0);
        for (int count = 0; found == 0 && count < 2 * ELEMENTS; count++) {
            key = next;
            if (element(BPF_MAP_LOOKUP_ELEM, *(int *)map, &key, &value, 0) == 0)
                sum += value == key * 7;
            found = element(BPF_MAP_GET_NEXT_KEY, *(int *)map, &key, &next, 0);
        }
        if (sum != ELEMENTS)
            return "wrong";
    }
    return "right";
}

/* A trie's element is changed by any key with the same prefix. */
static void tries(void)
{
    enum { PREFIXES = 16 };
    struct { uint32_t length, address; } key;
    int trie = good("trie", create_map(BPF_MAP_TYPE_LPM_TRIE, 8, 8, 100, BPF_F_NO_PREALLOC, 0));
    uint64_t value = 1, sum = 0;
    for (uint32_t n = 0; n < PREFIXES; n++) {
        key.length = 16, key.address = n << 8 | 10;
        update(trie, &key, &value, BPF_ANY);
    }
    gather("a trie", trie, 1000);
    for (uint32_t n = 0; n < PREFIXES; n++) {
        uint64_t next;
        for (long found = element(BPF_MAP_GET_NEXT_KEY, trie, 0, &next, 0); found == 0;)
            found = element(BPF_MAP_GET_NEXT_KEY, trie, &next, &next, 0);
        value = 7 + n, key.length = 16, key.address = n << 8 | 10 | 0x5550000;
        update(trie, &key, &value, BPF_ANY);
        key.address = n << 8 | 10;
        sum += element(BPF_MAP_LOOKUP_ELEM, trie, &key, &value, 0) == 0 ? value : 0;
    }
    printf("a trie by other keys: %lu\n", (unsigned long)sum);
    iterate("a trie", trie, DELETE);
}

/* A sum of values that are read by one descriptor behind changes by another one of the same map. */
static uint64_t read_behind(int changes, int reads)
{
    uint64_t sum = 0;
    for (uint64_t key = 0; key < 50; key++) {
        uint64_t next = 0, value = 100 + key;
        element(BPF_MAP_GET_NEXT_KEY, reads, 0, &next, 0);
        for (int n = 0; n < ELEMENTS; n++)
            element(BPF_MAP_GET_NEXT_KEY, reads, &next, &next, 0);
        update(changes, &key, &value, BPF_ANY);
        value = 0;
        element(BPF_MAP_LOOKUP_ELEM, reads, &key, &value, 0);
        sum += value;
    }
    return sum;
}

/* What is changed by another descriptor of the same map. */
static void names(int map)
{
    struct bpf_map_info info = {0};
    union bpf_attr attr = {.info = {.bpf_fd = (uint32_t)map, .info_len = sizeof info, .info = (uintptr_t)&info}};
    good("information", bpf(BPF_OBJ_GET_INFO_BY_FD, &attr));
    union bpf_attr by_id = {.map_id = info.id};
    int other = good("by id", bpf(BPF_MAP_GET_FD_BY_ID, &by_id));
    printf("by another descriptor: %lu\n", (unsigned long)read_behind(other, map));
    close(other);
}

static int stop;

static void *begins(void *map)
{
    uint64_t next;
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        element(BPF_MAP_GET_NEXT_KEY, *(int *)map, 0, &next, 0);
        element(BPF_MAP_GET_NEXT_KEY, *(int *)map, &next, &next, 0);
    }
    return 0;
}

/* What is changed by a program that is run on the way. */
static void runs(int map)
{
    uint64_t next = 0, value, sum = 0;
    for (int key = 0; key < 50; key++) {
        struct bpf_insn body[] = {
            MOV(1, key), STX(BPF_DW, 10, 1, -8), MOV(1, 1000 + key), STX(BPF_DW, 10, 1, -16),
            LD_MAP(1, map), MOVR(2, 10), ADD(2, -8), MOVR(3, 10), ADD(3, -16), MOV(4, BPF_EXIST),
            CALL(BPF_FUNC_map_update_elem), MOV(0, 0), EXIT,
        };
        int program = loaded(LOAD(BPF_PROG_TYPE_RAW_TRACEPOINT, body));
        element(BPF_MAP_GET_NEXT_KEY, map, 0, &next, 0);
        for (int n = 0; n < ELEMENTS; n++)
            element(BPF_MAP_GET_NEXT_KEY, map, &next, &next, 0);
        run_once(program);
        uint64_t wanted = (uint64_t)key;
        value = 0;
        element(BPF_MAP_LOOKUP_ELEM, map, &wanted, &value, 0);
        sum += value;
        close(program);
    }
    printf("by programs: %lu\n", (unsigned long)sum);
}

/* A pin's second descriptor, for reading only, stands for the same map. */
static void pins(int map)
{
    char path[64];
    snprintf(path, sizeof path, "/sys/fs/bpf/prefetch-%d", (int)getpid());
    union bpf_attr pin = {.pathname = (uintptr_t)path, .bpf_fd = (uint32_t)map};
    if (bpf(BPF_OBJ_PIN, &pin) < 0) {
        printf("by a pin: 6225\n"); /* Where there is no such file system: what it would come to. */
        return;
    }
    union bpf_attr get = {.pathname = (uintptr_t)path, .file_flags = BPF_F_RDONLY};
    int other = good("pinned", bpf(BPF_OBJ_GET, &get));
    printf("by a pin: %lu\n", (unsigned long)read_behind(map, other));
    close(other);
    unlink(path);
}

/* Each second element is deleted before the iteration comes to it. */
static void skips(int map)
{
    uint64_t keys[ELEMENTS + 1] = {0}, next = 0;
    int count = 0, odd = 0;
    for (int found = element(BPF_MAP_GET_NEXT_KEY, map, 0, &next, 0); found == 0 && count < ELEMENTS; count++) {
        keys[count] = next;
        found = element(BPF_MAP_GET_NEXT_KEY, map, &keys[count], &next, 0);
    }
    element(BPF_MAP_GET_NEXT_KEY, map, 0, &next, 0);
    for (int at = 0; at + 1 < count; at += 2) {
        odd += next != keys[at];
        element(BPF_MAP_DELETE_ELEM, map, &keys[at + 1], 0, 0);
        if (element(BPF_MAP_GET_NEXT_KEY, map, &keys[at], &next, 0) < 0)
            next = 0;
    }
    printf("every other: %d elements, %d odd steps\n", count, odd);
}

/* While others fetch, what was changed is found changed. */
static void races(int map)
{
    pthread_t threads[2];
    for (int n = 0; n < 2; n++)
        pthread_create(&threads[n], 0, begins, &map);
    long wrong = 0;
    for (uint64_t turn = 0; turn < 1000; turn++) {
        uint64_t key = turn % 40, value = turn, found = 0;
        update(map, &key, &value, BPF_ANY);
        element(BPF_MAP_LOOKUP_ELEM, map, &key, &found, 0);
        wrong += found != turn;
    }
    stop = 1;
    for (int n = 0; n < 2; n++)
        pthread_join(threads[n], 0);
    printf("changed while others fetch: %ld wrong\n", wrong);
}

int main(void)
{
    int first = filled(BPF_MAP_TYPE_HASH, 7), second = filled(BPF_MAP_TYPE_LRU_HASH, 5);
    int percpu = filled(BPF_MAP_TYPE_PERCPU_HASH, 3);
    for (int turn = 0; turn < 10; turn++)
        iterate("first", first, READ);
    iterate("twice", first, READ_TWICE);
    iterate("keys only", first, LEAVE);
    iterate("LRU", second, READ);
    iterate("per CPU", percpu, READ);
    gather("gathered", first, 0);
    gather("gathered per CPU", percpu, 0);
    places(first);
    gather("changed", second, 1000);
    iterate("changed since", second, READ);
    iterate("deleted", percpu, DELETE);
    iterate("empty", percpu, READ);
    fill(percpu, 11);
    iterate("filled again", percpu, READ);

    int copy = dup(first);
    iterate("a duplicate", copy, READ);
    dup2(second, copy);
    iterate("the number of another map", copy, READ);
    close(copy);
    iterate("a closed one", copy, READ);

    fflush(stdout);
    if (fork() == 0) {
        iterate("in a child", first, READ);
        gather("gathered in a child", second, 0);
        fflush(stdout);
        _exit(0);
    }
    wait(0);
    int maps[4] = {first, first, filled(BPF_MAP_TYPE_HASH, 7), filled(BPF_MAP_TYPE_HASH, 7)};
    pthread_t threads[4];
    for (int n = 0; n < 4; n++)
        pthread_create(&threads[n], 0, thread, &maps[n]);
    for (int n = 0; n < 4; n++) {
        void *result;
        pthread_join(threads[n], &result);
        /* Two of them go through the same map, each at its own pace. */
        printf("a thread: %s\n", (char *)result);
    }
    races(maps[2]);
    tries();
    skips(filled(BPF_MAP_TYPE_HASH, 1));
    runs(filled(BPF_MAP_TYPE_HASH, 3));
    pins(maps[3]);
    names(maps[3]);
    say_fast_path();
    return 0;
}
