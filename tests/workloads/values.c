/* A tool that tries what values with a lock, a timer and per-task values can do, and prints every answer: run by the kernel
 * and by Beeline it must print the same. Only plain system calls, no library. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static long bpf(int command, union bpf_attr *attr)
{
    long result = syscall(SYS_bpf, command, attr, sizeof *attr);
    return result < 0 ? -errno : result;
}

/* ---- type information, by hand ---- */

enum { INT = 1, LONG, LOCK, TIMER, PAD, PAIR, GAPS, TWICE, CLOCKED, BOTH, NESTED, INNER, MANY, ARRAY };

static const char strings[] = "\0int\0long\0bpf_spin_lock\0bpf_timer\0val\0a\0b\0pad";
static uint32_t words[512];
static int used;

static void put(uint32_t word) { words[used++] = word; }
static uint32_t name(const char *wanted)
{
    for (size_t at = 1; at < sizeof strings; at += strlen(strings + at) + 1)
        if (!strcmp(strings + at, wanted))
            return at;
    return 0;
}
static void type(const char *named, uint32_t kind, uint32_t members, uint32_t size)
{
    put(name(named)), put(kind << 24 | members), put(size);
}
static void member(const char *named, uint32_t id, uint32_t byte) { put(name(named)), put(id), put(byte * 8); }

static int load_btf(void)
{
    type("int", 1, 0, 4), put(32);
    type("long", 1, 0, 8), put(64);
    type("bpf_spin_lock", 4, 1, 4), member("val", INT, 0);
    type("bpf_timer", 4, 1, 16), member("pad", PAD, 0);
    type("", 3, 0, 0), put(LONG), put(INT), put(2);                                             /* PAD: long[2] */
    type("a", 4, 3, 16), member("a", INT, 0), member("b", LOCK, 4), member("pad", LONG, 8);     /* PAIR */
    type("b", 4, 3, 24), member("a", LONG, 0), member("b", LONG, 8), member("pad", LOCK, 20);   /* GAPS */
    type("pad", 4, 2, 32), member("a", INNER, 0), member("b", INNER, 16);                       /* TWICE */
    type("a", 4, 2, 24), member("a", LONG, 0), member("b", TIMER, 8);                           /* CLOCKED */
    type("b", 4, 3, 32), member("a", LONG, 0), member("b", TIMER, 8), member("pad", LOCK, 24);  /* BOTH */
    type("a", 4, 2, 24), member("a", LONG, 0), member("b", INNER, 8);                           /* NESTED */
    type("b", 4, 2, 16), member("a", LONG, 0), member("b", LOCK, 8);                            /* INNER */
    type("a", 4, 1, 8), member("a", ARRAY, 0);                                                  /* MANY */
    type("", 3, 0, 0), put(LOCK), put(INT), put(2);                                             /* ARRAY: lock[2] */
    struct { uint16_t magic; uint8_t version, flags; uint32_t header, types, types_len, strs, strs_len; } header = {
        0xeb9f, 1, 0, 24, 0, used * 4, used * 4, sizeof strings };
    static char data[4096];
    memcpy(data, &header, sizeof header);
    memcpy(data + sizeof header, words, used * 4);
    memcpy(data + sizeof header + used * 4, strings, sizeof strings);
    union bpf_attr attr = { .btf = (uintptr_t)data, .btf_size = sizeof header + used * 4 + sizeof strings };
    return bpf(BPF_BTF_LOAD, &attr);
}

/* ---- maps ---- */

static int btf;

static long create(int map_type, int key, int value, int entries, int flags, int key_type, int value_type)
{
    union bpf_attr attr = { .map_type = map_type, .key_size = key, .value_size = value, .max_entries = entries,
        .map_flags = flags, .btf_fd = btf, .btf_key_type_id = key_type, .btf_value_type_id = value_type };
    return bpf(BPF_MAP_CREATE, &attr);
}

static long element(int command, int map, void *key, void *value, uint64_t flags)
{
    union bpf_attr attr = { .map_fd = map, .key = (uintptr_t)key, .value = (uintptr_t)value, .flags = flags };
    return bpf(command, &attr);
}

static void show(const char *what, long result, const void *value, int size)
{
    printf("%s: %ld", what, result < 0 ? result : 0);
    for (int i = 0; result >= 0 && i < size; i++)
        printf(" %02x", ((const unsigned char *)value)[i]);
    printf("\n");
}

