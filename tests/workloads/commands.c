// A tool of bpf() commands, valid and not, that prints what each of them said: run on the kernel and by Beeline, it must
// print the same.
//
//     commands random SEED COUNT TYPES...   random commands on maps of these types
//     commands pins FILE OFFSET             names in the BPF file system; a link is to that place
//     commands wait                         poll() and select() on rings
//     commands hold DIRECTORY               pins a map with an element, and a program that uses it
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/perf_event.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

typedef uint32_t u32;
typedef uint64_t u64;

// The attribute as this program knows it, whatever the headers are: three more words than any command has.
union attr {
    unsigned char bytes[184];
    u32 w[46];
    u64 d[23];
};

static long bpf(int command, union attr *attr, u32 size) {
    long result = syscall(SYS_bpf, command, attr, size);
    return result < 0 ? -errno : result;
}

// ---- Small ones that the scenes share.

static u64 address(const void *at) { return (u64)(uintptr_t)at; }

static long map_create(u32 type, u32 key, u32 value, u32 entries, u32 flags) {
    union attr a = {.w = {type, key, value, entries, flags}};
    return bpf(BPF_MAP_CREATE, &a, sizeof a);
}

// r0 = 0, or with a map: r1 = map; r0 = 0.
static long prog_load(int map) {
    u64 plain[] = {0xb7, 0x95};
    u64 with_map[] = {0x1118 | (u64)(u32)map << 32, 0, 0xb7, 0x95};
    union attr a = {0};
    a.w[0] = BPF_PROG_TYPE_RAW_TRACEPOINT;
    a.w[1] = map < 0 ? 2 : 4;
    a.d[1] = address(map < 0 ? plain : with_map);
    a.d[2] = address("GPL");
    return bpf(BPF_PROG_LOAD, &a, 120);
}

static long pin(int fd, const char *path, u32 flags, u32 path_fd) {
    union attr a = {0};
    a.d[0] = address(path), a.w[2] = fd, a.w[3] = flags, a.w[4] = path_fd;
    return bpf(BPF_OBJ_PIN, &a, 20);
}

static long get(const char *path, u32 flags, u32 path_fd) {
    union attr a = {0};
    a.d[0] = address(path), a.w[3] = flags, a.w[4] = path_fd;
    return bpf(BPF_OBJ_GET, &a, 20);
}

static long element(int command, int map, const void *key, void *value, u64 flags) {
    union attr a = {0};
    a.w[0] = map, a.d[1] = address(key), a.d[2] = address(value), a.d[3] = flags;
    return bpf(command, &a, command == BPF_MAP_DELETE_ELEM ? 16 : 32);
}

// 0 for a descriptor, which differs.
static long ok(long result) { return result > 0 ? 0 : result; }

static long error(long result) { return result < 0 ? -errno : result; }

// ---- Random commands.

static u64 state;

static u64 next(void) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static u32 below(u32 n) { return (u32)(next() >> 20) % n; }
#define ONE_OF(...) ((u32[]){__VA_ARGS__}[below(sizeof((u32[]){__VA_ARGS__}) / 4)])

enum { MAPS = 12 };
static int types[32], type_count;
static int maps[MAPS];
static u32 map_types[MAPS];
static int program, pipe_end;

static int is_hash(u32 type) { return type == 1 || type == 5 || type == 9 || type == 10; }

static u32 type_of(int fd) {
    for (int n = 0; n < MAPS; n++)
        if (maps[n] == fd) return map_types[n];
    return 0;
}

// Mostly a map of the twelve, otherwise something else.
static int some_fd(void) {
    switch (below(24)) {
    case 0: return -1;
    case 1: return 999;
    case 2: return program;
    case 3: return pipe_end;
    default: return maps[below(MAPS)];
    }
}

static u64 some_address(void *good) {
    switch (below(16)) {
    case 0: return 0;
    case 1: return 8;
    default: return address(good);
    }
}

