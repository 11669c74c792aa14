/* A tool with maps and programs that only a kernel has, which makes test runs of them, lists and
 * counts them, in a network namespace that it makes itself.
 *
 * output: a line for each thing, the same wherever it runs */
#define _GNU_SOURCE
#include "raw.h"
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>

/* Not in the headers of Linux 6.1. */
enum { TYPE_ARENA = 33, TCX_INGRESS = 46, BEFORE = 1 << 3, BY_ID = 1 << 5 };
enum { LOOPBACK = 1, PACKET = 64, PAGE = 4096 };

/* The rest of `union bpf_attr` for BPF_PROG_ATTACH. */
struct attach {
    int target, program;
    uint32_t type, flags;
    int replaces, relative;
    uint64_t revision;
};

struct query {
    int target;
    uint32_t type, query_flags, flags;
    uint64_t ids;
    uint32_t count, padding;
    uint64_t program_flags, links, link_flags, revision;
};

static int call(int command, void *attr, size_t size)
{
    int result = (int)syscall(SYS_bpf, command, attr, size);
    return result < 0 ? -errno : result;
}

static void arena(void)
{
    int map = good("arena", create_map(TYPE_ARENA, 0, 0, 2, BPF_F_MMAPABLE, 0));
    volatile long *words = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, map, 0);
    if (words == MAP_FAILED)
        die("mapping the arena", -errno);
    words[PAGE / sizeof *words] = 7;
    printf("arena: %ld\n", words[PAGE / sizeof *words]);
}

static int update_at64(int map, uint32_t key, uint64_t value) { return update(map, &key, &value, BPF_ANY); }

static void sockets(void)
{
    int map = good("map of sockets", create_map(BPF_MAP_TYPE_SOCKMAP, 4, 8, 2, 0, 0));
    int unix_socket[2];
    uint64_t cookie;
    uint32_t key = 1;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, unix_socket) < 0)
        die("socketpair", -errno);
    int file = good("/dev/null", open("/dev/null", O_RDONLY));
    int wrong = update_at64(map, 1, file), right = update_at64(map, 1, unix_socket[0]);
    int found = lookup(map, &key, &cookie), deleted = delete_at(map, 1), again = delete_at(map, 1);
    printf("sockets: %d, %d, look-up %d, deleted %d, again %d\n", wrong, right, found, deleted, again);
}

static int run_on_packet(int program, unsigned repeat)
{
    union bpf_attr attr;
    unsigned char packet[PACKET] = {0};
    memset(&attr, 0, sizeof attr);
    attr.test.prog_fd = (uint32_t)program;
    attr.test.data_in = (uintptr_t)packet;
    attr.test.data_size_in = sizeof packet;
    attr.test.repeat = repeat;
    int result = bpf(BPF_PROG_TEST_RUN, &attr);
    return result < 0 ? result : (int)attr.test.retval;
}

/* A map of devices, with a program that the kernel runs for the packets that go there. */
static void devices(void)
{
    const struct bpf_insn pass[] = {MOV(0, 2), EXIT};
    int program = loaded(load_program(BPF_PROG_TYPE_XDP, BPF_XDP_DEVMAP, pass, LENGTH(pass)));
    int map = good("map of devices", create_map(BPF_MAP_TYPE_DEVMAP, 4, 8, 1, 0, 0));
    uint32_t key = 0;
    struct {
        uint32_t device;
        int program;
    } value = {LOOPBACK, program}, found = {0};
    int stored = update(map, &key, &value, BPF_ANY);
    int read = lookup(map, &key, &found);
    printf("devices: %d, %d, device %u\n", stored, read, found.device);
    /* Redirects: only the kernel has the other device. */
    const struct bpf_insn redirect[] = {LD_MAP(1, map), MOV(2, 0), MOV(3, 0), CALL(BPF_FUNC_redirect_map), EXIT};
    printf("redirected: %d\n", run_on_packet(loaded(LOAD(BPF_PROG_TYPE_XDP, redirect)), 1));
}

/* A helper that Beeline does not serve; its program runs again and counts. */
static void test_runs(void)
{
    int counter = create_counter();
    const struct bpf_insn body[] = {MOVR(6, 1), COUNT(counter), MOVR(1, 6), CALL(BPF_FUNC_get_route_realm), MOV(0, 5), EXIT};
    int program = loaded(LOAD(BPF_PROG_TYPE_SCHED_CLS, body));
    int result = run_on_packet(program, 3), again = run_on_packet(dup(program), 1);
    printf("test runs: %d, %d, counted %ld\n", result, again, take_count(counter));
}

