/* An array that is mapped and asked for by calls, too: by its memory and by bpf() the tool finds the same, in the order in which it has
 * written, also beside what programs count and what children write. */
#define _GNU_SOURCE
#include "raw.h"
#include <sys/mman.h>
#include <sys/wait.h>

enum { ELEMENTS = 600, ROUNDS = 200, LOOKS = 3000 };

static volatile uint64_t *words;
static int map;

static uint64_t looked_up(uint32_t key)
{
    uint64_t value = 0;
    good("look-up", lookup(map, &key, &value));
    return value;
}

static void put(uint32_t key, uint64_t value) { good("update", update(map, &key, &value, BPF_ANY)); }

static void in_turns(void)
{
    int by_call = 0, in_memory = 0, both = 0;
    for (uint32_t n = 0; n < ROUNDS; n++) {
        words[n] = n + 1;
        by_call += looked_up(n) != n + 1;
        put(n, n * 7 + 1);
        in_memory += words[n] != n * 7 + 1;
        words[n]++;
        both += looked_up(n) != n * 7 + 2 || words[n] != n * 7 + 2;
    }
    printf("stale by call: %d, in memory: %d, by both: %d\n", by_call, in_memory, both);
}

static void lasting(void)
{
    put(5, 111);
    words[5] = 222;
    usleep(50000);
    printf("stored behind an update: %lu, %lu\n", (unsigned long)looked_up(5), (unsigned long)words[5]);
}

static void children(void)
{
    int wrong = 0;
    for (uint64_t n = 0; n < 20; n++) {
        if (fork() == 0) {
            words[3] = 1000 + n;
            _exit(0);
        }
        wrong += wait(0) < 0;
        wrong += looked_up(3) != 1000 + n || words[3] != 1000 + n;
    }
    printf("by children: %d wrong\n", wrong);
}

/* The program counts in one half of a word, and in the next; the tool writes to the other half, and behind both. */
static void neighbours(void)
{
    int wide = good("map", create_map(BPF_MAP_TYPE_ARRAY, 4, 24, 1, BPF_F_MMAPABLE, 0));
    volatile uint32_t *halves = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, wide, 0);
    struct bpf_insn body[] = {
        LD_VALUE(1, wide, 4), MOV(2, 1), INSN(BPF_STX | BPF_W | BPF_ATOMIC, 1, 2, 0, BPF_ADD),
        LD_VALUE(1, wide, 8), MOV(2, 1), ATOMIC_ADD(1, 2, 0), MOV(0, 0), EXIT,
    };
    int program = loaded(LOAD(BPF_PROG_TYPE_RAW_TRACEPOINT, body));
    for (uint32_t n = 1; n <= ROUNDS; n++) {
        halves[0] = n;
        run_once(program);
        halves[0] = n << 8, halves[4] = n;
        run_once(program);
    }
    uint32_t key = 0, values[6] = {0};
    good("look-up", lookup(wide, &key, values));
    printf("beside: %u %u %u %u, %u %u %u %u\n", halves[0], halves[1], halves[2], halves[4], values[0], values[1], values[2],
           values[4]);
}

/* So often that the tool may be helped with it. */
static void often(void)
{
    int wrong = 0;
    for (uint64_t n = 1; n <= LOOKS; n++) {
        words[7] = n;
        wrong += looked_up(7) != n;
    }
    printf("often: %d wrong\n", wrong);
}

int main(void)
{
    map = good("map", create_map(BPF_MAP_TYPE_ARRAY, 4, 8, ELEMENTS, BPF_F_MMAPABLE, 0));
    words = mmap(0, ELEMENTS * 8, PROT_READ | PROT_WRITE, MAP_SHARED, map, 0);
    if (words == MAP_FAILED)
        die("mmap", -errno);
    in_turns();
    lasting();
    children();
    neighbours();
    often();
    return 0;
}