// Now and then something behind a command's last field.
static void spoil(union attr *a, u32 size) {
    if (below(24) == 0) a->bytes[size + below(sizeof *a - size)] = 1;
}

static void create(void) {
    u32 slot = below(MAPS);
    union attr a = {0};
    a.w[0] = below(40) ? types[below(type_count)] : ONE_OF(0, 77);
    int array = !is_hash(a.w[0]);
    int ring = a.w[0] == 27;
    a.w[1] = ring ? ONE_OF(0, 0, 0, 0, 4) : array ? ONE_OF(4, 4, 4, 4, 4, 8, 0) : ONE_OF(4, 4, 8, 3, 0);
    a.w[2] = ring ? ONE_OF(0, 0, 0, 0, 4) : ONE_OF(4, 4, 8, 8, 8, 16, 5, 0);
    a.w[3] = ring ? ONE_OF(4096, 8192, 5000) : ONE_OF(1, 4, 4, 7, 0);
    if (below(3) == 0) a.w[4] = 1u << below(18);
    if (below(8) == 0) a.w[4] |= 1u << ONE_OF(0, 3, 4, 10);
    if (below(12) == 0) a.w[6] = ONE_OF(0, 1, 99, ~0u);
    static const char *names[] = {"", "plain", "a.b_c9", "two words", "sixteen_bytes_16", "fifteen_bytes15"};
    strncpy((char *)a.bytes + 28, names[below(6)], 16);
    if (below(24) == 0) a.w[11] = 99; // map_ifindex
    if (below(16) == 0) a.w[12] = some_fd(), a.w[13] = below(2), a.w[14] = below(2);
    if (below(32) == 0) a.w[15] = 5; // btf_vmlinux_value_type_id
    if (below(24) == 0) a.d[8] = 3;  // map_extra
    if (below(24) == 0) a.w[19] = some_fd();
    spoil(&a, 92);
    u32 size = below(16) ? sizeof a : ONE_OF(20, 48, 72, 92);
    long fd = bpf(BPF_MAP_CREATE, &a, size);
    printf("create type %u key %u value %u entries %u flags %#x: %ld\n", a.w[0], a.w[1], a.w[2], a.w[3], a.w[4], ok(fd));
    if (fd < 0) return;
    if (maps[slot] >= 0) close(maps[slot]);
    maps[slot] = fd;
    map_types[slot] = a.w[0];
}

static void one_element(void) {
    static const u32 ends[] = {0, 32, 32, 16, 24};
    u32 command = below(5) ? 1 + below(4) : BPF_MAP_LOOKUP_AND_DELETE_ELEM;
    u32 size = command < 5 ? ends[command] : 32;
    int fd = some_fd();
    u64 key[2] = {below(5), 0};
    unsigned char value[512];
    memset(value, below(256), sizeof value);
    union attr a = {0};
    a.w[0] = fd;
    a.d[1] = some_address(key);
    if (size > 16) a.d[2] = some_address(value);
    if (size > 24) a.d[3] = ONE_OF(0, 0, 0, 0, 1, 2, 3, 4, 8, 9);
    spoil(&a, size);
    long result = bpf(command, &a, below(2) ? size : sizeof a);
    // In which order a hash has its keys is its own affair.
    if (command == BPF_MAP_GET_NEXT_KEY && (result == -ENOENT || result == -EFAULT) && is_hash(type_of(fd))) result = 0;
    printf("element of type %u command %u key %lu flags %lu: %ld", type_of(fd), command, key[0], a.d[3], result);
    if (result == 0 && command == BPF_MAP_LOOKUP_ELEM && a.d[2] == address(value)) printf(" %u", value[0]);
    puts("");
}

