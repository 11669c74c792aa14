/* Loads good and bad programs, and says for each what came of it: the error number, the verifier's last words, what the
 * program returns, and whether the log's length, as bpf(2) tells it, is what a buffer has to have. Only plain system
 * calls, no library. */
#include "raw.h"

#include <string.h>

/* What libbpf puts in the place of an instruction that it cannot relocate. */
#define POISON() CALL(195896080)

/* Where the length of the log is written, in a `union bpf_attr` that is longer than older headers say. */
enum { LOG_TRUE_SIZE = 140, ATTR_BYTES = 152 };
/* BPF_LOG_FIXED. */
enum { FIXED = 8 };

/* An array of one zero that nobody changes any more. */
static int create_constant(void)
{
    union bpf_attr attr;
    int fd = good("constant", create_map(BPF_MAP_TYPE_ARRAY, 4, 4, 1, BPF_F_RDONLY_PROG, 0));
    memset(&attr, 0, sizeof attr);
    attr.map_fd = (uint32_t)fd;
    good("BPF_MAP_FREEZE", bpf(BPF_MAP_FREEZE, &attr));
    return fd;
}

struct load {
    const char *license;
    uint32_t level, room;
    int error;
    /* Bytes that the log took at its longest, with its end. */
    uint32_t length;
};

static int load(struct load *how, const struct bpf_insn *insns, size_t count)
{
    union {
        union bpf_attr attr;
        char bytes[ATTR_BYTES];
    } whole;
    memset(&whole, 0, sizeof whole);
    memset(load_log, 0, sizeof load_log);
    whole.attr = program_attr(BPF_PROG_TYPE_RAW_TRACEPOINT, insns, count);
    whole.attr.license = (uintptr_t)how->license;
    whole.attr.log_level = how->level;
    whole.attr.log_size = how->room;
    if (!how->room)
        whole.attr.log_buf = 0;
    int program = (int)syscall(SYS_bpf, BPF_PROG_LOAD, &whole, sizeof whole);
    how->error = program < 0 ? errno : 0;
    memcpy(&how->length, whole.bytes + LOG_TRUE_SIZE, sizeof how->length);
    return program;
}

/* The log's last line before its figures. */
static void say_last_words(void)
{
    static const char *const asides[] = {"processed ", "cur state:", "old state:", "\n"};
    char *last = "", *next = load_log;
    while (*next) {
        char *line = next;
        size_t length = strcspn(line, "\n");
        int is_aside = length == 0;
        for (size_t i = 0; i < LENGTH(asides); i++)
            is_aside |= !strncmp(line, asides[i], strlen(asides[i]));
        next = line + length + (line[length] != 0);
        line[length] = 0;
        if (!is_aside)
            last = line;
    }
    printf("  %s\n", last);
}

static void say_outcome(const char *what, const char *license, const struct bpf_insn *insns, size_t count)
{
    struct load how = {.license = license, .level = 1, .room = sizeof load_log};
    int program = load(&how, insns, count);
    printf("%s, %s: errno %d\n", what, license, how.error);
    if (program < 0) {
        say_last_words();
        return;
    }
    printf("  returns %d\n", run_once(program));
    close(program);
}

/* One with less room, or with none. */
static int error_of(struct load how, const struct bpf_insn *insns, size_t count)
{
    int program = load(&how, insns, count);
    if (program >= 0)
        close(program);
    return how.error;
}

static void say_room(uint32_t level, const struct bpf_insn *insns, size_t count)
{
    static char whole_log[sizeof load_log];
    struct load how = {.license = "GPL", .level = level, .room = sizeof load_log};
    close(load(&how, insns, count));
    memcpy(whole_log, load_log, sizeof whole_log);
    size_t shown = strlen(whole_log);
    uint32_t length = how.length;
    how.room = length;
    int fitting = error_of(how, insns, count);
    printf("  level %u: just fits %d", level, fitting == how.error && !strcmp(load_log, whole_log));
    how.room = length - 1;
    printf(", does not fit %d", error_of(how, insns, count));
    /* Of a log that was longer once, the kernel has less than the end. */
    if (shown + 1 == length) {
        how.room = 10;
        int cut = error_of(how, insns, count);
        printf(", end %d %d", cut, !strcmp(load_log, whole_log + shown - 9));
        how.level = level | FIXED;
        cut = error_of(how, insns, count);
        printf(", start %d %d", cut, !strncmp(load_log, whole_log, 9) && !load_log[9]);
        how.level = level;
    }
    how.room = 0;
    close(load(&how, insns, count));
    printf(", no room %d %d\n", how.error, how.length == length);
}

