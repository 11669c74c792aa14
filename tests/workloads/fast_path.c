/* Does thousands of map operations by bpf(), with whatever may confuse somebody who answers them in place of the kernel:
 * descriptors that are duplicated, closed and used again for another map, forked children, one place for two arguments,
 * memory that is not there or read-only, frozen maps, wrong sizes. Prints each result, so that two runs can be compared;
 * and on stderr whether another's code is mapped. */
#define _GNU_SOURCE
#include "fast_path.h"
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static long bpf(int command, void *attr, unsigned size)
{
    long result = syscall(SYS_bpf, command, attr, size);
    return result < 0 ? -errno : result;
}

static int create(uint32_t type, uint32_t key, uint32_t value, uint32_t entries, uint32_t flags)
{
    union bpf_attr attr = {.map_type = type, .key_size = key, .value_size = value, .max_entries = entries, .map_flags = flags};
    return (int)bpf(BPF_MAP_CREATE, &attr, sizeof attr);
}

static long element(int command, int map, const void *key, const void *value, uint64_t flags)
{
    union bpf_attr attr = {.map_fd = (uint32_t)map, .key = (uintptr_t)key, .value = (uintptr_t)value, .flags = flags};
    return bpf(command, &attr, sizeof attr);
}

/* A key in four times, so that updates, misses and deletes are mixed; contents are checked by look-ups. */
static void work(const char *name, int map, int turns)
{
    uint64_t sum = 0;
    long failed[64] = {0};
    for (int turn = 0; turn < turns; turn++) {
        uint64_t key = (uint64_t)(turn * 7 % 50), value = (uint64_t)turn, found = 1;
        int command = turn % 4 == 3 ? BPF_MAP_DELETE_ELEM : BPF_MAP_UPDATE_ELEM;
        long done = command == BPF_MAP_DELETE_ELEM ? element(command, map, &key, 0, 0) : element(command, map, &key, &value, (uint64_t)(turn % 3));
        long read = element(BPF_MAP_LOOKUP_ELEM, map, &key, &found, 0);
        failed[-done & 63]++;
        failed[(-read & 31) + 32]++;
        sum = sum * 31 + found + (uint64_t)read;
    }
    printf("%s: sum %lx\n", name, (unsigned long)sum);
    for (int code = 0; code < 64; code++)
        if (failed[code])
            printf("  %s %d: %ld\n", code < 32 ? "change" : "look-up", code & 31, failed[code]);
}

/* How many keys a walk finds, with one place for a key and the next. */
static void walk(const char *name, int map)
{
    uint64_t key = 0;
    long found = element(BPF_MAP_GET_NEXT_KEY, map, 0, &key, 0), count = 0;
    uint64_t sum = 0;
    for (; found == 0 && count < 1000; count++) {
        sum += key;
        found = element(BPF_MAP_GET_NEXT_KEY, map, &key, &key, 0);
    }
    printf("%s: %ld keys, sum %lu, then %ld\n", name, count, (unsigned long)sum, found);
}

static void *thread(void *map)
{
    for (uint64_t turn = 0; turn < 2000; turn++) {
        uint64_t key = 1000, value = turn;
        element(BPF_MAP_UPDATE_ELEM, *(int *)map, &key, &value, 0);
    }
    return 0;
}