static void batch(void) {
    static unsigned char keys[64 * 16], values[64 * 512];
    u32 command = BPF_MAP_LOOKUP_BATCH + below(4);
    int fd = some_fd();
    u32 from[4] = {ONE_OF(0, 1, 2, 3, 99), 0}, to[4] = {0};
    for (u32 n = 0; n < sizeof keys; n++) keys[n] = 0;
    for (u32 n = 0; n < 8; n++) keys[4 * n] = n;
    memset(values, below(256), sizeof values);
    union attr a = {0};
    if (below(2)) a.d[0] = some_address(from);
    a.d[1] = some_address(to), a.d[2] = some_address(keys), a.d[3] = some_address(values);
    a.w[8] = ONE_OF(0, 1, 2, 4, 8), a.w[9] = fd;
    a.d[5] = ONE_OF(0, 0, 0, 0, 1, 4);
    a.d[6] = ONE_OF(0, 0, 0, 1);
    // Only whole reads of a hash can be compared.
    int hash = is_hash(type_of(fd));
    if (hash && command < BPF_MAP_UPDATE_BATCH) a.d[0] = 0, a.w[8] = below(2) ? 8 : 0;
    spoil(&a, 56);
    u32 wanted = a.w[8];
    long result = bpf(command, &a, sizeof a);
    printf("batch of type %u command %u of %u, flags %lu %lu: %ld %u", type_of(fd), command, wanted, a.d[5], a.d[6], result, a.w[8]);
    if (!hash && command == BPF_MAP_LOOKUP_BATCH && (result == 0 || result == -ENOENT)) {
        printf(" to %u:", to[0]);
        for (u32 n = 0; n < a.w[8] && n < 8; n++) printf(" %u", keys[4 * n]);
    }
    puts("");
}

static void info(void) {
    static unsigned char buffer[8192];
    memset(buffer, 0, sizeof buffer);
    int fd = some_fd();
    u32 length = ONE_OF(0, 4, 8, 40, 80, 88, 104, 232, 4096, 4097, 8192);
    if (below(12) == 0) buffer[below(300)] = 1;
    union attr a = {0};
    a.w[0] = fd, a.w[1] = length, a.d[1] = some_address(buffer);
    spoil(&a, 16);
    long result = bpf(BPF_OBJ_GET_INFO_BY_FD, &a, below(2) ? 16 : sizeof a);
    printf("info of %u bytes: %ld %u", length, result, a.w[1]);
    u32 *w = (u32 *)buffer;
    if (result == 0 && fd == program && length == 232)
        printf(" type %u uid %u maps %u name %s gpl %u tag %08x%08x", w[0], w[12], w[13], (char *)buffer + 64, w[21], w[2], w[3]);
    else if (result == 0 && a.d[1] && length >= 80 && fd != program)
        printf(" type %u sizes %u %u %u flags %#x name %s btf %u", w[0], w[2], w[3], w[4], w[5], (char *)buffer + 24, w[17]);
    puts("");
}

static u32 id_of(int fd) {
    u32 buffer[8] = {0};
    union attr a = {0};
    a.w[0] = fd, a.w[1] = sizeof buffer, a.d[1] = address(buffer);
    return bpf(BPF_OBJ_GET_INFO_BY_FD, &a, 16) ? 0 : buffer[1];
}

static void by_id(void) {
    u32 slot = below(MAPS);
    u32 command = ONE_OF(BPF_MAP_GET_FD_BY_ID, BPF_MAP_GET_FD_BY_ID, BPF_MAP_GET_FD_BY_ID, BPF_PROG_GET_FD_BY_ID,
                         BPF_LINK_GET_FD_BY_ID, BPF_MAP_GET_NEXT_ID);
    union attr a = {0};
    a.w[0] = command == BPF_MAP_GET_FD_BY_ID && below(8) ? id_of(maps[slot]) : command == BPF_PROG_GET_FD_BY_ID && below(4) ? id_of(program) : ONE_OF(0, 0x7ffffffe, 0x7fffffff, ~0u);
    if (below(2) && command != BPF_MAP_GET_NEXT_ID) a.w[2] = ONE_OF(0, 8, 8, 16, 16, 24, 1);
    // There is always a next one after 0, and never after the largest; 0 may be an id of nothing.
    if (command == BPF_MAP_GET_NEXT_ID) a.w[0] = ONE_OF(0, 0x7ffffffe, 0x7fffffff, ~0u);
    spoil(&a, 12);
    long fd = bpf(command, &a, sizeof a);
    printf("by id command %u flags %u: %ld\n", command, a.w[2], ok(fd));
    if (fd <= 0) return;
    if (command != BPF_MAP_GET_FD_BY_ID) {
        close(fd);
        return;
    }
    close(maps[slot]);
    maps[slot] = fd;
}

