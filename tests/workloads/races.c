/* A tool that lies while it is being answered.
 *
 * "races SECONDS SEED": threads make random bpf(2), perf_event_open(2), ioctl(2), mmap(2) and close(2)
 * calls; their attributes, keys, programs and strings lie in memory that other threads overwrite, and
 * half of which they take the rights of and map anew, while the supervisor reads it. Elements of maps
 * lie in the other half, as the tool's own process reads them. Descriptors are closed, and put in the
 * place of others. It says how many calls it has made, and exits with 7. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { EXIT_CODE = 7, CALLERS = 6, SCRIBBLERS = 2, PAGE = 4096, PAGES = 16, CHANGING = 8, FDS = 64 };
/* Behind them is no memory, so that whatever is too long for them is an error. */
#define GUARD (1ul << 32)

static char *shared;
static atomic_long calls;
static atomic_int is_over;
static atomic_int fds[FDS];

static uint64_t next(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static uint64_t below(uint64_t *state, uint64_t limit) { return next(state) % limit; }

/* Somewhere in these pages of the memory, mostly; else nowhere. */
static uint64_t place_from(uint64_t *state, uint64_t first)
{
    switch (below(state, 16)) {
    case 0: return 0;
    case 1: return 1ull << 63 | next(state);
    default: return (uint64_t)shared + first * PAGE + below(state, (PAGES - first) * PAGE - 256);
    }
}

static uint64_t place(uint64_t *state) { return place_from(state, 0); }

static int descriptor(uint64_t *state)
{
    if (!below(state, 8))
        return (int)below(state, 80) - 1;
    return atomic_load(&fds[below(state, FDS)]);
}

static void keep(uint64_t *state, long fd)
{
    if (fd < 3)
        return;
    int old = atomic_exchange(&fds[below(state, FDS)], (int)fd);
    if (old > 2)
        close(old);
}

/* A size as tools have them, or a very large one. */
static uint32_t size(uint64_t *state)
{
    static const uint32_t sizes[] = {0, 1, 4, 8, 16, 64, 4096, 1u << 20, 1u << 31, ~0u};
    return below(state, 4) ? 1u << below(state, 8) : sizes[below(state, 10)];
}

static void make_map(uint64_t *state, union bpf_attr *attr)
{
    attr->map_type = (uint32_t)below(state, 34);
    attr->key_size = below(state, 3) ? 4 : size(state);
    attr->value_size = size(state);
    attr->max_entries = size(state);
    attr->map_flags = below(state, 4) ? 0 : (uint32_t)below(state, 1 << 14);
    attr->inner_map_fd = (uint32_t)descriptor(state);
}

static void load(uint64_t *state, union bpf_attr *attr)
{
    attr->prog_type = (uint32_t)below(state, 33);
    attr->insn_cnt = below(state, 2) ? (uint32_t)below(state, 64) : size(state);
    attr->insns = place(state);
    attr->license = place(state);
    attr->log_level = (uint32_t)below(state, 8);
    attr->log_size = size(state);
    attr->log_buf = place(state);
    attr->prog_btf_fd = (uint32_t)descriptor(state);
    attr->func_info_cnt = attr->line_info_cnt = (uint32_t)below(state, 9);
    attr->func_info_rec_size = attr->line_info_rec_size = size(state);
    attr->func_info = attr->line_info = place(state);
}

static int is_of_elements(uint32_t command)
{
    return (command >= BPF_MAP_LOOKUP_ELEM && command <= BPF_MAP_GET_NEXT_KEY)
        || command == BPF_MAP_LOOKUP_AND_DELETE_ELEM
        || (command >= BPF_MAP_LOOKUP_BATCH && command <= BPF_MAP_DELETE_BATCH);
}

/* An attribute for a command: random words, of which the important ones are likely. */
static void fill(uint64_t *state, uint32_t command, union bpf_attr *attr)
{
    uint64_t words[sizeof *attr / 8];
    for (size_t i = 0; i < sizeof words / 8; i++)
        words[i] = below(state, 3) ? place(state) : below(state, 16);
    memset(attr, 0, sizeof *attr);
    switch (command) {
    case BPF_MAP_CREATE: make_map(state, attr); return;
    case BPF_PROG_LOAD: load(state, attr); return;
    }
    if (!is_of_elements(command) && below(state, 2))
        memcpy(attr, words, sizeof words);
    attr->map_fd = (uint32_t)descriptor(state);
    if (!is_of_elements(command) && below(state, 2))
        return;
    attr->key = place_from(state, CHANGING);
    attr->value = place_from(state, CHANGING);
    attr->flags = below(state, 4);
}

static void make_call(uint64_t *state)
{
    union bpf_attr *attr = (union bpf_attr *)(shared + below(state, PAGES - 1) * PAGE + below(state, 2) * (PAGE - 64));
    union bpf_attr own;
    uint32_t command = (uint32_t)below(state, 40);
    switch (below(state, 12)) {
    case 0: {
        struct perf_event_attr event = {.type = (uint32_t)below(state, 9), .size = (uint32_t)below(state, 160)};
        event.config = place(state);
        keep(state, syscall(SYS_perf_event_open, below(state, 2) ? (void *)attr : &event, -1, 0, descriptor(state), 0));
        break;
    }
    case 1:
        ioctl(descriptor(state), below(state, 2) ? PERF_EVENT_IOC_SET_BPF : next(state), (long)descriptor(state));
        break;
    case 2: {
        size_t length = (1 + below(state, 9)) * PAGE;
        void *ring = mmap(0, length, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor(state), 0);
        if (ring != MAP_FAILED)
            munmap(ring, length);
        break;
    }
    case 3: keep(state, dup(descriptor(state))); break;
    case 4: {
        int to = descriptor(state);
        if (to > 2)
            dup2(descriptor(state), to);
        break;
    }
    default:
        fill(state, command, &own);
        /* In memory that changes, or that does not. What cannot be written now is somebody else's. */
        if (is_of_elements(command) || below(state, 3))
            keep(state, syscall(SYS_bpf, command, &own, below(state, 4) ? sizeof own : below(state, 300)));
        else
            keep(state, syscall(SYS_bpf, command, attr, sizeof *attr));
    }
    atomic_fetch_add(&calls, 1);
}

static void *call_on(void *seed)
{
    uint64_t state = (uint64_t)seed;
    while (!atomic_load(&is_over))
        make_call(&state);
    return 0;
}

/* Writes by a system call, so that a page without rights is an error and no signal. */
static void scribble(uint64_t *state, int memory)
{
    uint64_t words[32];
    char *at = shared + below(state, PAGES) * PAGE;
    switch (at < shared + CHANGING * PAGE ? below(state, 64) : 5) {
    case 0: mprotect(at, PAGE, PROT_NONE); break;
    case 1: mprotect(at, PAGE, PROT_READ); break;
    case 2: mmap(at, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0); break;
    case 3: mmap(at, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0); break;
    case 4: mprotect(at, PAGE, PROT_READ | PROT_WRITE); break;
    default:
        for (int i = 0; i < 32; i++)
            words[i] = below(state, 4) ? place(state) : below(state, 256);
        if (below(state, 2)) {
            union bpf_attr attr;
            fill(state, (uint32_t)below(state, 40), &attr);
            pwrite(memory, &attr, sizeof attr, (off_t)at);
        } else {
            pwrite(memory, words, sizeof words, (off_t)(at + below(state, PAGE - sizeof words)));
        }
    }
}

static void *scribble_on(void *seed)
{
    uint64_t state = (uint64_t)seed;
    int memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
    while (!atomic_load(&is_over))
        scribble(&state, memory);
    return 0;
}

int main(int argc, char **argv)
{
    pthread_t threads[CALLERS + SCRIBBLERS];
    uint64_t seed = argc > 2 ? strtoull(argv[2], 0, 10) : 1;
    shared = mmap(0, GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (shared == MAP_FAILED || mprotect(shared, PAGES * PAGE, PROT_READ | PROT_WRITE))
        return 1;
    for (int i = 0; i < FDS; i++)
        atomic_store(&fds[i], -1);
    for (long i = 0; i < CALLERS + SCRIBBLERS; i++)
        if (pthread_create(&threads[i], 0, i < CALLERS ? call_on : scribble_on, (void *)((seed + (uint64_t)i) * 0x9e3779b97f4a7c15u | 1)))
            return 1;
    sleep(argc > 1 ? (unsigned)atoi(argv[1]) : 1);
    atomic_store(&is_over, 1);
    for (int i = 0; i < CALLERS + SCRIBBLERS; i++)
        pthread_join(threads[i], 0);
    printf("%ld calls\n", atomic_load(&calls));
    return EXIT_CODE;
}
