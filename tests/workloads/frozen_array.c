/* A tool with an array that could be mapped, but is frozen: a program at a function counts in it, in every process. Says
 * what was counted when it is sent a line.
 *
 * usage: frozen_array FILE OFFSET */
#define _GNU_SOURCE
#include "raw.h"

int main(int argc, char **argv)
{
    if (argc != 3)
        die("usage", -EINVAL);
    int array = good("array", create_map(BPF_MAP_TYPE_ARRAY, 4, 8, 1, BPF_F_MMAPABLE, 0));
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.map_fd = (uint32_t)array;
    good("BPF_MAP_FREEZE", bpf(BPF_MAP_FREEZE, &attr));
    const struct bpf_insn body[] = {COUNT(array), MOV(0, 0), EXIT};
    attach_uprobe(loaded(LOAD(BPF_PROG_TYPE_KPROBE, body)), argv[1], strtoul(argv[2], NULL, 0), -1);
    puts("attached");
    fflush(stdout);
    getchar();
    uint32_t key = 0;
    uint64_t count = 0;
    good("look-up", lookup(array, &key, &count));
    printf("counted %lu\n", count);
    return 0;
}
