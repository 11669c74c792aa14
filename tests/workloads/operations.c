/* What map operations cost, on the kernel or under Beeline: an eBPF tool that is its own target's parent.
 *
 *   operations [NAME...]
 *
 * For each operation it loads a program that does the operation a thousand times and notes how long that took, puts
 * it at a function of a child process, and has one thread and then two threads of the child call the function.
 * Prints "NAME NS NS": nanoseconds for one operation in the best round with one thread, and with two. Operations of
 * the tool itself (names that begin with "tool") print "NAME NS". Only plain system calls, no library. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TIMES = 1000, RUNS = 10, ROUNDS = 40, FRAMES = 7, DEEP_FRAMES = 19, KEYS = 1024, MANY = 1000000, BATCH = 4096 };
enum { RING_BYTES = 4 << 20, PERF_PAGES = 512, MAX_CPUS = 64 };

static void die(const char *what)
{
    perror(what);
    exit(1);
}

/* --- The target: calls a function below some frames, in one thread or two at once. --- */

__attribute__((noinline)) void m_probe(long thread) { __asm__ volatile("" : : "r"(thread)); }

__attribute__((noinline, optimize("no-omit-frame-pointer", "no-optimize-sibling-calls"))) static void below(int frames, long thread)
{
    if (frames)
        below(frames - 1, thread);
    else
        m_probe(thread);
    __asm__ volatile("");
}

static pthread_barrier_t together;
static int frames;

static void *second(void *unused)
{
    for (;;) {
        pthread_barrier_wait(&together);
        for (int run = 0; run < RUNS; run++)
            below(frames, 1);
        pthread_barrier_wait(&together);
    }
    return unused;
}

enum { COMMANDS = 100, ANSWERS = 101, DEEP = 2 };

/* Says that it is ready, and then answers each command, the number of threads or that and DEEP, with itself when it is
 * done. */
static int be_the_target(void)
{
    pthread_t thread;
    char threads = 'r';
    pthread_barrier_init(&together, 0, 2);
    pthread_create(&thread, 0, second, 0);
    if (write(ANSWERS, &threads, 1) != 1)
        return 1;
    while (read(COMMANDS, &threads, 1) == 1) {
        int is_deep = threads > '2', are_two = threads == '2' || threads == '2' + DEEP;
        frames = is_deep ? DEEP_FRAMES : FRAMES;
        if (are_two)
            pthread_barrier_wait(&together);
        for (int run = 0; run < RUNS; run++)
            below(frames, 0);
        if (are_two)
            pthread_barrier_wait(&together);
        if (write(ANSWERS, &threads, 1) != 1)
            break;
    }
    return 0;
}

static pid_t start_target(int *commands, int *answers)
{
    int down[2], up[2];
    if (pipe2(down, O_CLOEXEC) < 0 || pipe2(up, O_CLOEXEC) < 0)
        die("pipe2");
    pid_t target = fork();
    if (target == 0) {
        dup2(down[0], COMMANDS), dup2(up[1], ANSWERS);
        execl("/proc/self/exe", "operations", "target", (char *)0);
        die("/proc/self/exe");
    }
    *commands = down[1], *answers = up[0];
    close(down[0]), close(up[1]);
    char ready;
    if (read(*answers, &ready, 1) != 1)
        die("the target");
    return target;
}

/* --- System calls. --- */

static int try_bpf(int command, union bpf_attr *attr) { return (int)syscall(SYS_bpf, command, attr, sizeof *attr); }

static int bpf(int command, union bpf_attr *attr, const char *what)
{
    int result = try_bpf(command, attr);
    if (result < 0)
        die(what);
    return result;
}

static int create(uint32_t type, uint32_t key, uint32_t value, uint32_t entries)
{
    union bpf_attr attr = {.map_type = type, .key_size = key, .value_size = value, .max_entries = entries};
    return bpf(BPF_MAP_CREATE, &attr, "BPF_MAP_CREATE");
}

