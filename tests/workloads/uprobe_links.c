/* A tool that attaches one program to places of a file: by one link ("multi"), or by a perf event for each ("events").
 *
 *   uprobe_links multi|events entry|return PATH PID OFFSET:SEMAPHORE:COOKIE...
 *
 * PID 0 stands for all processes. Prints "attached", waits for a line of input, and prints for each cookie (below 16)
 * how often the program ran with it and the low bits of bpf_get_func_ip. With "multi" it prints what the kernel says
 * of the link, too.
 *
 *   uprobe_links every PATH PID OFFSET DISTANCE COUNT
 *
 * does the same by one link to COUNT places, all with cookie 0.
 *
 *   uprobe_links errors PATH OFFSET
 *
 * prints the answers to links that cannot be, for the place of a function in a file. */
#include "raw.h"

enum { MULTI = 48, LINK_MULTI = 12, KEYS = 16, MOST = 1 << 20 };
enum { FLAG_RETURN = 1, HIGH_PID = 0x7fffffff };

/* The kernel's headers of this system may not know it. */
struct multi {
    uint32_t program, target, type, link_flags;
    uint64_t path, offsets, semaphores, cookies;
    uint32_t count, flags, pid;
};
struct multi_info {
    uint32_t type, id, program, pad;
    uint64_t path, offsets, semaphores, cookies;
    uint32_t path_size, count, flags, pid;
};
struct value {
    uint64_t hits, ip;
};

static int create(struct multi wanted)
{
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    memcpy(&attr, &wanted, sizeof wanted);
    return bpf(BPF_LINK_CREATE, &attr);
}

/* Counts in the element of the cookie. */
static int counting(int map, uint32_t kind)
{
    struct bpf_insn body[] = {
        MOVR(6, 1),
        CALL(BPF_FUNC_get_attach_cookie),
        STX(BPF_W, 10, 0, -4),
        MOVR(2, 10),
        ADD(2, -4),
        LD_MAP(1, map),
        CALL(BPF_FUNC_map_lookup_elem),
        JEQ(0, 0, 6),
        MOVR(7, 0),
        MOV(1, 1),
        ATOMIC_ADD(7, 1, 0),
        MOVR(1, 6),
        CALL(BPF_FUNC_get_func_ip),
        STX(BPF_DW, 7, 0, 8),
        MOV(0, 0),
        EXIT,
    };
    return loaded(load_program(BPF_PROG_TYPE_KPROBE, kind, body, LENGTH(body)));
}

static void describe(int link)
{
    char path[256] = "";
    uint64_t offsets[KEYS] = {0}, semaphores[KEYS] = {0}, cookies[KEYS] = {0};
    struct multi_info info = {.path = (uintptr_t)path, .path_size = sizeof path, .count = KEYS,
                              .offsets = (uintptr_t)offsets, .semaphores = (uintptr_t)semaphores,
                              .cookies = (uintptr_t)cookies};
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.info.bpf_fd = (uint32_t)link;
    attr.info.info = (uintptr_t)&info;
    attr.info.info_len = sizeof info;
    good("BPF_OBJ_GET_INFO_BY_FD", bpf(BPF_OBJ_GET_INFO_BY_FD, &attr));
    printf("type %u, %s, %u bytes, flags %u, pid %s:", info.type, path, info.path_size, info.flags, info.pid ? "set" : "none");
    for (uint32_t i = 0; i < info.count && i < KEYS; i++)
        printf(" %lx:%lx:%lu", (long)offsets[i], (long)semaphores[i], (long)cookies[i]);
    puts("");
    info.count = 1;
    printf("with room for one: %d", bpf(BPF_OBJ_GET_INFO_BY_FD, &attr));
    info = (struct multi_info){.offsets = (uintptr_t)offsets};
    printf(", for none: %d", bpf(BPF_OBJ_GET_INFO_BY_FD, &attr));
    info = (struct multi_info){.path = (uintptr_t)path, .path_size = 4};
    printf(", for a short path: %d\n", bpf(BPF_OBJ_GET_INFO_BY_FD, &attr));
}

