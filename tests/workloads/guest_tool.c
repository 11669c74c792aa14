/* A small tool for a guest's kernel, made of plain system calls.
 *
 * "measure WHAT [BYTES]" prints the nanoseconds of each of several turns, a line each; "stay" attaches to a function of the kernel,
 * says "attached", and prints "record N" at the Nth call of sethostname(), until it is ended.
 *
 * "turns COUNT" maps, unmaps and closes so many ring buffers, says "turned", and waits; "kept" unmaps and closes a ring buffer that a
 * child has mapped as well, whose parent has ended, and says "kept"; at each SIGUSR1 it makes another ring
 * buffer and lets it go, and says "let go".
 *
 * How long a record is on its way, three processes find out together. "arrivals poll" (or "wait") makes a program that writes the time
 * into a record, says "program ID", and prints when each record was written and when it was seen: where it runs on the host, by two
 * clocks. "write PROGRAM ARRAY", in the guest, runs that program at moments of its own. "clocks" says "array ID" and compares the
 * host's clock with the guest's by memory that both have mapped, whenever the writer lets it: the host's time, the guest's at that
 * moment, and by how much that can be wrong. The array 0 is for an "arrivals" in the guest, which needs no second clock. */
#define _GNU_SOURCE
#include "raw.h"

#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

enum { ELEMENTS = 1000, LOOK_UPS = 500, DUMPS = 5, RECORDS = 200, MAPPINGS = 5, FLOODS = 20, FLOOD = 1000, RECORD = 64, PAGE = 4096 };
/* Of records on their way: comparisons of the clocks, exchanges of each, and records between two. */
enum { ROUNDS = 20, EXCHANGES = 500, ARRIVALS = 20 };

/* By how much this process's clock is ahead of the machine's: Beeline gives tools clocks that agree with the guest's, each as well as
 * it can be told, and so two tools' clocks differ. */
static int64_t ahead(void)
{
    long long seconds = 0, rest = 0;
    FILE *file = fopen("/proc/self/timens_offsets", "r");
    if (!file)
        return 0;
    if (fscanf(file, "monotonic %lld %lld", &seconds, &rest) != 2)
        seconds = rest = 0;
    fclose(file);
    return seconds * 1000000000 + rest;
}

/* Of the machine's clock. */
static uint64_t now(void)
{
    static int is_known;
    static int64_t offset;
    if (!is_known) {
        offset = ahead();
        is_known = 1;
    }
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + (uint64_t)t.tv_nsec - (uint64_t)offset;
}

static void say_since(uint64_t begin) { printf("%lu\n", (unsigned long)(now() - begin)); }

/* Keys 0 to 999 with three times the key as the value. */
static int filled_hash(void)
{
    int map = good("hash", create_map(BPF_MAP_TYPE_HASH, 8, 8, ELEMENTS, 0, 0));
    for (uint64_t key = 0; key < ELEMENTS; key++) {
        uint64_t value = key * 3;
        good("update", update(map, &key, &value, BPF_ANY));
    }
    return map;
}

static void measure_look_up(void)
{
    int map = filled_hash();
    /* Who reads what is printed would want a CPU while the next one is on its way. */
    static uint64_t took[LOOK_UPS];
    for (uint64_t key = 0; key < LOOK_UPS; key++) {
        uint64_t value = 0, begin = now();
        good("look-up", lookup(map, &key, &value));
        took[key] = now() - begin;
        if (value != key * 3)
            die("another value", -EINVAL);
    }
    for (int at = 0; at < LOOK_UPS; at++)
        printf("%llu\n", (unsigned long long)took[at]);
}

/* All elements, as most tools read them: the next key, then its value. */
static void measure_dump(void)
{
    int map = filled_hash();
    for (int turn = 0; turn < DUMPS; turn++) {
        uint64_t key = 0, next, value, sum = 0, begin = now();
        void *after = 0;
        int count = 0;
        while (element(BPF_MAP_GET_NEXT_KEY, map, after, &next, 0) == 0) {
            key = next;
            after = &key;
            good("look-up", lookup(map, &key, &value));
            sum += value;
            count++;
        }
        say_since(begin);
        if (count != ELEMENTS || sum != 3ul * ELEMENTS * (ELEMENTS - 1) / 2)
            die("another sum", -EINVAL);
    }
}