static int element(int command, int map, const void *key, void *value)
{
    union bpf_attr attr = {.map_fd = (uint32_t)map, .key = (uintptr_t)key, .value = (uintptr_t)value};
    return try_bpf(command, &attr);
}

static uint64_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

/* --- Programs. --- */

struct program {
    struct bpf_insn insns[256];
    int length;
};

static void put(struct program *p, uint8_t code, int dst, int src, int off, int imm)
{
    p->insns[p->length++] = (struct bpf_insn){.code = code, .dst_reg = dst, .src_reg = src, .off = off, .imm = imm};
}

#define MOV(dst, src) put(p, BPF_ALU64 | BPF_MOV | BPF_X, dst, src, 0, 0)
#define SET(dst, imm) put(p, BPF_ALU64 | BPF_MOV | BPF_K, dst, 0, 0, imm)
#define ALU(op, dst, imm) put(p, BPF_ALU64 | (op) | BPF_K, dst, 0, 0, imm)
#define ADD(dst, src) put(p, BPF_ALU64 | BPF_ADD | BPF_X, dst, src, 0, 0)
#define LOAD(dst, src, off) put(p, BPF_LDX | BPF_MEM | BPF_DW, dst, src, off, 0)
#define STORE(dst, off, src) put(p, BPF_STX | BPF_MEM | BPF_DW, dst, src, off, 0)
#define CALL(helper) put(p, BPF_JMP | BPF_CALL, 0, 0, 0, helper)
#define MAP(dst, fd) put(p, BPF_LD | BPF_DW | BPF_IMM, dst, BPF_PSEUDO_MAP_FD, 0, fd), put(p, 0, 0, 0, 0, 0)
#define STACK(dst, off) MOV(dst, 10), ALU(BPF_ADD, dst, off)
/* Offsets of x86-64's struct pt_regs. */
enum { REGS_DI = 112, REGS_SP = 152 };
/* The program's stack: a key, a value or a record, and its context. */
enum { KEY = -8, VALUE = -80, CONTEXT = -88 };

typedef void body(struct program *p, int map);

static void nothing(struct program *p, int map) { (void)p, (void)map; }

/* A key of its own for each thread, of those that are there. */
static void next_key(struct program *p)
{
    MOV(1, 6), ALU(BPF_AND, 1, KEYS / 2 - 1), ALU(BPF_LSH, 1, 1), ADD(1, 8), STORE(10, KEY, 1);
}

static void look_up(struct program *p, int map)
{
    next_key(p);
    MAP(1, map), STACK(2, KEY), CALL(BPF_FUNC_map_lookup_elem);
}

static void update(struct program *p, int map)
{
    next_key(p);
    MAP(1, map), STACK(2, KEY), STACK(3, VALUE), SET(4, 0), CALL(BPF_FUNC_map_update_elem);
}

static void insert_and_delete(struct program *p, int map)
{
    SET(1, 1 << 20), ADD(1, 8), STORE(10, KEY, 1);
    MAP(1, map), STACK(2, KEY), STACK(3, VALUE), SET(4, 0), CALL(BPF_FUNC_map_update_elem);
    MAP(1, map), STACK(2, KEY), CALL(BPF_FUNC_map_delete_elem);
}

/* Every key a new one: each update has to evict. */
static void update_new(struct program *p, int map)
{
    CALL(BPF_FUNC_get_prandom_u32), STORE(10, KEY, 0);
    MAP(1, map), STACK(2, KEY), STACK(3, VALUE), SET(4, 0), CALL(BPF_FUNC_map_update_elem);
}

static void array_look_up(struct program *p, int map)
{
    MOV(1, 6), ALU(BPF_AND, 1, 63), STORE(10, KEY, 1);
    MAP(1, map), STACK(2, KEY), CALL(BPF_FUNC_map_lookup_elem);
}

static void array_add(struct program *p, int map)
{
    array_look_up(p, map);
    put(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 2, 0);
    SET(1, 1), put(p, BPF_STX | BPF_DW | BPF_ATOMIC, 0, 1, 0, BPF_ADD);
}