static void creation(void)
{
    static const int kinds[] = { BPF_MAP_TYPE_HASH, BPF_MAP_TYPE_ARRAY, BPF_MAP_TYPE_PERCPU_HASH,
        BPF_MAP_TYPE_PERCPU_ARRAY, BPF_MAP_TYPE_LRU_HASH, BPF_MAP_TYPE_LRU_PERCPU_HASH };
    static const int values[][2] = { { PAIR, 16 }, { GAPS, 24 }, { TWICE, 32 }, { CLOCKED, 24 }, { BOTH, 32 },
        { NESTED, 24 }, { MANY, 8 }, { PAIR, 24 }, { LONG, 8 }, { 99, 8 } };
    for (unsigned k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (unsigned v = 0; v < sizeof values / sizeof *values; v++) {
            long map = create(kinds[k], 4, values[v][1], 4, 0, INT, values[v][0]);
            printf("type %d value %d: %s %ld\n", kinds[k], values[v][0], map < 0 ? "no" : "made", map < 0 ? map : 0);
            if (map >= 0)
                close(map);
        }
    static const int others[][4] = { { BPF_MAP_TYPE_HASH, 0, 16, BPF_F_RDONLY_PROG }, { BPF_MAP_TYPE_HASH, 0, 16, 0 },
        { BPF_MAP_TYPE_ARRAY, LONG, 16, 0 }, { BPF_MAP_TYPE_ARRAY, PAIR, 16, 0 }, { BPF_MAP_TYPE_ARRAY, 0, 16, 0 },
        { BPF_MAP_TYPE_HASH, INT, 16, BPF_F_RDONLY_PROG }, { BPF_MAP_TYPE_HASH, INT, 16, BPF_F_WRONLY_PROG } };
    for (unsigned i = 0; i < sizeof others / sizeof *others; i++) {
        long map = create(others[i][0], 4, others[i][2], 1, others[i][3], others[i][1], PAIR);
        printf("other %u: %s %ld\n", i, map < 0 ? "no" : "made", map < 0 ? map : 0);
        if (map >= 0)
            close(map);
    }
}

static void elements(int map_type, int value_type, int size)
{
    int map = create(map_type, 4, size, 4, 0, INT, value_type), plain = create(map_type, 4, size, 4, 0, 0, 0);
    static const uint64_t flags[] = { 0, BPF_NOEXIST, BPF_EXIST, BPF_F_LOCK, BPF_F_LOCK | BPF_NOEXIST,
        BPF_F_LOCK | BPF_EXIST, 3, 8, 16 };
    printf("elements of %d with %d: %d\n", map_type, value_type, map >= 0 && plain >= 0);
    for (int key = 0; key < 6; key += 2)
        for (unsigned f = 0; f < sizeof flags / sizeof *flags; f++) {
            unsigned char in[64], out[64];
            memset(in, 0x11 * (f + 1), sizeof in);
            show("update", element(BPF_MAP_UPDATE_ELEM, map, &key, in, flags[f]), 0, 0);
            show("plain", element(BPF_MAP_UPDATE_ELEM, plain, &key, in, flags[f]), 0, 0);
            show("look", element(BPF_MAP_LOOKUP_ELEM, map, &key, out, flags[f]), out, size);
            show("plain", element(BPF_MAP_LOOKUP_ELEM, plain, &key, out, flags[f]), out, size);
            show("take", element(BPF_MAP_LOOKUP_AND_DELETE_ELEM, map, &key, out, flags[f]), out, size);
            if (f % 2)
                show("delete", element(BPF_MAP_DELETE_ELEM, map, &key, 0, 0), 0, 0);
        }
    close(map), close(plain);
}

/* ---- programs ---- */

#define INSN(c, d, s, o, i) ((struct bpf_insn){ .code = (c), .dst_reg = (d), .src_reg = (s), .off = (o), .imm = (i) })
#define MOV(d, s) INSN(BPF_ALU64 | BPF_MOV | BPF_X, d, s, 0, 0)
#define SET(d, i) INSN(BPF_ALU64 | BPF_MOV | BPF_K, d, 0, 0, i)
#define ADD(d, i) INSN(BPF_ALU64 | BPF_ADD | BPF_K, d, 0, 0, i)
#define LOAD(d, s, o) INSN(BPF_LDX | BPF_MEM | BPF_DW, d, s, o, 0)
#define STORE(d, o, s) INSN(BPF_STX | BPF_MEM | BPF_DW, d, s, o, 0)
#define STORE4(d, o, i) INSN(BPF_ST | BPF_MEM | BPF_W, d, 0, o, i)
#define JEQ(d, i, o) INSN(BPF_JMP | BPF_JEQ | BPF_K, d, 0, o, i)
#define CALL(i) INSN(BPF_JMP | BPF_CALL, 0, 0, 0, i)
#define MAP(d, fd) INSN(BPF_LD | BPF_IMM | BPF_DW, d, BPF_PSEUDO_MAP_FD, 0, fd), INSN(0, 0, 0, 0, 0)
#define EXIT INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0)

static long load_program(int kind, const struct bpf_insn *insns, int n)
{
    static char log[1 << 16];
    union bpf_attr attr = { .prog_type = kind, .insns = (uintptr_t)insns, .insn_cnt = n, .license = (uintptr_t)"GPL",
        .log_buf = (uintptr_t)log, .log_size = sizeof log, .log_level = 1 };
    if (kind == BPF_PROG_TYPE_SYSCALL)
        attr.prog_flags = 1 << 4; /* BPF_F_SLEEPABLE */
    long program = bpf(BPF_PROG_LOAD, &attr);
    if (program < 0 && getenv("VALUES_LOG"))
        fputs(log, stderr);
    return program;
}

static void run(const char *what, const struct bpf_insn *insns, int n)
{
    static const int kinds[] = { BPF_PROG_TYPE_KPROBE, BPF_PROG_TYPE_RAW_TRACEPOINT, BPF_PROG_TYPE_PERF_EVENT };
    for (unsigned k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        long program = load_program(kinds[k], insns, n);
        printf("%s as %d: %s %ld\n", what, kinds[k], program < 0 ? "no" : "loaded", program < 0 ? program : 0);
        if (program >= 0 && kinds[k] == BPF_PROG_TYPE_RAW_TRACEPOINT)
            for (int i = 0; i < 3; i++) {
                union bpf_attr attr = { .test = { .prog_fd = program } };
                long result = bpf(BPF_PROG_TEST_RUN, &attr);
                printf("run: %ld, %d\n", result, (int)attr.test.retval);
            }
        if (program >= 0)
            close(program);
    }
    long program = load_program(BPF_PROG_TYPE_SYSCALL, insns, n);
    printf("%s: %s %ld\n", what, program < 0 ? "no" : "loaded", program < 0 ? program : 0);
    for (int i = 0; program >= 0 && i < 3; i++) {
        union bpf_attr attr = { .test = { .prog_fd = program } };
        long result = bpf(BPF_PROG_TEST_RUN, &attr);
        printf("run: %ld, %d\n", result, (int)attr.test.retval);
    }
    if (program >= 0)
        close(program);
}

static void locking(int map_type)
{
    int map = create(map_type, 4, 24, 4, 0, INT, GAPS), key = 1;
    unsigned char value[24] = { 5 };
    show("first", element(BPF_MAP_UPDATE_ELEM, map, &key, value, 0), 0, 0);
    const struct bpf_insn program[] = {
        STORE4(10, -4, 1), MOV(2, 10), ADD(2, -4), MAP(1, map), CALL(BPF_FUNC_map_lookup_elem),
        JEQ(0, 0, 13), MOV(6, 0),
        MOV(1, 6), ADD(1, 20), CALL(BPF_FUNC_spin_lock),
        LOAD(7, 6, 0), ADD(7, 1), STORE(6, 0, 7), STORE(6, 8, 7),
        MOV(1, 6), ADD(1, 20), CALL(BPF_FUNC_spin_unlock),
        MOV(0, 7), EXIT,
        SET(0, -1), EXIT,
    };
    run("lock", program, sizeof program / sizeof *program);
    show("locked look", element(BPF_MAP_LOOKUP_ELEM, map, &key, value, BPF_F_LOCK), value, 24);
    memset(value, 0xee, sizeof value);
    show("locked update", element(BPF_MAP_UPDATE_ELEM, map, &key, value, BPF_F_LOCK), 0, 0);
    show("look", element(BPF_MAP_LOOKUP_ELEM, map, &key, value, 0), value, 24);
    close(map);
}

static void tasks(void)
{
    static const int specs[][6] = { { 4, 8, 0, 1, INT, LONG }, { 4, 8, 0, 1, 0, LONG }, { 4, 8, 0, 1, INT, 0 },
        { 4, 8, 0, 0, INT, LONG }, { 4, 8, 1, 1, INT, LONG }, { 8, 8, 0, 1, LONG, LONG }, { 4, 16, 0, 1, INT, PAIR },
        { 4, 4, 0, 1, LOCK, INT }, { 4, 24, 0, 1, INT, CLOCKED } };
    for (unsigned i = 0; i < sizeof specs / sizeof *specs; i++) {
        const int *s = specs[i];
        long map = create(BPF_MAP_TYPE_TASK_STORAGE, s[0], s[1], s[2], s[3], s[4], s[5]);
        printf("storage %u: %s %ld\n", i, map < 0 ? "no" : "made", map < 0 ? map : 0);
        if (map >= 0)
            close(map);
    }
    int map = create(BPF_MAP_TYPE_TASK_STORAGE, 4, 8, 0, BPF_F_NO_PREALLOC, INT, LONG), next;
    int me = syscall(SYS_pidfd_open, getpid(), 0), child = fork();
    if (child == 0)
        _exit(0);
    int gone = syscall(SYS_pidfd_open, child, 0), bad[] = { me, gone, 0, -1, 999 };
    waitpid(child, 0, 0);
    long value = 7;
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        show("task look", element(BPF_MAP_LOOKUP_ELEM, map, &bad[i], &value, 0), &value, 8);
        show("task delete", element(BPF_MAP_DELETE_ELEM, map, &bad[i], 0, 0), 0, 0);
        show("task exist", element(BPF_MAP_UPDATE_ELEM, map, &bad[i], &value, BPF_EXIST), 0, 0);
        show("task no exist", element(BPF_MAP_UPDATE_ELEM, map, &bad[i], &value, BPF_NOEXIST), 0, 0);
        show("task no exist", element(BPF_MAP_UPDATE_ELEM, map, &bad[i], &value, BPF_NOEXIST), 0, 0);
        show("task lock", element(BPF_MAP_UPDATE_ELEM, map, &bad[i], &value, BPF_F_LOCK), 0, 0);
        show("task three", element(BPF_MAP_UPDATE_ELEM, map, &bad[i], &value, 3), 0, 0);
        show("task look", element(BPF_MAP_LOOKUP_ELEM, map, &bad[i], &value, 0), &value, 8);
        show("task take", element(BPF_MAP_LOOKUP_AND_DELETE_ELEM, map, &bad[i], &value, 0), 0, 0);
        show("task next", element(BPF_MAP_GET_NEXT_KEY, map, &bad[i], &next, 0), 0, 0);
        show("task delete", element(BPF_MAP_DELETE_ELEM, map, &bad[i], 0, 0), 0, 0);
    }
    for (int flags = 0; flags < 3; flags++)
        for (int first = 0; first < 2; first++) {
            const struct bpf_insn count[] = {
                CALL(BPF_FUNC_get_current_task_btf), MOV(2, 0), MAP(1, map),
                INSN(BPF_ST | BPF_MEM | BPF_DW, 10, 0, -8, 40), first ? MOV(3, 10) : SET(3, 0), ADD(3, first ? -8 : 0),
                SET(4, flags), CALL(BPF_FUNC_task_storage_get),
                JEQ(0, 0, 5), LOAD(7, 0, 0), ADD(7, 1), STORE(0, 0, 7), MOV(0, 7), EXIT,
                SET(0, -1), EXIT,
            };
            const struct bpf_insn null_first[] = {
                CALL(BPF_FUNC_get_current_task_btf), MOV(2, 0), MAP(1, map), SET(3, 0),
                SET(4, flags), CALL(BPF_FUNC_task_storage_get),
                JEQ(0, 0, 5), LOAD(7, 0, 0), ADD(7, 1), STORE(0, 0, 7), MOV(0, 7), EXIT,
                SET(0, -1), EXIT,
            };
            printf("flags %d first %d\n", flags, first);
            if (first)
                run("storage get", count, sizeof count / sizeof *count);
            else
                run("storage get", null_first, sizeof null_first / sizeof *null_first);
            show("task look", element(BPF_MAP_LOOKUP_ELEM, map, &me, &value, 0), &value, 8);
            const struct bpf_insn clear[] = {
                CALL(BPF_FUNC_get_current_task_btf), MOV(2, 0), MAP(1, map), CALL(BPF_FUNC_task_storage_delete), EXIT,
            };
            run("storage delete", clear, sizeof clear / sizeof *clear);
            show("task look", element(BPF_MAP_LOOKUP_ELEM, map, &me, &value, 0), &value, 8);
        }
    close(map);
}