static void measure_batch(void)
{
    int map = filled_hash();
    static uint64_t keys[2 * ELEMENTS], values[2 * ELEMENTS];
    for (int turn = 0; turn < DUMPS; turn++) {
        union bpf_attr attr;
        uint64_t out = 0, begin = now();
        memset(&attr, 0, sizeof attr);
        attr.batch.out_batch = (uintptr_t)&out;
        attr.batch.keys = (uintptr_t)keys;
        attr.batch.values = (uintptr_t)values;
        attr.batch.count = 2 * ELEMENTS;
        attr.batch.map_fd = (uint32_t)map;
        int result = bpf(BPF_MAP_LOOKUP_BATCH, &attr);
        say_since(begin);
        if (result != -ENOENT || attr.batch.count != ELEMENTS)
            die("batch", result);
    }
}

/* A ring buffer as libbpf maps it. */
struct ring {
    int map, epoll;
    size_t size;
    volatile uint64_t *consumer;
    volatile uint64_t *producer;
    const char *data;
};

static void map_ring(struct ring *ring)
{
    ring->consumer = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, ring->map, 0);
    ring->producer = mmap(0, PAGE + 2 * ring->size, PROT_READ, MAP_SHARED, ring->map, PAGE);
    if (ring->consumer == MAP_FAILED || ring->producer == MAP_FAILED)
        die("mapping a ring", -errno);
    ring->data = (const char *)ring->producer + PAGE;
}

static struct ring new_ring(size_t size)
{
    struct ring ring = {.size = size};
    ring.map = good("ring", create_map(BPF_MAP_TYPE_RINGBUF, 0, 0, (uint32_t)size, 0, 0));
    map_ring(&ring);
    ring.epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event event = {.events = EPOLLIN};
    if (epoll_ctl(ring.epoll, EPOLL_CTL_ADD, ring.map, &event))
        die("epoll", -errno);
    return ring;
}

/* The first eight bytes of the next record, once there is one: the tool sleeps until then, or polls. */
static uint64_t awaited_record(struct ring *ring, int polls)
{
    for (;;) {
        uint64_t at = *ring->consumer;
        if (at != __atomic_load_n(ring->producer, __ATOMIC_ACQUIRE)) {
            const char *header = ring->data + (at & (ring->size - 1));
            uint32_t length = __atomic_load_n((const uint32_t *)header, __ATOMIC_ACQUIRE);
            if (!(length & BPF_RINGBUF_BUSY_BIT)) {
                uint64_t value;
                memcpy(&value, header + BPF_RINGBUF_HDR_SZ, sizeof value);
                length &= ~BPF_RINGBUF_DISCARD_BIT;
                __atomic_store_n(ring->consumer, at + (length + BPF_RINGBUF_HDR_SZ + 7) / 8 * 8, __ATOMIC_RELEASE);
                return value;
            }
        }
        struct epoll_event event;
        if (!polls && epoll_wait(ring->epoll, &event, 1, -1) < 0 && errno != EINTR)
            die("epoll_wait", -errno);
    }
}

static void unmap_ring(struct ring *ring)
{
    munmap((void *)ring->consumer, PAGE);
    munmap((void *)ring->producer, PAGE + 2 * ring->size);
    close(ring->map);
}

static uint64_t next_record(struct ring *ring) { return awaited_record(ring, 0); }

/* Mapping a ring buffer of so many bytes, and unmapping it. */
static void measure_mapping(size_t size)
{
    struct ring ring = {.size = size};
    for (int turn = 0; turn < MAPPINGS; turn++) {
        ring.map = good("ring", create_map(BPF_MAP_TYPE_RINGBUF, 0, 0, (uint32_t)size, 0, 0));
        uint64_t begin = now();
        map_ring(&ring);
        if (*ring.producer != 0)
            die("a new ring", -EINVAL);
        say_since(begin);
        unmap_ring(&ring);
    }
}

/* A ring buffer that is mapped and let go of. */
static void turn(void)
{
    struct ring ring = {.size = 1 << 16};
    ring.map = good("ring", create_map(BPF_MAP_TYPE_RINGBUF, 0, 0, (uint32_t)ring.size, 0, 0));
    map_ring(&ring);
    if (*ring.producer != 0)
        die("a new ring", -EINVAL);
    unmap_ring(&ring);
}

