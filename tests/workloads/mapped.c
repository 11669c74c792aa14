/* An array that a tool has mapped is one memory for the tool and its programs.
 *
 * The program adds the array's second value to its first; here the second is written, the program runs once, and the first is read, all
 * without a call in between that says so. Prints "sum N", what the tool has found at last; a sum that is late ends it with 1. Only plain
 * system calls, no library. */
#define _GNU_SOURCE
#include "raw.h"

#include <sys/mman.h>

enum { TURNS = 50, PAGE = 4096 };

int main(void)
{
    int array = good("array", create_map(BPF_MAP_TYPE_ARRAY, 4, 16, 1, BPF_F_MMAPABLE, 0));
    struct bpf_insn body[] = {
        LD_VALUE(1, array, 0), LDX(BPF_DW, 2, 1, 8), ATOMIC_ADD(1, 2, 0), MOV(0, 0), EXIT,
    };
    int program = loaded(LOAD(BPF_PROG_TYPE_RAW_TRACEPOINT, body));
    volatile uint64_t *values = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, array, 0);
    if (values == MAP_FAILED)
        die("mapping an array", -errno);
    uint64_t sum = 0;
    for (uint64_t turn = 1; turn <= TURNS; turn++) {
        values[1] = turn;
        run_once(program);
        sum += turn;
        if (values[0] != sum) {
            fprintf(stderr, "turn %lu: %lu instead of %lu\n", turn, values[0], sum);
            return 1;
        }
    }
    printf("sum %lu\n", values[0]);
    return 0;
}