static void load_all(const char *what, const struct bpf_insn *insns, size_t count)
{
    struct load how = {.license = "GPL"};
    say_outcome(what, "GPL", insns, count);
    say_outcome(what, "Proprietary", insns, count);
    say_room(1, insns, count);
    say_room(2, insns, count);
    int error = error_of(how, insns, count);
    printf("  quietly: errno %d\n", error);
}

#define LOAD_ALL(name, ...)                                     \
    do {                                                        \
        const struct bpf_insn insns[] = {__VA_ARGS__};          \
        load_all(name, insns, LENGTH(insns));                   \
    } while (0)

int main(void)
{
    int array = good("array", create_map(BPF_MAP_TYPE_ARRAY, 4, 8, 4, 0, 0));
    int constant = create_constant();
    int ring = good("ring", create_map(BPF_MAP_TYPE_RINGBUF, 0, 0, 4096, 0, 0));

    LOAD_ALL("the smallest", MOV(0, 7), EXIT);
    LOAD_ALL("two ways", MOV(6, 1), CALL(BPF_FUNC_ktime_get_ns), JEQ(0, 3, 1), MOV(6, 1), MOVR(0, 6), EXIT);
    LOAD_ALL("nothing returned", EXIT);
    LOAD_ALL("no end", MOV(0, 0), JA(-1));
    LOAD_ALL("out of the program", MOV(0, 0), JA(7), EXIT);
    LOAD_ALL("an endless loop", MOV(0, 0), CALL(BPF_FUNC_ktime_get_ns), JEQ(0, 1, -2), JA(-1), EXIT);
    LOAD_ALL("beyond the stack", MOV(0, 0), ST(BPF_DW, 10, -520, 1), EXIT);
    LOAD_ALL("behind the context", LDX(BPF_DW, 0, 1, 8192), EXIT);
    LOAD_ALL("through a number", MOV(1, 4096), LDX(BPF_DW, 0, 1, 0), EXIT);
    LOAD_ALL("a value that may be missing", ST(BPF_DW, 10, -8, 0), MOVR(2, 10), ADD(2, -8), LD_MAP(1, array),
             CALL(BPF_FUNC_map_lookup_elem), LDX(BPF_DW, 0, 0, 0), EXIT);
    LOAD_ALL("behind a value", ST(BPF_DW, 10, -8, 0), MOVR(2, 10), ADD(2, -8), LD_MAP(1, array),
             CALL(BPF_FUNC_map_lookup_elem), JEQ(0, 0, 1), LDX(BPF_DW, 0, 0, 4), EXIT);
    LOAD_ALL("a record that is kept", LD_MAP(1, ring), MOV(2, 8), MOV(3, 0), CALL(BPF_FUNC_ringbuf_reserve), MOV(0, 0),
             EXIT);
    LOAD_ALL("not for every licence", CALL(BPF_FUNC_trace_printk), EXIT);
    LOAD_ALL("no such helper", CALL(5000), EXIT);
    LOAD_ALL("no such map", LD_MAP(1, 999), MOV(0, 0), EXIT);
    LOAD_ALL("poison", MOV(0, 0), POISON(), EXIT);
    LOAD_ALL("dead poison", LD_VALUE(1, constant, 0), LDX(BPF_W, 1, 1, 0), MOV(0, 5), JEQ(1, 0, 2), POISON(),
             INSN(BPF_ALU64 | BPF_MOV | BPF_K, 0, 3, 0, 0),
             ADD(0, 1), EXIT);
    LOAD_ALL("a live branch", LD_VALUE(1, constant, 0), LDX(BPF_W, 1, 1, 0), MOV(0, 5), JEQ(1, 1, 1), JA(1), POISON(), ADD(0, 1),
             EXIT);
    return 0;
}
