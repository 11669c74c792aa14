/* A tool with an array that it has mapped, and that programs on both sides change: one at an event of the kernel's (an
 * exec) and one at a function of a process. Runs a command while they are attached, and says what the array holds.
 *
 * Each side adds to one counter of all, and does the kind of thing that no sum can be made of: it stores the number of its
 * events where the other side, and the tool, reads it.
 *
 * usage: one_memory FILE OFFSET COMMAND... */
#define _GNU_SOURCE
#include "raw.h"
#include <sys/mman.h>
#include <sys/wait.h>

enum { PAGE = 4096 };
/* The places of the array's value: what both add to; whether the tool wants them to; then, for each side, its own events, what
 * it has last seen of the other's, and how often that went backwards. */
enum { ALL, WANTED, KERNEL, PROCESS = KERNEL + 3, WORDS = PROCESS + 3 };
enum { OWN, SEEN, BACKWARDS };

static int array;

/* If the current command's name begins with these 8 bytes, and the tool wants it. */
static int program(uint32_t type, int own, int others, const char *name)
{
    uint64_t word;
    memcpy(&word, name, sizeof word);
    const struct bpf_insn body[] = {
        MOVR(1, 10), ADD(1, -16), MOV(2, 16), CALL(BPF_FUNC_get_current_comm),
        LDX(BPF_DW, 1, 10, -16), LD_64(2, word), INSN(BPF_JMP | BPF_JNE | BPF_X, 1, 2, 16, 0),
        LD_VALUE(6, array, 0), LDX(BPF_DW, 1, 6, 8 * WANTED), JEQ(1, 0, 12),
        MOV(2, 1), ATOMIC_ADD(6, 2, 8 * ALL),
        LDX(BPF_DW, 1, 6, 8 * (own + OWN)), ADD(1, 1), STX(BPF_DW, 6, 1, 8 * (own + OWN)),
        LDX(BPF_DW, 1, 6, 8 * (others + OWN)), LDX(BPF_DW, 2, 6, 8 * (own + SEEN)),
        STX(BPF_DW, 6, 1, 8 * (own + SEEN)), INSN(BPF_JMP | BPF_JGE | BPF_X, 1, 2, 3, 0),
        LDX(BPF_DW, 1, 6, 8 * (own + BACKWARDS)), ADD(1, 1), STX(BPF_DW, 6, 1, 8 * (own + BACKWARDS)),
        MOV(0, 0), EXIT,
    };
    return loaded(LOAD(type, body));
}

static void run(char **command)
{
    pid_t child = fork();
    if (child == 0) {
        execv(command[0], command);
        _exit(127);
    }
    waitpid(child, NULL, 0);
}

int main(int argc, char **argv)
{
    if (argc < 4)
        die("usage", -EINVAL);
    array = good("array", create_map(BPF_MAP_TYPE_ARRAY, 4, 8 * WORDS, 1, BPF_F_MMAPABLE, 0));
    volatile uint64_t *words = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, array, 0);
    if (words == MAP_FAILED)
        die("mmap", -errno);

    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.raw_tracepoint.name = (uintptr_t)"sched_process_exec";
    attr.raw_tracepoint.prog_fd = (uint32_t)program(BPF_PROG_TYPE_RAW_TRACEPOINT, KERNEL, PROCESS, "bothleaf");
    int link = good("BPF_RAW_TRACEPOINT_OPEN", bpf(BPF_RAW_TRACEPOINT_OPEN, &attr));
    attach_uprobe(program(BPF_PROG_TYPE_KPROBE, PROCESS, KERNEL, "bothwork"), argv[1], strtoul(argv[2], NULL, 0), -1);

    run(argv + 3);
    printf("unwanted: %lu\n", words[ALL]);
    words[WANTED] = 1;
    run(argv + 3);
    close(link);
    uint32_t key = 0;
    uint64_t copy[WORDS];
    good("look-up", lookup(array, &key, copy));
    const volatile uint64_t *kernel = words + KERNEL, *process = words + PROCESS;
    printf("counted %lu (%lu by a call): %lu in the kernel, %lu in processes; saw %lu and %lu, backwards %lu and %lu\n",
           words[ALL], copy[ALL], kernel[OWN], process[OWN], kernel[SEEN], process[SEEN], kernel[BACKWARDS],
           process[BACKWARDS]);
    /* A map that is mapped writable cannot be frozen; what is stored by a call is in the mapping. */
    memset(&attr, 0, sizeof attr);
    attr.map_fd = (uint32_t)array;
    int mapped = bpf(BPF_MAP_FREEZE, &attr);
    memset(copy, 7, sizeof copy);
    good("update", update(array, &key, copy, BPF_ANY));
    uint64_t stored = words[ALL];
    munmap((void *)words, PAGE);
    int unmapped = bpf(BPF_MAP_FREEZE, &attr);
    printf("stored %lx; freezing: %d, then %d; writable then: %s\n", stored, mapped, unmapped,
           mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, array, 0) == MAP_FAILED ? "no" : "yes");
    return 0;
}
