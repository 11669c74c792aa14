/* Shows stacks: bpf_get_stack at a place of a process.
 *
 *   stack_tool PID PATH PLACE [PLACE]...
 *
 * A PLACE is an offset in the file, or "r" and the offset of a function for its return. A program at the first one takes the
 * stack; at the others there are programs that do nothing. Says "ready", and answers each line with the addresses of the
 * last stack; exit code 7. Raw instructions and plain system calls: what resolves symbols takes long. */
#define _GNU_SOURCE
#include "raw.h"

enum { MOST = 127, BYTES = MOST * 8, EXIT_CODE = 7 };

struct stack {
    int64_t bytes;
    uint64_t addresses[MOST];
};

static int load_taker(int map)
{
    const struct bpf_insn body[] = {
        LD_VALUE(2, map, 8), MOV(3, BYTES), MOV(4, BPF_F_USER_STACK), CALL(BPF_FUNC_get_stack), LD_VALUE(1, map, 0),
        STX(BPF_DW, 1, 0, 0), MOV(0, 0), EXIT,
    };
    return loaded(LOAD(BPF_PROG_TYPE_KPROBE, body));
}

static int load_idle(void)
{
    const struct bpf_insn body[] = {MOV(0, 0), EXIT};
    return loaded(LOAD(BPF_PROG_TYPE_KPROBE, body));
}

int main(int count, char **arguments)
{
    if (count < 4)
        return 2;
    int map = good("stacks", create_map(BPF_MAP_TYPE_ARRAY, 4, sizeof(struct stack), 1, 0, 0));
    int taker = load_taker(map), idle = load_idle();
    for (int i = 3; i < count; i++) {
        int is_return = arguments[i][0] == 'r';
        uint64_t offset = strtoull(arguments[i] + is_return, 0, 16);
        attach_probe(i == 3 ? taker : idle, arguments[2], offset, atoi(arguments[1]), is_return);
    }
    puts("ready");
    fflush(stdout);
    for (int c; (c = getchar()) != EOF;) {
        uint32_t key = 0;
        struct stack stack, none = {0};
        if (c != '\n')
            continue;
        good("look-up", lookup(map, &key, &stack));
        good("update", update(map, &key, &none, BPF_ANY));
        for (int i = 0; i < stack.bytes / 8; i++)
            printf("%lx ", (unsigned long)stack.addresses[i]);
        puts("");
        fflush(stdout);
    }
    return EXIT_CODE;
}