static int event(int program, int is_return, const char *path, int pid, uint64_t offset, uint64_t semaphore, uint64_t cookie)
{
    struct perf_event_attr attr;
    union bpf_attr link;
    unsigned type = 0;
    FILE *file = fopen("/sys/bus/event_source/devices/uprobe/type", "r");
    if (!file || fscanf(file, "%u", &type) != 1)
        die("uprobe/type", -errno);
    fclose(file);
    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    attr.type = type;
    attr.config = (uint64_t)is_return | semaphore << 32;
    attr.config1 = (uintptr_t)path;
    attr.config2 = offset;
    int fd = (int)syscall(SYS_perf_event_open, &attr, pid ? pid : -1, pid ? -1 : 0, -1, PERF_FLAG_FD_CLOEXEC);
    if (fd < 0)
        return -errno;
    memset(&link, 0, sizeof link);
    link.link_create.prog_fd = (uint32_t)program;
    link.link_create.target_fd = (uint32_t)fd;
    link.link_create.attach_type = BPF_PERF_EVENT;
    link.link_create.perf_event.bpf_cookie = cookie;
    int held = bpf(BPF_LINK_CREATE, &link);
    close(fd);
    return held;
}

static void print(const char *name, int result)
{
    if (result >= 0) {
        close(result);
        result = 0;
    }
    printf("%s: %d\n", name, result);
}

static void errors(const char *path, uint64_t offset)
{
    struct bpf_insn body[] = {MOV(0, 0), EXIT};
    int multi = loaded(load_program(BPF_PROG_TYPE_KPROBE, MULTI, body, LENGTH(body)));
    int plain = loaded(LOAD(BPF_PROG_TYPE_KPROBE, body));
    uint64_t beyond = 1 << 30, negative = 1ul << 63, odd = 3, even = 2, other = 4;
    char endless[5000];
    memset(endless, 'x', sizeof endless - 1);
    endless[sizeof endless - 1] = 0;
    const struct multi fine = {.program = (uint32_t)multi, .type = MULTI, .path = (uintptr_t)path, .offsets = (uintptr_t)&offset, .count = 1};
    struct multi wanted;
#define TRY(name, change) (wanted = fine, change, print(name, create(wanted)))
    TRY("fine", (void)0);
    TRY("a target", wanted.target = (uint32_t)-1);
    TRY("link flags", wanted.link_flags = 1);
    TRY("another program", wanted.program = (uint32_t)plain);
    TRY("another type", wanted.type = BPF_PERF_EVENT);
    TRY("a session", wanted.type = 57);
    TRY("unknown flags", wanted.flags = 2);
    TRY("unknown flags and no path", (wanted.flags = 4, wanted.path = 0));
    TRY("no path", wanted.path = 0);
    TRY("no offsets", wanted.offsets = 0);
    TRY("no places", wanted.count = 0);
    TRY("no process can be", wanted.pid = (uint32_t)-1);
    TRY("too many", wanted.count = MOST + 1);
    TRY("too many and no path", (wanted.count = MOST + 1, wanted.path = 8));
    TRY("a directory", wanted.path = (uintptr_t)"/");
    TRY("a device", wanted.path = (uintptr_t)"/dev/null");
    TRY("not there", wanted.path = (uintptr_t)"/nonexistent");
    TRY("nothing", wanted.path = (uintptr_t)"");
    TRY("not a path", wanted.path = 8);
    TRY("endless", wanted.path = (uintptr_t)endless);
    TRY("no such process", wanted.pid = HIGH_PID);
    TRY("no such process and no offsets there", (wanted.pid = HIGH_PID, wanted.offsets = 8));
    TRY("a directory and no such process", (wanted.path = (uintptr_t)"/", wanted.pid = HIGH_PID));
    TRY("itself", wanted.pid = 0);
    TRY("offsets not there", wanted.offsets = 8);
    TRY("cookies not there", wanted.cookies = 8);
    TRY("semaphores not there", wanted.semaphores = 8);
    TRY("beyond the file", wanted.offsets = (uintptr_t)&beyond);
    TRY("negative", wanted.offsets = (uintptr_t)&negative);
    TRY("negative and no cookies there", (wanted.offsets = (uintptr_t)&negative, wanted.cookies = 8));
    TRY("an odd semaphore", wanted.semaphores = (uintptr_t)&odd);
    wanted = fine;
    wanted.semaphores = (uintptr_t)&even;
    int held = good("a semaphore", create(wanted));
    TRY("the same semaphore", wanted.semaphores = (uintptr_t)&even);
    TRY("another semaphore", wanted.semaphores = (uintptr_t)&other);
    TRY("no semaphore", (void)0);
    print("another semaphore by an event", event(plain, 0, path, 0, offset, other, 0));
    print("the same semaphore by an event", event(plain, 0, path, 0, offset, even, 0));
    close(held);
    usleep(200000);
    TRY("another semaphore, later", wanted.semaphores = (uintptr_t)&other);
    print("an odd semaphore by an event", event(plain, 0, path, 0, offset, odd, 0));
}