static void percpu_add(struct program *p, int map)
{
    array_look_up(p, map);
    put(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 3, 0);
    LOAD(1, 0, 0), ALU(BPF_ADD, 1, 1), STORE(0, 0, 1);
}

static void ring_record(struct program *p, int map)
{
    MAP(1, map), SET(2, 64), SET(3, 0), CALL(BPF_FUNC_ringbuf_reserve);
    put(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 3, 0);
    MOV(1, 0), SET(2, BPF_RB_NO_WAKEUP), CALL(BPF_FUNC_ringbuf_submit);
}

static void perf_record(struct program *p, int map)
{
    LOAD(1, 10, CONTEXT), MAP(2, map);
    put(p, BPF_ALU | BPF_MOV | BPF_K, 3, 0, 0, -1); /* BPF_F_CURRENT_CPU */
    STACK(4, VALUE), SET(5, 64), CALL(BPF_FUNC_perf_event_output);
}

static void read_user(struct program *p, int map)
{
    (void)map;
    LOAD(3, 10, CONTEXT), LOAD(3, 3, REGS_SP), STACK(1, VALUE), SET(2, 8), CALL(BPF_FUNC_probe_read_user);
}

static void stack_id(struct program *p, int map)
{
    LOAD(1, 10, CONTEXT), MAP(2, map), SET(3, BPF_F_USER_STACK), CALL(BPF_FUNC_get_stackid);
}

static void push_and_pop(struct program *p, int map)
{
    MAP(1, map), STACK(2, VALUE), SET(3, 0), CALL(BPF_FUNC_map_push_elem);
    MAP(1, map), STACK(2, VALUE), CALL(BPF_FUNC_map_pop_elem);
}

static void read_clock(struct program *p, int map) { (void)map, CALL(BPF_FUNC_ktime_get_ns); }
static void user(struct program *p, int map) { (void)map, CALL(BPF_FUNC_get_current_uid_gid); }
static void numa_node(struct program *p, int map) { (void)map, CALL(BPF_FUNC_get_numa_node_id); }

static void percpu_of(struct program *p, int map)
{
    MOV(1, 6), ALU(BPF_AND, 1, 63), STORE(10, KEY, 1);
    MAP(1, map), STACK(2, KEY), MOV(3, 8), CALL(BPF_FUNC_map_lookup_percpu_elem);
}

/* Does `body` TIMES times, and adds the nanoseconds and one run to the thread's element of `times`. */
static int load(body *body, int map, int times)
{
    static char log[1 << 16];
    struct program program = {.length = 0}, *p = &program;
    STORE(10, CONTEXT, 1), LOAD(8, 1, REGS_DI), ALU(BPF_AND, 8, 1);
    for (int at = VALUE; at < KEY; at += 8)
        SET(1, 7), STORE(10, at, 1);
    CALL(BPF_FUNC_ktime_get_ns), MOV(7, 0), SET(6, 0);
    int loop = p->length;
    body(p, map);
    ALU(BPF_ADD, 6, 1);
    put(p, BPF_JMP | BPF_JLT | BPF_K, 6, 0, loop - p->length - 1, TIMES);
    CALL(BPF_FUNC_ktime_get_ns), put(p, BPF_ALU64 | BPF_SUB | BPF_X, 0, 7, 0, 0), MOV(7, 0);
    STORE(10, KEY, 8), MAP(1, times), STACK(2, KEY), CALL(BPF_FUNC_map_lookup_elem);
    put(p, BPF_JMP | BPF_JEQ | BPF_K, 0, 0, 6, 0);
    LOAD(1, 0, 0), ADD(1, 7), STORE(0, 0, 1);
    LOAD(1, 0, 8), ALU(BPF_ADD, 1, 1), STORE(0, 8, 1);
    SET(0, 0), put(p, BPF_JMP | BPF_EXIT, 0, 0, 0, 0);
    union bpf_attr attr = {
        .prog_type = BPF_PROG_TYPE_KPROBE, .insns = (uintptr_t)p->insns, .insn_cnt = (uint32_t)p->length,
        .license = (uintptr_t) "GPL"};
    int fd = try_bpf(BPF_PROG_LOAD, &attr);
    if (fd < 0) {
        attr.log_buf = (uintptr_t)log, attr.log_size = sizeof log, attr.log_level = 1;
        try_bpf(BPF_PROG_LOAD, &attr);
        fputs(log, stderr), die("BPF_PROG_LOAD");
    }
    return fd;
}

