/* A user ring buffer: this tool writes samples, a program drains them by a callback that adds up what is in them. With
 * samples that are discarded, unfinished, or not what they say. Says what each drain returned, what the callbacks have
 * seen, and how far the ring was read; and waits for room as libbpf does.
 *
 * Raw instructions and plain system calls, no library. */
#define _GNU_SOURCE
#include <linux/bpf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "functions.h"

enum { BYTES = 4096, HEADER = 8 };

static volatile uint64_t *consumer, *producer;
static char *data;

static int bpf(int command, union bpf_attr *attr, const char *what)
{
    int result = (int)syscall(SYS_bpf, command, attr, sizeof *attr);
    if (result < 0) {
        perror(what);
        exit(1);
    }
    return result;
}

static int create(unsigned type, unsigned key_size, unsigned value_size, unsigned entries)
{
    union bpf_attr attr = {.map_type = type, .key_size = key_size, .value_size = value_size, .max_entries = entries};
    return bpf(BPF_MAP_CREATE, &attr, "BPF_MAP_CREATE");
}

static void *map(int fd, int protection, size_t bytes, off_t offset)
{
    void *at = mmap(NULL, bytes, protection, MAP_SHARED, fd, offset);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return at;
}

#define OP(c, d, s, o, i) {.code = (c), .dst_reg = (d), .src_reg = (s), .off = (o), .imm = (i)}
#define SET(d, i) OP(BPF_ALU64 | BPF_MOV | BPF_K, d, 0, 0, i)
#define COPY(d, s) OP(BPF_ALU64 | BPF_MOV | BPF_X, d, s, 0, 0)
#define ADD(d, i) OP(BPF_ALU64 | BPF_ADD | BPF_K, d, 0, 0, i)
#define ADD_REG(d, s) OP(BPF_ALU64 | BPF_ADD | BPF_X, d, s, 0, 0)
#define LOAD(d, s, o) OP(BPF_LDX | BPF_MEM | BPF_DW, d, s, o, 0)
#define STORE(d, o, s) OP(BPF_STX | BPF_MEM | BPF_DW, d, s, o, 0)
#define CALL(i) OP(BPF_JMP | BPF_CALL, 0, 0, 0, i)
#define EXIT OP(BPF_JMP | BPF_EXIT, 0, 0, 0, 0)
#define WIDE(d, kind, low, high) OP(BPF_LD | BPF_IMM | BPF_DW, d, kind, 0, low), OP(0, 0, 0, 0, high)

static struct { int64_t returned, sum, calls, stop; } result;

/* Drains with a callback that stops at the sample which is `stop`. */
static void drain(const char *what, int ring, int results, unsigned flags, int64_t stop)
{
    const struct bpf_insn insns[] = {
        WIDE(1, BPF_PSEUDO_MAP_FD, ring, 0), WIDE(2, BPF_PSEUDO_FUNC, 10, 0), SET(3, 0),
        WIDE(4, 0, (int)flags, 0), CALL(BPF_FUNC_user_ringbuf_drain),
        WIDE(1, BPF_PSEUDO_MAP_VALUE, results, 0), STORE(1, 0, 0), SET(0, 0), EXIT,
        /* callback(dynptr): *(fp - 8) = 0; dynptr_read(fp - 8, 8, dynptr, 0, 0) */
        SET(2, 0), STORE(10, -8, 2), COPY(3, 1), COPY(1, 10), ADD(1, -8), SET(2, 8), SET(4, 0), SET(5, 0),
        CALL(BPF_FUNC_dynptr_read),
        /* sum += *(fp - 8) + r0; calls += 1; return *(fp - 8) == stop */
        WIDE(1, BPF_PSEUDO_MAP_VALUE, results, 0), LOAD(2, 10, -8), LOAD(3, 1, 8), ADD_REG(3, 2), ADD_REG(3, 0),
        STORE(1, 8, 3), LOAD(3, 1, 16), ADD(3, 1), STORE(1, 16, 3), LOAD(3, 1, 24),
        SET(0, 0), OP(BPF_JMP | BPF_JNE | BPF_X, 2, 3, 1, 0), SET(0, 1), EXIT,
    };
    struct bpf_func_info functions[2];
    static char log[1 << 16];
    union bpf_attr attr = {
        .prog_type = BPF_PROG_TYPE_RAW_TRACEPOINT, .insns = (uintptr_t)insns,
        .insn_cnt = sizeof insns / sizeof *insns, .license = (uintptr_t)"GPL", .log_buf = (uintptr_t)log,
        .log_size = sizeof log, .log_level = 1,
    };
    describe_functions(&attr, functions, 13);
    int program = (int)syscall(SYS_bpf, BPF_PROG_LOAD, &attr, sizeof attr);
    if (program < 0) {
        fprintf(stderr, "%s\n", log);
        perror("BPF_PROG_LOAD");
        exit(1);
    }
    uint32_t key = 0;
    result = (typeof(result)){.stop = stop};
    union bpf_attr cell = {.map_fd = (uint32_t)results, .key = (uintptr_t)&key, .value = (uintptr_t)&result};
    bpf(BPF_MAP_UPDATE_ELEM, &cell, "BPF_MAP_UPDATE_ELEM");
    union bpf_attr test = {.test = {.prog_fd = (uint32_t)program}};
    bpf(BPF_PROG_TEST_RUN, &test, "BPF_PROG_TEST_RUN");
    bpf(BPF_MAP_LOOKUP_ELEM, &cell, "BPF_MAP_LOOKUP_ELEM");
    printf("%s: returned %ld sum %ld calls %ld, read to %ld of %ld\n", what, (long)result.returned, (long)result.sum,
           (long)result.calls, (long)*consumer, (long)*producer);
    close(program);
    close((int)attr.prog_btf_fd);
}