/* Waits for a line of input, and prints what was counted. */
static void report(int map)
{
    puts("attached");
    getchar();
    for (uint32_t i = 0; i < KEYS; i++) {
        struct value value = {0, 0};
        good("look-up", lookup(map, &i, &value));
        if (value.hits)
            printf("cookie %u: %ld at %lx\n", i, (long)value.hits, (long)value.ip & 0xfff);
    }
}

/* Links a program to `count` places that are `distance` apart. */
static void every(const char *path, int pid, uint64_t first, uint64_t distance, uint32_t count)
{
    int map = good("map", create_map(BPF_MAP_TYPE_ARRAY, 4, sizeof(struct value), KEYS, 0, 0));
    uint64_t *offsets = calloc(count, sizeof *offsets);
    for (uint32_t i = 0; offsets && i < count; i++)
        offsets[i] = first + i * distance;
    good("link", create((struct multi){.program = (uint32_t)counting(map, MULTI), .type = MULTI, .path = (uintptr_t)path,
                                       .offsets = (uintptr_t)offsets, .count = count, .pid = (uint32_t)pid}));
    report(map);
}

int main(int argc, char **argv)
{
    setbuf(stdout, 0);
    if (argc == 4 && !strcmp(argv[1], "errors")) {
        errors(argv[2], strtoul(argv[3], 0, 0));
        return 0;
    }
    if (argc == 7 && !strcmp(argv[1], "every")) {
        every(argv[2], atoi(argv[3]), strtoul(argv[4], 0, 0), strtoul(argv[5], 0, 0), (uint32_t)atoi(argv[6]));
        return 0;
    }
    if (argc < 6)
        return 2;
    int is_multi = !strcmp(argv[1], "multi"), is_return = !strcmp(argv[2], "return"), pid = atoi(argv[4]);
    uint32_t count = 0;
    uint64_t offsets[KEYS], semaphores[KEYS], cookies[KEYS];
    for (; count < KEYS && argv[5 + count]; count++)
        if (sscanf(argv[5 + count], "%li:%li:%lu", (long *)&offsets[count], (long *)&semaphores[count], (unsigned long *)&cookies[count]) != 3)
            return 2;
    int map = good("map", create_map(BPF_MAP_TYPE_ARRAY, 4, sizeof(struct value), KEYS, 0, 0));
    int program = counting(map, is_multi ? MULTI : 0);
    if (is_multi) {
        struct multi wanted = {.program = (uint32_t)program, .type = MULTI, .path = (uintptr_t)argv[3], .offsets = (uintptr_t)offsets,
                               .semaphores = (uintptr_t)semaphores, .cookies = (uintptr_t)cookies, .count = count,
                               .flags = is_return ? FLAG_RETURN : 0, .pid = (uint32_t)pid};
        describe(good("link", create(wanted)));
    } else {
        for (uint32_t i = 0; i < count; i++)
            good("event", event(program, is_return, argv[3], pid, offsets[i], semaphores[i], cookies[i]));
    }
    report(map);
    return 0;
}