static void freeze(void) {
    union attr a = {0};
    a.w[0] = some_fd();
    spoil(&a, 4);
    printf("freeze: %ld\n", bpf(BPF_MAP_FREEZE, &a, below(2) ? 4 : sizeof a));
}

static void map_memory(void) {
    u32 slot = below(MAPS);
    int protection = ONE_OF(PROT_READ, PROT_READ | PROT_WRITE, PROT_WRITE);
    u32 length = ONE_OF(1, 4096, 8192, 12288, 1 << 20), offset = ONE_OF(0, 0, 0, 4096, 8192);
    void *at = mmap(0, length, protection, MAP_SHARED, maps[slot], offset);
    long result = at == MAP_FAILED ? -errno : 0;
    printf("mmap type %u, %d of %u at %u: %ld", map_types[slot], protection, length, offset, result);
    int and_freeze = below(2);
    if (result == 0 && and_freeze) {
        union attr a = {0};
        a.w[0] = maps[slot];
        printf(", freeze %ld", bpf(BPF_MAP_FREEZE, &a, 4));
    }
    puts("");
    if (result == 0) munmap(at, length);
}

static void random_commands(u64 seed, u32 count) {
    int ends[2];
    if (pipe(ends)) exit(1);
    pipe_end = ends[0];
    state = seed * 0x9e3779b97f4a7c15 + 1;
    for (int n = 0; n < MAPS; n++) maps[n] = -1;
    int for_program = map_create(BPF_MAP_TYPE_ARRAY, 4, 8, 4, 0);
    program = prog_load(for_program);
    for (u32 n = 0; n < count; n++) {
        printf("%u: ", n);
        switch (below(16)) {
        case 0 ... 2: create(); break;
        case 3 ... 8: one_element(); break;
        case 9 ... 10: batch(); break;
        case 11: info(); break;
        case 12 ... 13: by_id(); break;
        case 14: below(3) ? info() : freeze(); break;
        case 15: map_memory(); break;
        }
    }
}

// ---- Names in the BPF file system.

#define SAY(what) printf("%s: %ld\n", #what, ok(what))

// A link to a place in a file that nobody runs.
static long uprobe_link(const char *file, u64 offset) {
    u64 plain[] = {0xb7, 0x95};
    union attr program = {.w = {BPF_PROG_TYPE_KPROBE, 2}};
    program.d[1] = address(plain);
    program.d[2] = address("GPL");
    struct perf_event_attr probe = {.size = sizeof probe, .config1 = address(file), .config2 = offset};
    FILE *type = fopen("/sys/bus/event_source/devices/uprobe/type", "r");
    if (!type || fscanf(type, "%u", &probe.type) != 1) return -errno;
    fclose(type);
    union attr link = {0};
    link.w[0] = bpf(BPF_PROG_LOAD, &program, 120);
    link.w[1] = error(syscall(SYS_perf_event_open, &probe, -1, 0, -1, 0));
    link.w[2] = BPF_PERF_EVENT;
    return bpf(BPF_LINK_CREATE, &link, 64);
}