static void turns(long count)
{
    while (count-- > 0)
        turn();
    puts("turned");
    for (;;)
        pause();
}

static void kept(void)
{
    struct ring ring = {.size = 1 << 16};
    sigset_t asked;
    sigemptyset(&asked);
    sigaddset(&asked, SIGUSR1);
    sigprocmask(SIG_BLOCK, &asked, 0);
    ring.map = good("ring", create_map(BPF_MAP_TYPE_RINGBUF, 0, 0, (uint32_t)ring.size, 0, 0));
    map_ring(&ring);
    int parent = fork();
    if (parent == 0) {
        int child = fork();
        if (child != 0)
            _exit(0);
        close(ring.map);
        for (int closed = 0; closed < 3; closed++)
            close(closed);
        for (;;)
            pause();
    }
    if (waitpid(parent, 0, 0) != parent)
        die("waitpid", -errno);
    unmap_ring(&ring);
    puts("kept");
    for (int signal; sigwait(&asked, &signal) == 0;) {
        turn();
        puts("let go");
    }
}

/* From the request to run a program once to the record that it wrote. */
static void measure_record(void)
{
    struct ring ring = new_ring(1 << 16);
    struct bpf_insn body[] = {
        LDX(BPF_DW, 2, 1, 0),
        STX(BPF_DW, 10, 2, -RECORD),
        ST(BPF_DW, 10, 8 - RECORD, 0), ST(BPF_DW, 10, 16 - RECORD, 0), ST(BPF_DW, 10, 24 - RECORD, 0),
        ST(BPF_DW, 10, 32 - RECORD, 0), ST(BPF_DW, 10, 40 - RECORD, 0), ST(BPF_DW, 10, 48 - RECORD, 0),
        ST(BPF_DW, 10, 56 - RECORD, 0),
        LD_MAP(1, ring.map), MOVR(2, 10), ADD(2, -RECORD), MOV(3, RECORD), MOV(4, 0),
        CALL(BPF_FUNC_ringbuf_output), MOV(0, 0), EXIT,
    };
    int program = loaded(LOAD(BPF_PROG_TYPE_RAW_TRACEPOINT, body));
    for (uint64_t n = 1; n <= RECORDS; n++) {
        union bpf_attr attr;
        uint64_t begin = now(), context[12] = {n};
        memset(&attr, 0, sizeof attr);
        attr.test.prog_fd = (uint32_t)program;
        attr.test.ctx_in = (uintptr_t)context;
        attr.test.ctx_size_in = sizeof context;
        good("BPF_PROG_TEST_RUN", bpf(BPF_PROG_TEST_RUN, &attr));
        if (next_record(&ring) != n)
            die("another record", -EINVAL);
        say_since(begin);
    }
}

/* From the request to run a program once to the last of the records that it wrote. */
static void measure_flood(void)
{
    struct ring ring = new_ring(1 << 18);
    struct bpf_insn body[] = {
        MOV(6, 0),
        STX(BPF_DW, 10, 6, -RECORD),
        ST(BPF_DW, 10, 8 - RECORD, 0), ST(BPF_DW, 10, 16 - RECORD, 0), ST(BPF_DW, 10, 24 - RECORD, 0),
        ST(BPF_DW, 10, 32 - RECORD, 0), ST(BPF_DW, 10, 40 - RECORD, 0), ST(BPF_DW, 10, 48 - RECORD, 0),
        ST(BPF_DW, 10, 56 - RECORD, 0),
        LD_MAP(1, ring.map), MOVR(2, 10), ADD(2, -RECORD), MOV(3, RECORD), MOV(4, 0),
        CALL(BPF_FUNC_ringbuf_output),
        ADD(6, 1), INSN(BPF_JMP | BPF_JLT | BPF_K, 6, 0, -17, FLOOD),
        MOV(0, 0), EXIT,
    };
    union bpf_attr load = program_attr(BPF_PROG_TYPE_RAW_TRACEPOINT, body, LENGTH(body));
    /* Every turn of the loop is in the log, which would be too long. */
    load.log_buf = load.log_size = load.log_level = 0;
    int program = loaded(bpf(BPF_PROG_LOAD, &load));
    for (int turn = 0; turn < FLOODS; turn++) {
        union bpf_attr attr;
        uint64_t begin = now(), context[12] = {0};
        memset(&attr, 0, sizeof attr);
        attr.test.prog_fd = (uint32_t)program;
        attr.test.ctx_in = (uintptr_t)context;
        attr.test.ctx_size_in = sizeof context;
        good("BPF_PROG_TEST_RUN", bpf(BPF_PROG_TEST_RUN, &attr));
        for (uint64_t n = 0; n < FLOOD; n++)
            if (next_record(&ring) != n)
                die("another record", -EINVAL);
        say_since(begin);
    }
}