/* ---- threads of another process ---- */

enum { THREADS = 3, GO = 100, END, TOLD };
static int go[2], end[2], told[2];

__attribute__((noinline, noclone, used)) void probed(void) { __asm__ volatile("" : : : "memory"); }

/* Says its id, is called on, calls the probed function, says so, and is called on to end. */
static void *thread(void *calls)
{
    int id = syscall(SYS_gettid);
    char byte;
    if (write(TOLD, &id, sizeof id) < 0 || read(GO, &byte, 1) < 0)
        _exit(2);
    for (long i = 0; i < (long)calls; i++)
        probed();
    if (write(TOLD, &calls, sizeof id) < 0 || read(END, &byte, 1) < 0)
        _exit(2);
    return 0;
}

static void target(void)
{
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], 0, thread, (void *)(10 * (i + 1)));
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], 0);
    int zero = 0;
    if (write(TOLD, &zero, sizeof zero) < 0)
        _exit(2);
    pause();
}

static int attach(int program, int pid)
{
    extern const char __executable_start[];
    unsigned kind = 0;
    FILE *file = fopen("/sys/bus/event_source/devices/uprobe/type", "r");
    if (!file || fscanf(file, "%u", &kind) != 1)
        return -1;
    fclose(file);
    struct perf_event_attr attr = { .type = kind, .size = sizeof attr, .config1 = (uintptr_t)"/proc/self/exe",
        .config2 = (uintptr_t)probed - (uintptr_t)__executable_start };
    static char path[256];
    if (readlink("/proc/self/exe", path, sizeof path - 1) > 0)
        attr.config1 = (uintptr_t)path;
    int event = syscall(SYS_perf_event_open, &attr, pid, pid < 0 ? 0 : -1, -1, PERF_FLAG_FD_CLOEXEC);
    if (event < 0 || ioctl(event, PERF_EVENT_IOC_SET_BPF, program) || ioctl(event, PERF_EVENT_IOC_ENABLE, 0))
        return -1;
    return event;
}