static void pins(const char *file, u64 offset) {
    int map = map_create(BPF_MAP_TYPE_HASH, 4, 8, 4, 0);
    int prog = prog_load(map);
    int plain = open("/dev/null", O_RDONLY);
    struct statfs fs;
    SAY(error(statfs("/sys/fs/bpf", &fs)));
    printf("magic %lx\n", (long)fs.f_type);
    // Errors come in an order: attribute, object, path.
    SAY(pin(map, "/sys/fs/bpf/beeline/m", 0, 0));
    SAY(pin(map, "/sys/fs/bpf/beeline", 8, 0));
    SAY(pin(map, "/sys/fs/bpf/beeline", 0, 7));
    SAY(pin(999, "/none/x", 0, 0));
    SAY(pin(plain, "/sys/fs/bpf/beeline", 0, 0));
    SAY(pin(map, "", 0, 0));
    SAY(pin(map, "/none/x", 0, 0));
    SAY(pin(map, "/tmp/beeline-none", 0, 0));
    SAY(pin(map, "/tmp", 0, 0));
    SAY(pin(map, "/sys/fs/bpf", 0, 0));
    SAY(pin(map, "/sys/fs/bpf/with.dot", 0, 0));
    SAY(pin(map, (char *)8, 0, 0));
    SAY(get("/sys/fs/bpf/none", 0, 0));
    SAY(get("/sys/fs/bpf", 0, 0));
    SAY(get("/tmp", 0, 0));
    SAY(get("/none", 0, 0));
    SAY(get("/sys/fs/bpf/none", 24, 0));
    SAY(get("/sys/fs/bpf/none", 1, 0));

    SAY(error(mkdir("/sys/fs/bpf/beeline", 0700)));
    SAY(error(mkdir("/sys/fs/bpf/beeline", 0700)));
    SAY(error(mkdir("/sys/fs/bpf/with.dot", 0700)));
    SAY(pin(map, "/sys/fs/bpf/beeline/m", 0, 0));
    SAY(pin(map, "/sys/fs/bpf/beeline/m", 0, 0));
    SAY(pin(prog, "/sys/fs/bpf/beeline/m", 0, 0));
    SAY(pin(prog, "/sys/fs/bpf/beeline/p", 0, 0));
    SAY(pin(map, "/sys/fs/bpf/beeline/m/x", 0, 0));
    int directory = open("/sys/fs/bpf/beeline", O_RDONLY | O_DIRECTORY);
    SAY(error(fstatfs(directory, &fs)));
    printf("magic %lx\n", (long)fs.f_type);
    SAY(pin(map, "by_fd", 1 << 14, directory));
    SAY(get("by_fd", 1 << 14, directory));
    SAY(get("by_fd", 0, 0));
    SAY(error(unlinkat(directory, "by_fd", 0)));
    SAY(get("/sys/fs/bpf/beeline/by_fd", 0, 0));

    // What the names are of, and how far each descriptor goes.
    u32 key = 1;
    u64 value = 7;
    int same = get("/sys/fs/bpf/beeline/m", 0, 0);
    printf("same %d\n", id_of(same) == id_of(map));
    int reader = get("/sys/fs/bpf//beeline/./m", BPF_F_RDONLY, 0);
    int writer = get("/sys/fs/bpf/beeline/../beeline/m", BPF_F_WRONLY, 0);
    SAY(element(BPF_MAP_UPDATE_ELEM, reader, &key, &value, 0));
    SAY(element(BPF_MAP_UPDATE_ELEM, writer, &key, &value, 0));
    SAY(element(BPF_MAP_LOOKUP_ELEM, writer, &key, &value, 0));
    SAY(element(BPF_MAP_LOOKUP_ELEM, reader, &key, &value, 0));
    SAY(element(BPF_MAP_LOOKUP_AND_DELETE_ELEM, reader, &key, &value, 0));
    int copy = dup(reader);
    SAY(element(BPF_MAP_DELETE_ELEM, copy, &key, 0, 0));
    SAY(element(BPF_MAP_DELETE_ELEM, writer, &key, 0, 0));
    SAY(get("/sys/fs/bpf/beeline/p", BPF_F_RDONLY, 0));
    char link[64] = {0}, path[64];
    for (int n = 0; n < 2; n++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", n ? prog : map);
        memset(link, 0, sizeof link);
        SAY(error(readlink(path, link, sizeof link - 1)) > 0);
        puts(link);
    }

    // What a name gives does not depend on the descriptor that was pinned.
    union attr opened = {.w = {id_of(map), 0, BPF_F_RDONLY}};
    int by_id = bpf(BPF_MAP_GET_FD_BY_ID, &opened, 12), narrow[] = {reader, writer, by_id};
    for (int n = 0; n < 3; n++) {
        SAY(pin(narrow[n], "/sys/fs/bpf/beeline/narrow", 0, 0));
        for (u32 flags = 0; flags <= BPF_F_WRONLY; flags += BPF_F_RDONLY) {
            int wide = get("/sys/fs/bpf/beeline/narrow", flags, 0);
            SAY(element(BPF_MAP_UPDATE_ELEM, wide, &key, &value, 0));
            SAY(element(BPF_MAP_LOOKUP_ELEM, wide, &key, &value, 0));
            close(wide);
        }
        SAY(error(unlink("/sys/fs/bpf/beeline/narrow")));
    }
    close(by_id);
    int made_narrow = map_create(BPF_MAP_TYPE_HASH, 4, 8, 4, BPF_F_RDONLY);
    SAY(element(BPF_MAP_UPDATE_ELEM, made_narrow, &key, &value, 0));
    SAY(pin(made_narrow, "/sys/fs/bpf/beeline/narrow", 0, 0));
    int wide = get("/sys/fs/bpf/beeline/narrow", 0, 0);
    SAY(element(BPF_MAP_UPDATE_ELEM, wide, &key, &value, 0));
    SAY(error(unlink("/sys/fs/bpf/beeline/narrow")));
    close(made_narrow), close(wide);

    // A link's first descriptor has another name than those that are opened later.
    int first = uprobe_link(file, offset);
    SAY(first > 0);
    SAY(pin(first, "/sys/fs/bpf/beeline/link", 0, 0));
    union attr numbered = {.w = {id_of(first)}};
    int links[] = {first, bpf(BPF_LINK_GET_FD_BY_ID, &numbered, 4), get("/sys/fs/bpf/beeline/link", 0, 0), dup(first)};
    for (int n = 0; n < 4; n++) {
        snprintf(path, sizeof path, "/proc/self/fd/%d", links[n]);
        memset(link, 0, sizeof link);
        SAY(error(readlink(path, link, sizeof link - 1)) > 0);
        puts(link);
        close(links[n]);
    }
    SAY(error(unlink("/sys/fs/bpf/beeline/link")));

    // Names as files.
    struct stat st;
    SAY(error(stat("/sys/fs/bpf/beeline/m", &st)));
    printf("mode %o size %ld\n", st.st_mode, st.st_size);
    SAY(error(access("/sys/fs/bpf/beeline/m", F_OK)));
    SAY(error(access("/sys/fs/bpf/beeline/none", F_OK)));
    SAY(error(open("/sys/fs/bpf/beeline/p", O_RDONLY)));
    SAY(error(open("/sys/fs/bpf/beeline/new", O_RDWR | O_CREAT, 0600)));
    SAY(error(rename("/sys/fs/bpf/beeline/m", "/sys/fs/bpf/beeline/n")));
    SAY(error(rename("/sys/fs/bpf/beeline/n", "/tmp/beeline-n")));
    SAY(get("/sys/fs/bpf/beeline/m", 0, 0));
    SAY(get("/sys/fs/bpf/beeline/n", 0, 0));
    SAY(error(rmdir("/sys/fs/bpf/beeline")));
    SAY(error(unlink("/sys/fs/bpf/beeline")));

    // An object lives by its name alone, and is found by its id.
    u32 id = id_of(map);
    close(map), close(same), close(reader), close(writer), close(copy), close(prog);
    // With the program goes its use of the map.
    SAY(error(unlink("/sys/fs/bpf/beeline/p")));
    union attr a = {.w = {id}};
    int again = bpf(BPF_MAP_GET_FD_BY_ID, &a, 12);
    SAY(again > 0);
    close(again);
    again = get("/sys/fs/bpf/beeline/n", 0, 0);
    printf("same %d\n", id_of(again) == id);
    SAY(error(unlink("/sys/fs/bpf/beeline/n")));
    SAY(error(unlink("/sys/fs/bpf/beeline/n")));
    SAY(element(BPF_MAP_UPDATE_ELEM, again, &key, &value, 0));
    SAY(error(rmdir("/sys/fs/bpf/beeline")));
    SAY(error(stat("/sys/fs/bpf/beeline", &st)));
}