/* Where m_probe is in this program's file. */
static uint64_t probe_offset(void)
{
    uint64_t start, end, offset, place = (uintptr_t)m_probe;
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx %*s %lx", &start, &end, &offset) == 3 && start <= place && place < end) {
            fclose(maps);
            return place - start + offset;
        }
    die("/proc/self/maps");
    return 0;
}

static int attach(int program, pid_t pid)
{
    FILE *file = fopen("/sys/bus/event_source/devices/uprobe/type", "r");
    unsigned type;
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (!file || fscanf(file, "%u", &type) != 1 || length < 0)
        die("uprobe/type");
    fclose(file);
    path[length] = 0;
    struct perf_event_attr attr = {.size = sizeof attr, .type = type, .config1 = (uintptr_t)path,
                                   .config2 = probe_offset(), .sample_period = 1, .wakeup_events = 1};
    int fd = (int)syscall(SYS_perf_event_open, &attr, pid, -1, -1, PERF_FLAG_FD_CLOEXEC);
    if (fd < 0 || ioctl(fd, PERF_EVENT_IOC_SET_BPF, program) < 0 || ioctl(fd, PERF_EVENT_IOC_ENABLE, 0) < 0)
        die("attaching");
    return fd;
}

/* --- Maps, and what is done to them between rounds. --- */

static uint64_t *ring_consumer, *ring_producer;
static struct perf_event_mmap_page *perf_pages[MAX_CPUS];
static int cpus;

static int hash_of(uint32_t type, uint32_t entries)
{
    int map = create(type, 8, 8, entries);
    static uint64_t values[MAX_CPUS];
    for (uint64_t key = 0; key < KEYS; key++)
        if (element(BPF_MAP_UPDATE_ELEM, map, &key, values) < 0)
            die("BPF_MAP_UPDATE_ELEM");
    return map;
}

static int make_hash(void) { return hash_of(BPF_MAP_TYPE_HASH, 2 * KEYS); }
static int make_percpu_hash(void) { return hash_of(BPF_MAP_TYPE_PERCPU_HASH, 2 * KEYS); }
static int make_lru(void) { return hash_of(BPF_MAP_TYPE_LRU_HASH, 4 * KEYS); }
static int make_array(void) { return create(BPF_MAP_TYPE_ARRAY, 4, 8, 64); }
static int make_percpu_array(void) { return create(BPF_MAP_TYPE_PERCPU_ARRAY, 4, 8, 64); }
static int make_stacks(void) { return create(BPF_MAP_TYPE_STACK_TRACE, 4, 127 * 8, 1024); }
static int make_queue(void) { return create(BPF_MAP_TYPE_QUEUE, 0, 8, 64); }

static int make_ring(void)
{
    int map = create(BPF_MAP_TYPE_RINGBUF, 0, 0, RING_BYTES);
    ring_consumer = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, map, 0);
    ring_producer = mmap(0, 4096 + 2 * RING_BYTES, PROT_READ, MAP_SHARED, map, 4096);
    if (ring_consumer == MAP_FAILED || ring_producer == MAP_FAILED)
        die("mapping a ring buffer");
    return map;
}