static void refused(void)
{
    const struct bpf_insn body[] = {MOVR(0, 2), EXIT};
    int program = LOAD(BPF_PROG_TYPE_SCHED_CLS, body);
    printf("refused: %d\n%s", program, load_log);
}

static uint32_t listed(uint32_t *ids, uint32_t room)
{
    struct query query = {.target = LOOPBACK, .type = TCX_INGRESS, .ids = (uintptr_t)ids, .count = room};
    good("BPF_PROG_QUERY", call(BPF_PROG_QUERY, &query, sizeof query));
    return query.count;
}

static int attach(int command, int program, uint32_t flags, int relative)
{
    struct attach attr = {.target = LOOPBACK, .program = program, .type = TCX_INGRESS, .flags = flags, .relative = relative};
    return call(command, &attr, sizeof attr);
}

/* Programs at a device of the namespace, in their order. */
static void lists(void)
{
    const struct bpf_insn body[] = {MOV(0, -1), EXIT};
    int programs[3];
    uint32_t ids[4] = {0};
    for (int n = 0; n < 3; n++)
        programs[n] = loaded(load_program(BPF_PROG_TYPE_SCHED_CLS, TCX_INGRESS, body, LENGTH(body)));
    good("first", attach(BPF_PROG_ATTACH, programs[0], 0, 0));
    good("by descriptor", attach(BPF_PROG_ATTACH, programs[1], BEFORE, programs[0]));
    good("by id", attach(BPF_PROG_ATTACH, programs[2], BEFORE | BY_ID, (int)id_of(programs[0], 1)));
    int unknown = attach(BPF_PROG_ATTACH, loaded(LOAD(BPF_PROG_TYPE_SCHED_CLS, body)), BEFORE | BY_ID, 1 << 30);
    printf("listed: %u:", listed(ids, LENGTH(ids)));
    for (int n = 0; n < 3; n++)
        for (int which = 0; which < 3; which++)
            if (ids[n] == id_of(programs[which], 1))
                printf(" %d", which);
    printf(", unknown %d", unknown);
    for (int n = 0; n < 3; n++)
        good("detaching", attach(BPF_PROG_DETACH, programs[n], 0, 0));
    printf(", then %u\n", listed(ids, LENGTH(ids)));
}

static void counts(void)
{
    const struct bpf_insn body[] = {MOV(0, 1), EXIT};
    union bpf_attr attr;
    struct bpf_prog_info info;
    int program = loaded(LOAD(BPF_PROG_TYPE_SCHED_CLS, body));
    run_on_packet(program, 2);
    memset(&attr, 0, sizeof attr);
    int stats = good("BPF_ENABLE_STATS", bpf(BPF_ENABLE_STATS, &attr));
    run_on_packet(program, 5);
    memset(&attr, 0, sizeof attr);
    memset(&info, 0, sizeof info);
    attr.info.bpf_fd = (uint32_t)program;
    attr.info.info_len = sizeof info;
    attr.info.info = (uintptr_t)&info;
    good("program info", bpf(BPF_OBJ_GET_INFO_BY_FD, &attr));
    printf("counted: %llu runs, time %s\n", info.run_cnt, info.run_time_ns ? "too" : "not");
    close(stats);
}

/* A program at all system calls sees those of its own tool, if it runs in the kernel. */
static void own_calls(void)
{
    int counter = create_counter();
    const struct bpf_insn body[] = {CALL(BPF_FUNC_get_current_pid_tgid), INSN(BPF_ALU64 | BPF_RSH | BPF_K, 0, 0, 0, 32),
                                    JNE(0, getpid(), 4), COUNT(counter), MOV(0, 0), EXIT};
    union bpf_attr attr;
    int program = loaded(LOAD(BPF_PROG_TYPE_RAW_TRACEPOINT, body));
    memset(&attr, 0, sizeof attr);
    attr.raw_tracepoint.name = (uintptr_t)"sys_enter";
    attr.raw_tracepoint.prog_fd = (uint32_t)program;
    int link = good("BPF_RAW_TRACEPOINT_OPEN", bpf(BPF_RAW_TRACEPOINT_OPEN, &attr));
    syscall(SYS_getppid);
    close(link);
    printf("own calls: %s\n", take_count(counter) > 0 ? "seen" : "not seen");
}

int main(void)
{
    if (unshare(CLONE_NEWNET) < 0)
        die("unshare", -errno);
    setvbuf(stdout, NULL, _IOLBF, 0);
    arena();
    sockets();
    devices();
    test_runs();
    refused();
    lists();
    counts();
    own_calls();
    return 0;
}