static int hear(void)
{
    int word = -1;
    return read(told[0], &word, sizeof word) == sizeof word ? word : -1;
}

static void threads(void)
{
    if (pipe(go) || pipe(end) || pipe(told))
        return;
    int child = fork();
    if (child == 0) {
        dup2(go[0], GO), dup2(end[0], END), dup2(told[1], TOLD);
        execl("/proc/self/exe", "values", "target", (char *)0);
        _exit(2);
    }
    int map = create(BPF_MAP_TYPE_TASK_STORAGE, 4, 8, 0, BPF_F_NO_PREALLOC, INT, LONG);
    const struct bpf_insn count[] = {
        CALL(BPF_FUNC_get_current_task_btf), MOV(2, 0), MAP(1, map), SET(3, 0), SET(4, 1), CALL(BPF_FUNC_task_storage_get),
        JEQ(0, 0, 3), LOAD(1, 0, 0), ADD(1, 1), STORE(0, 0, 1), SET(0, 0), EXIT,
    };
    int fds[THREADS];
    for (int i = 0; i < THREADS; i++)
        fds[i] = syscall(SYS_pidfd_open, hear(), O_EXCL); /* PIDFD_THREAD */
    int event = attach(load_program(BPF_PROG_TYPE_KPROBE, count, sizeof count / sizeof *count), child);
    printf("attached: %d\n", event >= 0);
    int all = write(go[1], "123", THREADS) == THREADS;
    for (int i = 0; i < THREADS; i++)
        all += hear();
    long value, sum = 0, product = 1;
    for (int i = 0; i < THREADS; i++) {
        value = 0;
        show("thread", element(BPF_MAP_LOOKUP_ELEM, map, &fds[i], &value, 0), 0, 0);
        sum += value, product *= value;
    }
    printf("calls %d, sum %ld, product %ld\n", all - 1, sum, product);
    if (write(end[1], "123", THREADS) == THREADS)
        printf("ended: %d\n", hear());
    for (int i = 0; i < THREADS; i++)
        show("ended", element(BPF_MAP_LOOKUP_ELEM, map, &fds[i], &value, 0), 0, 0);
    kill(child, SIGKILL);
    waitpid(child, 0, 0);
    close(map), close(event);
}

int main(int count, char **arguments)
{
    if (count > 1 && !strcmp(arguments[1], "target"))
        target();
    setvbuf(stdout, 0, _IOLBF, 0);
    btf = load_btf();
    if (btf < 0) {
        printf("no BTF: %d\n", btf);
        return 1;
    }
    creation();
    elements(BPF_MAP_TYPE_HASH, PAIR, 16);
    elements(BPF_MAP_TYPE_ARRAY, PAIR, 16);
    elements(BPF_MAP_TYPE_HASH, GAPS, 24);
    elements(BPF_MAP_TYPE_ARRAY, BOTH, 32);
    elements(BPF_MAP_TYPE_HASH, NESTED, 24);
    locking(BPF_MAP_TYPE_HASH);
    locking(BPF_MAP_TYPE_ARRAY);
    tasks();
    threads();
    printf("done\n");
    return 0;
}
