/* A tool that uses maps which others have pinned: a hash and an array that it may change, and a hash that it may only
 * read. Its program, at a function of a process, adds the latter's element 1 to that of the other and counts in the array. Runs a command while it is attached, and says what the maps hold and what is refused.
 *
 * usage: pinned_maps FILE OFFSET DIRECTORY COMMAND... */
#define _GNU_SOURCE
#include "raw.h"
#include <limits.h>
#include <sys/mman.h>
#include <sys/wait.h>

static const char *directory;

static int get(const char *name, uint32_t flags)
{
    char path[PATH_MAX];
    union bpf_attr attr;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    memset(&attr, 0, sizeof attr);
    attr.pathname = (uintptr_t)path;
    attr.file_flags = flags;
    return bpf(BPF_OBJ_GET, &attr);
}

static int adds(int hash, int array, int read_only)
{
    const struct bpf_insn body[] = {
        COUNT(array), ST(BPF_DW, 10, -8, 1), ST(BPF_DW, 10, -16, 0), MOV(6, 0),
        LD_MAP(1, read_only), MOVR(2, 10), ADD(2, -8), CALL(BPF_FUNC_map_lookup_elem), JEQ(0, 0, 1),
        LDX(BPF_DW, 6, 0, 0),
        LD_MAP(1, hash), MOVR(2, 10), ADD(2, -8), CALL(BPF_FUNC_map_lookup_elem), JEQ(0, 0, 2),
        LDX(BPF_DW, 1, 0, 0), STX(BPF_DW, 10, 1, -16),
        LDX(BPF_DW, 1, 10, -16), INSN(BPF_ALU64 | BPF_ADD | BPF_X, 1, 6, 0, 0), STX(BPF_DW, 10, 1, -16),
        LD_MAP(1, hash), MOVR(2, 10), ADD(2, -8), MOVR(3, 10), ADD(3, -16), MOV(4, BPF_ANY),
        CALL(BPF_FUNC_map_update_elem),
        MOV(0, 0), EXIT,
    };
    return loaded(LOAD(BPF_PROG_TYPE_KPROBE, body));
}

/* The result of loading a program that deletes from a hash. */
static int deletes(int hash)
{
    const struct bpf_insn body[] = {
        ST(BPF_DW, 10, -8, 1), LD_MAP(1, hash), MOVR(2, 10), ADD(2, -8), CALL(BPF_FUNC_map_delete_elem), MOV(0, 0), EXIT,
    };
    return LOAD(BPF_PROG_TYPE_KPROBE, body);
}

static const char *said(int result) { return result < 0 ? strerror(-result) : "Success"; }

int main(int argc, char **argv)
{
    if (argc < 5)
        die("usage", -EINVAL);
    directory = argv[3];
    int hash = good("hash", get("hash", 0)), array = good("array", get("array", 0));
    int read_only = good("read_only", get("read_only", BPF_F_RDONLY));
    attach_uprobe(adds(hash, array, read_only), argv[1], strtoul(argv[2], NULL, 0), -1);
    pid_t child = fork();
    if (child == 0) {
        execv(argv[4], argv + 4);
        _exit(127);
    }
    int status;
    waitpid(child, &status, 0);
    uint64_t key = 1, sum = 0, count = 0, constant = 0;
    uint32_t first = 0;
    good("look-up", lookup(hash, &key, &sum));
    good("look-up", lookup(array, &first, &count));
    good("look-up", lookup(read_only, &key, &constant));
    const uint64_t *mapped = mmap(NULL, 4096, PROT_READ, MAP_SHARED, array, 0);
    printf("sum %lu count %lu mapped %lu constant %lu status %d\n", sum, count,
           mapped == MAP_FAILED ? 0 : *mapped, constant, status);
    printf("changing what is only read: %s\n", said(update(read_only, &key, &sum, BPF_ANY)));
    printf("opening it to write: %s\n", said(get("read_only", 0)));
    printf("opening what is not there: %s\n", said(get("nothing", 0)));
    printf("opening a closed one: %s\n", said(get("closed", 0)));
    fprintf(stderr, "a program that deletes from it: %s\n", said(deletes(read_only)));
    fprintf(stderr, "opening a ring: %s\n", said(get("ring", 0)));
    return 0;
}
