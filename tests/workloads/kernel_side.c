/* What programs get of the kernel's side: their own constants and stack by bpf_probe_read_kernel, in a run by
 * BPF_PROG_TEST_RUN, and the kernel's stack in a uprobe, which has none.
 *
 *   kernel_side PID PATH OFFSET
 *
 * Says "attached", waits for a line, and says what the helpers have returned. Raw instructions and plain system calls. */
#define _GNU_SOURCE
#include "raw.h"
#include <inttypes.h>

enum { RESULTS = 3, MAGIC = 0x636261 /* "abc" */ };

/* An array of one value of 64 bytes, which begins with "abc". */
static int create_constants(void)
{
    char value[64] = "abc";
    uint32_t key = 0;
    int map = good("constants", create_map(BPF_MAP_TYPE_ARRAY, 4, sizeof value, 1, 0, 0));
    good("update", update(map, &key, value, BPF_ANY));
    return map;
}

/* Runs a program that reads `size` bytes by a helper into 8 zeros and returns them; -1 if the helper gives another
 * number than `wanted`. */
static void read_constants(const char *what, int helper, int size, int wanted)
{
    const struct bpf_insn body[] = {
        ST(BPF_DW, 10, -8, 0), LD_VALUE(3, create_constants(), 0), MOVR(1, 10), ADD(1, -8), MOV(2, size), CALL(helper),
        MOVR(6, 0), MOV(0, -1), JNE(6, wanted, 1), LDX(BPF_W, 0, 10, -8), EXIT,
    };
    printf("%s: %#x\n", what, (unsigned)run_once(loaded(LOAD(BPF_PROG_TYPE_RAW_TRACEPOINT, body))));
}

static void read_stack(void)
{
    const struct bpf_insn body[] = {
        ST(BPF_DW, 10, -8, 0), ST(BPF_DW, 10, -16, MAGIC), MOVR(1, 10), ADD(1, -8), MOV(2, 3), MOVR(3, 10), ADD(3, -16),
        CALL(BPF_FUNC_probe_read_kernel), LDX(BPF_W, 0, 10, -8), EXIT,
    };
    printf("of the stack: %#x\n", (unsigned)run_once(loaded(LOAD(BPF_PROG_TYPE_RAW_TRACEPOINT, body))));
}

/* Loads a program that stores what bpf_get_stack gives for different flags into the array. */
static int load_stack_reader(int results)
{
#define STACK(flags, place) \
    MOVR(1, 6), MOVR(2, 10), ADD(2, -64), MOV(3, 64), MOV(4, flags), CALL(BPF_FUNC_get_stack), \
    LD_VALUE(1, results, (place) * 8), STX(BPF_DW, 1, 0, 0)
    const struct bpf_insn body[] = {
        MOVR(6, 1), STACK(0, 0), STACK(3, 1), STACK(BPF_F_USER_STACK | 255, 2), MOV(0, 0), EXIT,
    };
    return loaded(LOAD(BPF_PROG_TYPE_KPROBE, body));
}

int main(int count, char **arguments)
{
    if (count != 4)
        return 2;
    read_constants("of a constant", BPF_FUNC_probe_read_kernel, 3, 0);
    read_constants("a word of a constant", BPF_FUNC_probe_read_kernel, 4, 0);
    read_constants("a constant string", BPF_FUNC_probe_read_kernel_str, 8, 4);
    read_stack();

    uint32_t key = 0;
    int64_t results[RESULTS] = {0};
    int map = good("results", create_map(BPF_MAP_TYPE_ARRAY, 4, sizeof results, 1, 0, 0));
    int program = load_stack_reader(map);
    attach_uprobe(program, arguments[2], strtoull(arguments[3], 0, 16), atoi(arguments[1]));
    puts("attached");
    fflush(stdout);
    getchar();
    good("look-up", lookup(map, &key, results));
    printf("kernel stack: %" PRId64 ", of it behind 3: %" PRId64 ", user stack behind 255: %" PRId64 "\n", results[0],
           results[1], results[2]);
    return 0;
}