static int make_perf_array(void)
{
    int map = create(BPF_MAP_TYPE_PERF_EVENT_ARRAY, 4, 4, (uint32_t)cpus);
    for (int cpu = 0; cpu < cpus; cpu++) {
        struct perf_event_attr attr = {.size = sizeof attr, .type = PERF_TYPE_SOFTWARE, .config = PERF_COUNT_SW_BPF_OUTPUT,
                                       .sample_type = PERF_SAMPLE_RAW, .sample_period = 1, .wakeup_events = 1 << 20};
        int fd = (int)syscall(SYS_perf_event_open, &attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC);
        if (fd < 0)
            die("perf_event_open");
        perf_pages[cpu] = mmap(0, (1 + PERF_PAGES) * 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (perf_pages[cpu] == MAP_FAILED || element(BPF_MAP_UPDATE_ELEM, map, &cpu, &fd) < 0 ||
            ioctl(fd, PERF_EVENT_IOC_ENABLE, 0) < 0)
            die("a perf ring");
    }
    return map;
}

static void consume_all(void)
{
    if (ring_consumer)
        __atomic_store_n(ring_consumer, __atomic_load_n(ring_producer, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
    for (int cpu = 0; cpu < cpus; cpu++)
        if (perf_pages[cpu])
            __atomic_store_n(&perf_pages[cpu]->data_tail, __atomic_load_n(&perf_pages[cpu]->data_head, __ATOMIC_ACQUIRE), __ATOMIC_RELEASE);
}

/* --- Measuring. --- */

static const struct {
    const char *name;
    int (*make)(void);
    body *body;
    char deep;
} OPERATIONS[] = {
    {"nothing", make_array, nothing},
    {"hash-look-up", make_hash, look_up},
    {"hash-update", make_hash, update},
    {"hash-insert-delete", make_hash, insert_and_delete},
    {"percpu-hash-look-up", make_percpu_hash, look_up},
    {"lru-look-up", make_lru, look_up},
    {"lru-update", make_lru, update},
    {"lru-evict", make_lru, update_new},
    {"array-add", make_array, array_add},
    {"percpu-array-add", make_percpu_array, percpu_add},
    {"ring-reserve-submit", make_ring, ring_record},
    {"perf-output", make_perf_array, perf_record},
    {"read-user", make_array, read_user},
    {"stack-id", make_stacks, stack_id},
    {"stack-id-20", make_stacks, stack_id, DEEP},
    {"queue-push-pop", make_queue, push_and_pop},
    {"clock", make_array, read_clock},
    {"user", make_array, user},
    {"numa-node", make_array, numa_node},
    {"percpu-array-of", make_percpu_array, percpu_of},
};

struct spent {
    uint64_t ns, runs;
};

/* Nanoseconds for one operation in the best round; the mean of the threads. */
static double best_round(int times, int commands, int answers, char threads)
{
    double best = 1e18;
    for (int round = 0; round < ROUNDS; round++) {
        struct spent spent[2] = {{0, 0}, {0, 0}};
        for (uint64_t thread = 0; thread < 2; thread++)
            element(BPF_MAP_UPDATE_ELEM, times, &thread, &spent[thread]);
        char done;
        if (write(commands, &threads, 1) != 1 || read(answers, &done, 1) != 1)
            die("the target");
        consume_all();
        double sum = 0, runs = 0;
        for (uint64_t thread = 0; thread < 2; thread++) {
            element(BPF_MAP_LOOKUP_ELEM, times, &thread, &spent[thread]);
            sum += (double)spent[thread].ns, runs += (double)spent[thread].runs;
        }
        if (runs && sum / runs / TIMES < best)
            best = sum / runs / TIMES;
    }
    return best;
}

static int is_wanted(const char *name, char **wanted)
{
    if (!*wanted)
        return 1;
    while (*wanted)
        if (!strcmp(*wanted++, name))
            return 1;
    return 0;
}

static void measure_programs(char **wanted)
{
    int commands, answers;
    pid_t target = start_target(&commands, &answers);
    for (unsigned i = 0; i < sizeof OPERATIONS / sizeof *OPERATIONS; i++) {
        if (!is_wanted(OPERATIONS[i].name, wanted))
            continue;
        int times = create(BPF_MAP_TYPE_HASH, 8, sizeof(struct spent), 2), map = OPERATIONS[i].make();
        for (uint64_t thread = 0; thread < 2; thread++)
            element(BPF_MAP_UPDATE_ELEM, times, &thread, &(struct spent){0, 0});
        int program = load(OPERATIONS[i].body, map, times), event = attach(program, target);
        double one = best_round(times, commands, answers, (char)('1' + OPERATIONS[i].deep));
        double two = best_round(times, commands, answers, (char)('2' + OPERATIONS[i].deep));
        printf("%s %.2f %.2f\n", OPERATIONS[i].name, one, two);
        fflush(stdout);
        close(event), close(program), close(map), close(times);
    }
    close(commands);
    waitpid(target, 0, 0);
}

/* Nanoseconds for one system call on an element, in the best of some rounds. */
static double time_element(int command, int map)
{
    double best = 1e18;
    uint64_t value = 0;
    for (int round = 0; round < 10; round++) {
        uint64_t begin = now();
        for (uint64_t key = 0; key < KEYS; key++)
            if (element(command, map, &key, &value) < 0)
                die("an element");
        double each = (double)(now() - begin) / KEYS;
        best = each < best ? each : best;
    }
    return best;
}

/* Nanoseconds for one entry of a big hash, written or read in batches. */
static double time_batches(int command, int map)
{
    static uint64_t keys[BATCH], values[BATCH];
    uint64_t cursor = 0, done = 0, begin = now();
    for (int more = 1, first = 1; more; first = 0) {
        union bpf_attr attr = {.batch = {.map_fd = (uint32_t)map, .count = BATCH, .keys = (uintptr_t)keys, .values = (uintptr_t)values}};
        if (command == BPF_MAP_UPDATE_BATCH) {
            for (uint64_t i = 0; i < BATCH; i++)
                keys[i] = values[i] = done + i;
            attr.batch.count = MANY - done < BATCH ? (uint32_t)(MANY - done) : BATCH;
        } else {
            attr.batch.in_batch = first ? 0 : (uintptr_t)&cursor;
            attr.batch.out_batch = (uintptr_t)&cursor;
        }
        if (try_bpf(command, &attr) < 0 && command == BPF_MAP_UPDATE_BATCH)
            die("BPF_MAP_UPDATE_BATCH");
        done += attr.batch.count;
        more = command == BPF_MAP_UPDATE_BATCH ? done < MANY : attr.batch.count == BATCH || done < MANY;
        if (!attr.batch.count)
            break;
    }
    if (done != MANY)
        fprintf(stderr, "operations: %lu entries instead of %d\n", (unsigned long)done, MANY), exit(1);
    return (double)(now() - begin) / MANY;
}

static void measure_tool(char **wanted)
{
    int map = make_hash();
    if (is_wanted("tool-look-up", wanted))
        printf("tool-look-up %.2f\n", time_element(BPF_MAP_LOOKUP_ELEM, map));
    if (is_wanted("tool-update", wanted))
        printf("tool-update %.2f\n", time_element(BPF_MAP_UPDATE_ELEM, map));
    close(map);
    if (is_wanted("tool-batch-update", wanted) || is_wanted("tool-batch-look-up", wanted)) {
        map = create(BPF_MAP_TYPE_HASH, 8, 8, MANY);
        printf("tool-batch-update %.2f\n", time_batches(BPF_MAP_UPDATE_BATCH, map));
        printf("tool-batch-look-up %.2f\n", time_batches(BPF_MAP_LOOKUP_BATCH, map));
        close(map);
    }
}

int main(int argc, char **argv)
{
    cpus = (int)sysconf(_SC_NPROCESSORS_CONF);
    if (cpus > MAX_CPUS)
        cpus = MAX_CPUS;
    if (argc == 2 && !strcmp(argv[1], "target"))
        return be_the_target();
    measure_programs(argv + 1);
    measure_tool(argv + 1);
    return 0;
}