/* Writes a sample whose header says `length`, and takes `room` for it. */
static void produce(uint64_t value, uint32_t length, uint32_t room)
{
    uint64_t at = *producer;
    memset(data + at % BYTES, 0, HEADER + sizeof value);
    memcpy(data + at % BYTES + HEADER, &value, sizeof value);
    __atomic_store_n((uint32_t *)(data + at % BYTES), length, __ATOMIC_RELEASE);
    __atomic_store_n(producer, at + room, __ATOMIC_RELEASE);
}

/* After what a tool must not do. */
static void start_again(void)
{
    __atomic_store_n(producer, *consumer, __ATOMIC_RELEASE);
}

int main(void)
{
    int results = create(BPF_MAP_TYPE_ARRAY, 4, sizeof result, 1), ring = create(BPF_MAP_TYPE_USER_RINGBUF, 0, 0, BYTES);
    consumer = map(ring, PROT_READ, 4096, 0);
    producer = map(ring, PROT_READ | PROT_WRITE, 4096 + 2 * BYTES, 4096);
    data = (char *)producer + 4096;

    drain("empty", ring, results, 0, -1);
    for (int i = 1; i <= 10; i++)
        produce((uint64_t)i, 8, 16);
    drain("ten", ring, results, 0, -1);
    for (int i = 1; i <= 10; i++)
        produce((uint64_t)i, i % 3 ? 8 : 8 | BPF_RINGBUF_DISCARD_BIT, 16);
    drain("some discarded", ring, results, BPF_RB_NO_WAKEUP, -1);
    for (int i = 1; i <= 10; i++)
        produce((uint64_t)i, 8, 16);
    drain("stop", ring, results, BPF_RB_FORCE_WAKEUP, 4);
    drain("the rest", ring, results, BPF_RB_NO_WAKEUP | BPF_RB_FORCE_WAKEUP, -1);
    drain("flags", ring, results, 4, -1);

    produce(7, 8 | BPF_RINGBUF_BUSY_BIT, 16);
    drain("unfinished", ring, results, 0, -1);
    start_again();
    produce(7, 4, 16);
    drain("short", ring, results, 0, -1);
    produce(7, 100, 16);
    drain("longer than written", ring, results, 0, -1);
    start_again();
    produce(7, 8, 12);
    drain("not aligned", ring, results, 0, -1);
    start_again();
    produce(7, 2 * BYTES, 2 * BYTES + HEADER);
    drain("larger than the ring", ring, results, 0, -1);
    start_again();

    /* Around the end, and full; then a program makes room and that is told. */
    while (*producer % BYTES != BYTES - 16)
        produce(1, 8, 16);
    drain("to the end", ring, results, 0, -1);
    while (*producer - *consumer + 40 <= BYTES)
        produce(3, 32, 40);
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLOUT};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, ring, &event) < 0)
        perror("epoll_ctl");
    /* What may have been told before. */
    epoll_wait(epoll, &event, 1, 0);
    drain("full", ring, results, 0, -1);
    printf("room is told %d\n", epoll_wait(epoll, &event, 1, 10000));
    return 0;
}