static void bad_memory(int map)
{
    uint64_t key = 1, value = 2;
    char *pages = mmap(0, 3 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(pages + 4096, 4096, PROT_READ);
    mprotect(pages + 8192, 4096, PROT_NONE);
    element(BPF_MAP_UPDATE_ELEM, map, &key, &value, 0);
    printf("key nowhere: %ld, null: %ld\n", element(BPF_MAP_LOOKUP_ELEM, map, pages + 8192, &value, 0), element(BPF_MAP_LOOKUP_ELEM, map, 0, &value, 0));
    printf("value read-only: %ld, nowhere: %ld, half: %ld\n", element(BPF_MAP_LOOKUP_ELEM, map, &key, pages + 4096, 0),
           element(BPF_MAP_LOOKUP_ELEM, map, &key, pages + 8192, 0), element(BPF_MAP_LOOKUP_ELEM, map, &key, pages + 4092, 0));
    printf("value from read-only: %ld, from nowhere: %ld\n", element(BPF_MAP_UPDATE_ELEM, map, &key, pages + 4096, 0),
           element(BPF_MAP_UPDATE_ELEM, map, &key, pages + 8190, 0));
    key = 77777, memset(pages, 0x55, 16);
    long missed = element(BPF_MAP_LOOKUP_ELEM, map, &key, pages, 0);
    printf("a miss: %ld, leaves %02x\n", missed, pages[0] & 0xff);
    struct { union bpf_attr attr; uint64_t more[20]; } big = {.attr = {.map_fd = (uint32_t)map, .key = (uintptr_t)&key, .value = (uintptr_t)&value}};
    printf("attribute short: %ld, with a tail: %ld", bpf(BPF_MAP_LOOKUP_ELEM, &big, 8), bpf(BPF_MAP_LOOKUP_ELEM, &big, sizeof big.attr + 8));
    big.more[0] = 1;
    printf(", not zero: %ld", bpf(BPF_MAP_LOOKUP_ELEM, &big, sizeof big.attr + 8));
    printf(", nowhere: %ld\n", bpf(BPF_MAP_LOOKUP_ELEM, pages + 8192, 32));
}

int main(void)
{
    int first = create(BPF_MAP_TYPE_HASH, 8, 8, 30, 0), second = create(BPF_MAP_TYPE_HASH, 8, 8, 100, 0);
    int percpu = create(BPF_MAP_TYPE_PERCPU_HASH, 8, 8, 100, 0), array = create(BPF_MAP_TYPE_ARRAY, 4, 8, 10, 0);
    work("full", first, 500);
    walk("full", first);
    work("roomy", second, 500);

    int copy = dup(second);
    work("a duplicate", copy, 300);
    dup2(first, copy);
    work("the number of another map", copy, 300);
    close(copy);
    work("a closed one", copy, 3);
    int file = open("/etc/passwd", 0);
    work("a file", file, 3);
    walk("roomy", second);

    uint32_t index = 3;
    uint64_t value = 42, values[256] = {0};
    for (int turn = 0; turn < 100; turn++)
        value += (uint64_t)element(BPF_MAP_UPDATE_ELEM, array, &index, &value, 0) + 1;
    printf("array: %ld, %ld", element(BPF_MAP_DELETE_ELEM, array, &index, 0, 0), element(BPF_MAP_UPDATE_ELEM, array, &index, &value, BPF_NOEXIST));
    index = 10;
    printf(", %ld, %ld\n", element(BPF_MAP_LOOKUP_ELEM, array, &index, &value, 0), element(BPF_MAP_UPDATE_ELEM, array, &index, &value, 0));
    index = 3;
    printf("array: %ld, %lu\n", element(BPF_MAP_LOOKUP_ELEM, array, &index, &value, 0), (unsigned long)value);
    for (uint64_t key = 0; key < 100; key++) {
        memset(values, (int)key, sizeof values);
        element(BPF_MAP_UPDATE_ELEM, percpu, &key, values, 0);
    }
    for (uint64_t key = 0; key < 101; key += 50) {
        long read = element(BPF_MAP_LOOKUP_ELEM, percpu, &key, values, 0);
        printf("per CPU: %ld, %lx\n", read, (unsigned long)values[0]);
    }
    uint64_t key = 50;
    long taken = element(BPF_MAP_LOOKUP_AND_DELETE_ELEM, percpu, &key, values, 0);
    printf("taken: %ld, %ld\n", taken, element(BPF_MAP_LOOKUP_AND_DELETE_ELEM, percpu, &key, values, 0));
    bad_memory(second);

    fflush(stdout);
    if (fork() == 0) {
        work("in a child", second, 300);
        fflush(stdout);
        _exit(0);
    }
    wait(0);
    walk("after the child", second);
    pthread_t threads[4];
    for (int n = 0; n < 4; n++)
        pthread_create(&threads[n], 0, thread, &second);
    for (int n = 0; n < 4; n++)
        pthread_join(threads[n], 0);
    key = 1000, value = 0;
    long read = element(BPF_MAP_LOOKUP_ELEM, second, &key, &value, 0);
    printf("after threads: %ld, %lu\n", read, (unsigned long)value);

    union bpf_attr attr = {.map_fd = (uint32_t)second};
    printf("freeze: %ld", bpf(22, &attr, 4));
    printf(", then %ld, %ld\n", element(BPF_MAP_UPDATE_ELEM, second, &key, &value, 0), element(BPF_MAP_LOOKUP_ELEM, second, &key, &value, 0));

    say_fast_path();
    return 0;
}