static void arrivals(int polls)
{
    static uint64_t times[ROUNDS * ARRIVALS][2];
    struct ring ring = new_ring(1 << 16);
    struct bpf_insn body[] = {
        LD_MAP(1, ring.map), MOV(2, RECORD), MOV(3, 0), CALL(BPF_FUNC_ringbuf_reserve), JEQ(0, 0, 6),
        MOVR(6, 0), CALL(BPF_FUNC_ktime_get_ns), STX(BPF_DW, 6, 0, 0),
        MOVR(1, 6), MOV(2, 0), CALL(BPF_FUNC_ringbuf_submit),
        MOV(0, 0), EXIT,
    };
    printf("program %u\n", id_of(loaded(LOAD(BPF_PROG_TYPE_RAW_TRACEPOINT, body)), 1));
    for (size_t n = 0; n < LENGTH(times); n++) {
        times[n][0] = awaited_record(&ring, polls);
        times[n][1] = now();
    }
    for (size_t n = 0; n < LENGTH(times); n++)
        printf("%lu %lu\n", (unsigned long)times[n][0], (unsigned long)times[n][1]);
}

/* What the guest and the host both have mapped: the writer says which comparison it is ready for, and is told when that is done. In
 * each exchange of it the host asks, and the guest answers with its time. */
struct clocks {
    volatile uint64_t ready, done, asked, answered, time;
};

static struct clocks *map_clocks(int array)
{
    void *clocks = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, array, 0);
    if (clocks == MAP_FAILED)
        die("mapping an array", -errno);
    return clocks;
}

static void pause_for(long nanoseconds)
{
    struct timespec pause = {.tv_nsec = nanoseconds};
    nanosleep(&pause, 0);
}

/* The host's end. The exchange that took least says most: the guest's time is one of a moment in it. */
static void compare_clocks(void)
{
    int array = good("array", create_map(BPF_MAP_TYPE_ARRAY, 4, sizeof(struct clocks), 1, BPF_F_MMAPABLE, 0));
    struct clocks *clocks = map_clocks(array);
    printf("array %u\n", id_of(array, 0));
    for (uint64_t round = 1; round <= ROUNDS + 1; round++) {
        uint64_t least = UINT64_MAX, host = 0, guest = 0;
        while (clocks->ready < round)
            pause_for(1000000);
        for (int n = 0; n < EXCHANGES; n++) {
            uint64_t question = clocks->asked + 1, begin = now();
            __atomic_store_n(&clocks->asked, question, __ATOMIC_RELEASE);
            while (__atomic_load_n(&clocks->answered, __ATOMIC_ACQUIRE) != question)
                ;
            uint64_t took = now() - begin;
            if (took < least) {
                least = took;
                host = begin + took / 2;
                guest = clocks->time;
            }
        }
        clocks->done = round;
        printf("%lu %lu %lu\n", (unsigned long)host, (unsigned long)guest, (unsigned long)(least + 1) / 2);
    }
}

static void answer_with_time(struct clocks *clocks, uint64_t round)
{
    clocks->ready = round;
    while (clocks->done < round) {
        uint64_t question = __atomic_load_n(&clocks->asked, __ATOMIC_ACQUIRE);
        if (question != clocks->answered) {
            clocks->time = now();
            __atomic_store_n(&clocks->answered, question, __ATOMIC_RELEASE);
        }
    }
}