// ---- Waiting for rings.

enum { MAX_CPUS = 64, PAGE = 4096 };

// A program that writes eight bytes to a ring buffer, or to the perf ring of its CPU.
static long writer_program(int map, int perf) {
    u64 store = 0x7a | 0xa << 8 | (u64)(uint16_t)-8 << 16; // *(u64 *)(r10 - 8) = 0
    u64 to_ring[] = {
        store,
        0x1118 | (u64)(u32)map << 32, 0, // r1 = map
        0xa2bf, 0xfffffff800000207,      // r2 = r10 - 8
        8ull << 32 | 0x3b7,              // r3 = 8
        0x4b7,                           // r4 = 0
        130ull << 32 | 0x85, 0xb7, 0x95};
    u64 to_perf[] = {
        store,
        0x1218 | (u64)(u32)map << 32, 0, // r2 = map
        0xffffffff000003b4,              // w3 = BPF_F_CURRENT_CPU
        0xa4bf, 0xfffffff800000407,      // r4 = r10 - 8
        8ull << 32 | 0x5b7,              // r5 = 8
        25ull << 32 | 0x85, 0xb7, 0x95};
    union attr a = {0};
    a.w[0] = BPF_PROG_TYPE_RAW_TRACEPOINT;
    a.w[1] = perf ? sizeof to_perf / 8 : sizeof to_ring / 8;
    a.d[1] = address(perf ? to_perf : to_ring);
    a.d[2] = address("GPL");
    return bpf(BPF_PROG_LOAD, &a, 120);
}

