/* A tool with a program at an event of the kernel's (an exec) and one at a function of a process, which share a counter
 * and a ring buffer. Runs a command once both are attached, and says what each has counted and sent.
 *
 * usage: both_sides FILE OFFSET COMMAND... */
#define _GNU_SOURCE
#include "raw.h"
#include <sys/mman.h>
#include <sys/wait.h>

enum { PAGE = 4096, BYTES = 64 * PAGE, RECORD = 24 };

static int ring, counter, one_each;

/* If the current command's name begins with these 8 bytes: counts in the shared counter and in one of its own, and sends
 * a record that begins with `kind`. */
static int program(uint32_t type, uint64_t kind, const char *name)
{
    uint64_t word;
    memcpy(&word, name, sizeof word);
    const struct bpf_insn body[] = {
        MOVR(1, 10), ADD(1, -16), MOV(2, 16), CALL(BPF_FUNC_get_current_comm),
        LDX(BPF_DW, 1, 10, -16), LD_64(2, word), INSN(BPF_JMP | BPF_JNE | BPF_X, 1, 2, 15, 0),
        LD_VALUE(1, counter, 0), MOV(2, 1), ATOMIC_ADD(1, 2, 0),
        LD_VALUE(1, one_each, 0), ATOMIC_ADD(1, 2, (int)(8 * kind)),
        ST(BPF_DW, 10, -24, (int)kind), LD_MAP(1, ring), MOVR(2, 10), ADD(2, -24), MOV(3, RECORD),
        MOV(4, 0), CALL(BPF_FUNC_ringbuf_output),
        MOV(0, 0), EXIT,
    };
    return loaded(LOAD(type, body));
}

static volatile uint64_t *map_page(off_t offset, size_t length, int protection)
{
    void *at = mmap(NULL, length, protection, MAP_SHARED, ring, offset);
    if (at == MAP_FAILED)
        die("mmap", -errno);
    return at;
}

int main(int argc, char **argv)
{
    if (argc < 4)
        die("usage", -EINVAL);
    ring = good("ring", create_map(BPF_MAP_TYPE_RINGBUF, 0, 0, BYTES, 0, 0));
    counter = create_counter();
    one_each = good("array", create_map(BPF_MAP_TYPE_ARRAY, 4, 24, 1, 0, 0));
    volatile uint64_t *consumer = map_page(0, PAGE, PROT_READ | PROT_WRITE);
    volatile uint64_t *producer = map_page(PAGE, PAGE + 2 * BYTES, PROT_READ);
    const char *data = (const char *)producer + PAGE;

    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.raw_tracepoint.name = (uintptr_t)"sched_process_exec";
    attr.raw_tracepoint.prog_fd = (uint32_t)program(BPF_PROG_TYPE_RAW_TRACEPOINT, 1, "bothleaf");
    int link = good("BPF_RAW_TRACEPOINT_OPEN", bpf(BPF_RAW_TRACEPOINT_OPEN, &attr));
    attach_uprobe(program(BPF_PROG_TYPE_KPROBE, 2, "bothwork"), argv[1], strtoul(argv[2], NULL, 0), -1);

    pid_t child = fork();
    if (child == 0) {
        execv(argv[3], argv + 3);
        _exit(127);
    }
    int status;
    waitpid(child, &status, 0);
    close(link);
    uint64_t key = 0, sum = 0, each[3] = {0}, sent[3] = {0};
    good("look-up", lookup(counter, &key, &sum));
    good("look-up", lookup(one_each, &key, each));
    /* What was sent before the link was closed is there by now, or in a moment. */
    for (int tries = 0; tries < 200 && sent[1] + sent[2] < sum; tries++) {
        for (; *consumer < *producer; *consumer += RECORD + 8) {
            uint64_t kind;
            memcpy(&kind, data + *consumer % BYTES + 8, sizeof kind);
            sent[kind < 3 ? kind : 0]++;
        }
        usleep(10000);
    }
    printf("counted %lu: %lu in the kernel, %lu in processes; sent %lu and %lu, other %lu; status %d\n", sum, each[1],
           each[2], sent[1], sent[2], sent[0], status);
    return 0;
}