/* Runs a program every few milliseconds, on the last CPU: a tool in the guest that polls has another. */
static void write_records(uint32_t program_id, uint32_t array_id)
{
    cpu_set_t last;
    CPU_ZERO(&last);
    CPU_SET((size_t)sysconf(_SC_NPROCESSORS_ONLN) - 1, &last);
    if (sched_setaffinity(0, sizeof last, &last))
        die("sched_setaffinity", -errno);
    int program = good("the program", fd_of_id(BPF_PROG_GET_FD_BY_ID, program_id));
    struct clocks *clocks = array_id ? map_clocks(good("the array", fd_of_id(BPF_MAP_GET_FD_BY_ID, array_id))) : 0;
    for (int round = 1; round <= ROUNDS; round++) {
        if (clocks)
            answer_with_time(clocks, (uint64_t)round);
        for (int n = 0; n < ARRIVALS; n++) {
            pause_for(2000000 + random() % 2000000);
            run_once(program);
        }
    }
    if (clocks)
        answer_with_time(clocks, ROUNDS + 1);
}

static void kprobe(const char *function, int program)
{
    struct perf_event_attr attr;
    unsigned type;
    FILE *file = fopen("/sys/bus/event_source/devices/kprobe/type", "r");
    if (!file || fscanf(file, "%u", &type) != 1)
        die("kprobe/type", -errno);
    fclose(file);
    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    attr.type = type;
    attr.config1 = (uintptr_t)function;
    int fd = (int)syscall(SYS_perf_event_open, &attr, -1, 0, -1, PERF_FLAG_FD_CLOEXEC);
    if (fd < 0)
        die("perf_event_open", -errno);
    if (ioctl(fd, PERF_EVENT_IOC_SET_BPF, program) < 0 || ioctl(fd, PERF_EVENT_IOC_ENABLE, 0) < 0)
        die("attaching", -errno);
}

/* Memory that is not there any more, or not as long as it was. */
static void fault(int signal)
{
    const char *said = signal == SIGBUS ? "SIGBUS\n" : "SIGSEGV\n";
    if (write(2, said, strlen(said)) < 0)
        _exit(2);
    _exit(1);
}

static void stay(void)
{
    signal(SIGSEGV, fault);
    signal(SIGBUS, fault);
    struct ring ring = new_ring(1 << 16);
    int hash = filled_hash(), counter = create_counter();
    struct bpf_insn body[] = {
        LD_VALUE(1, counter, 0), MOV(2, 1),
        INSN(BPF_STX | BPF_DW | BPF_ATOMIC, 1, 2, 0, BPF_ADD | BPF_FETCH),
        ADD(2, 1), STX(BPF_DW, 10, 2, -8),
        LD_MAP(1, ring.map), MOVR(2, 10), ADD(2, -8), MOV(3, 8), MOV(4, 0),
        CALL(BPF_FUNC_ringbuf_output), MOV(0, 0), EXIT,
    };
    kprobe("__x64_sys_sethostname", loaded(LOAD(BPF_PROG_TYPE_KPROBE, body)));
    puts("attached");
    for (;;) {
        unsigned long n = next_record(&ring);
        uint64_t key = n % ELEMENTS, value;
        /* By which a tool that still gets records notices that its guest is gone. */
        good("look-up", lookup(hash, &key, &value));
        printf("record %lu\n", n);
    }
}

int main(int argc, char **argv)
{
    setvbuf(stdout, 0, _IOLBF, 0);
    const char *what = argc > 2 ? argv[2] : "";
    if (argc == 2 && !strcmp(argv[1], "stay"))
        stay();
    else if (argc == 2 && !strcmp(argv[1], "kept"))
        kept();
    else if (argc == 3 && !strcmp(argv[1], "turns"))
        turns(strtol(argv[2], 0, 10));
    else if (argc == 2 && !strcmp(argv[1], "clocks"))
        compare_clocks();
    else if (argc == 3 && !strcmp(argv[1], "arrivals"))
        arrivals(!strcmp(what, "poll"));
    else if (argc == 4 && !strcmp(argv[1], "write"))
        write_records((uint32_t)strtoul(what, 0, 0), (uint32_t)strtoul(argv[3], 0, 0));
    else if (!strcmp(what, "look-up"))
        measure_look_up();
    else if (!strcmp(what, "dump"))
        measure_dump();
    else if (!strcmp(what, "batch"))
        measure_batch();
    else if (!strcmp(what, "record"))
        measure_record();
    else if (!strcmp(what, "flood"))
        measure_flood();
    else if (!strcmp(what, "mapping") && argc > 3)
        measure_mapping(strtoul(argv[3], 0, 0));
    else
        return 2;
    return 0;
}