static long run(int prog) {
    union attr a = {.w = {prog}};
    return bpf(BPF_PROG_TEST_RUN, &a, 80);
}

static int perf_ring(int cpu) {
    struct perf_event_attr attr = {.type = PERF_TYPE_SOFTWARE, .size = sizeof attr, .config = PERF_COUNT_SW_BPF_OUTPUT,
                                   .sample_type = PERF_SAMPLE_RAW, .sample_period = 1, .wakeup_events = 1};
    return syscall(SYS_perf_event_open, &attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC);
}

// Runs the program a moment after this returns, in a child; that much later a poll must be asleep already.
static int run_later(int prog) {
    fflush(stdout);
    int child = fork();
    if (child == 0) {
        usleep(100000);
        _exit(run(prog) != 0);
    }
    return child;
}

static void nothing(int signal) { (void)signal; }

static void wait_for(const char *what, struct pollfd *fds, int count, int prog, volatile u64 *const *consumed,
                     volatile u64 *const *produced) {
    printf("%s: idle %d", what, poll(fds, count, 50));
    int child = run_later(prog), status;
    printf(", woken %d", poll(fds, count, 20000));
    waitpid(child, &status, 0);
    printf(", child %d", status);
    fd_set set;
    FD_ZERO(&set);
    int most = 0;
    for (int n = 0; n < count; n++) {
        *consumed[n] = *produced[n];
        FD_SET(fds[n].fd, &set);
        if (fds[n].fd >= most) most = fds[n].fd + 1;
    }
    printf(", read %d", poll(fds, count, 0));
    struct timeval moment = {.tv_usec = 50000}, patience = {.tv_sec = 20};
    fd_set idle = set;
    printf(", select %d", select(most, &idle, 0, 0, &moment));
    child = run_later(prog);
    printf(" %d", select(most, &set, 0, 0, &patience));
    waitpid(child, &status, 0);
    for (int n = 0; n < count; n++) *consumed[n] = *produced[n];
    // A signal ends the wait.
    struct sigaction action = {.sa_handler = nothing};
    sigaction(SIGALRM, &action, 0);
    ualarm(50000, 50000);
    poll(fds, count, 0);
    int result = poll(fds, count, 20000);
    ualarm(0, 0);
    printf(", interrupted %d %d\n", result, result < 0 && errno == EINTR);
}

static void waits(void) {
    static volatile u64 *consumed[MAX_CPUS], *produced[MAX_CPUS];
    int ring = map_create(BPF_MAP_TYPE_RINGBUF, 0, 0, PAGE, 0);
    char *page = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, ring, 0);
    consumed[0] = (void *)page;
    produced[0] = mmap(0, PAGE, PROT_READ, MAP_SHARED, ring, PAGE);
    struct pollfd fds[MAX_CPUS] = {{.fd = ring, .events = POLLIN}};
    wait_for("ring buffer", fds, 1, writer_program(ring, 0), consumed, produced);
    printf("mapped again %d\n", mmap(0, PAGE, PROT_READ, MAP_SHARED, ring, PAGE) != MAP_FAILED);
    printf("closes on exec %d\n", fcntl(ring, F_GETFD));

    int cpus = sysconf(_SC_NPROCESSORS_CONF);
    int array = map_create(BPF_MAP_TYPE_PERF_EVENT_ARRAY, 4, 4, cpus, 0);
    for (u32 cpu = 0; cpu < cpus && cpu < MAX_CPUS; cpu++) {
        int fd = perf_ring(cpu);
        page = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        struct perf_event_mmap_page *control = (void *)page;
        consumed[cpu] = (u64 *)&control->data_tail, produced[cpu] = (u64 *)&control->data_head;
        element(BPF_MAP_UPDATE_ELEM, array, &cpu, &fd, 0);
        ioctl(fd, PERF_EVENT_IOC_ENABLE, 0);
        fds[cpu] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    wait_for("perf rings", fds, cpus, writer_program(array, 1), consumed, produced);
}

// ---- Objects for other tools to look at.

static int hold(const char *directory) {
    char path[256];
    union attr a = {.w = {BPF_MAP_TYPE_HASH, 4, 8, 4}};
    memcpy(a.bytes + 28, "beeline_held", 12);
    int map = bpf(BPF_MAP_CREATE, &a, sizeof a);
    u32 key = 5;
    u64 value = 77;
    if (element(BPF_MAP_UPDATE_ELEM, map, &key, &value, 0)) return 1;
    snprintf(path, sizeof path, "%s/map", directory);
    if (pin(map, path, 0, 0)) return 1;
    snprintf(path, sizeof path, "%s/program", directory);
    return pin(prog_load(map), path, 0, 0) != 0;
}

int main(int count, char **words) {
    setvbuf(stdout, 0, _IOLBF, 0);
    if (count >= 5 && !strcmp(words[1], "random")) {
        for (int n = 4; n < count && type_count < 32; n++) types[type_count++] = atoi(words[n]);
        random_commands(strtoull(words[2], 0, 0), strtoul(words[3], 0, 0));
    } else if (count == 4 && !strcmp(words[1], "pins")) {
        pins(words[2], strtoull(words[3], 0, 0));
    } else if (count == 2 && !strcmp(words[1], "wait")) {
        waits();
    } else if (count == 3 && !strcmp(words[1], "hold")) {
        return hold(words[2]);
    } else {
        fprintf(stderr, "usage: commands random SEED COUNT TYPES... | pins FILE OFFSET | wait | hold DIRECTORY\n");
        return 2;
    }
    return 0;
}
