// A tool that takes as much as it is given. Each line of input has it do one thing, and answers one line:
//
//     maps TYPE KEY VALUE ENTRIES FLAGS MOST   creates maps until there are MOST or it fails: how many, and the error
//     filled VALUE ENTRIES MOST                the same with arrays, all of whose values are written
//     churn VALUE ENTRIES COUNT                creates, fills and closes COUNT arrays, one after the other
//     programs LENGTH MOST                     loads programs of so many instructions, each another one
//     calls MOST                               loads a program of 60,000 instructions of which a verifier has to remember very much
//     btf SIZE MOST                            loads type information
//     rings PAGES MOST                         opens perf events and maps their rings
//     close                                    closes all that it has
//     child WORDS...                           does what WORDS say in a child, which keeps what it has
//     end                                      ends the child
#include "raw.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

enum { MOST_FDS = 1 << 16 };
static int fds[MOST_FDS];
static int count;

static void keep(int fd)
{
    if (!fd)
        die("standard input was made an object", -EBADF);
    fds[count++] = fd;
}

static void fill(int map, unsigned value, unsigned entries)
{
    union bpf_attr attr;
    static uint32_t *keys;
    static char *values;
    keys = realloc(keys, entries * sizeof *keys);
    values = realloc(values, (size_t)entries * value);
    for (unsigned i = 0; i < entries; i++)
        keys[i] = i;
    memset(values, 1, (size_t)entries * value);
    memset(&attr, 0, sizeof attr);
    attr.batch.map_fd = (uint32_t)map;
    attr.batch.keys = (uintptr_t)keys;
    attr.batch.values = (uintptr_t)values;
    attr.batch.count = entries;
    good("filling", bpf(BPF_MAP_UPDATE_BATCH, &attr));
}

static int filled(unsigned value, unsigned entries)
{
    int map = create_map(BPF_MAP_TYPE_ARRAY, 4, value, entries, 0, 0);
    if (map >= 0)
        fill(map, value, entries);
    return map;
}

static int program(unsigned length)
{
    static int number;
    struct bpf_insn *body = malloc(length * sizeof *body);
    for (unsigned i = 0; i + 1 < length; i++)
        body[i] = i % 2 ? INSN(BPF_ALU64 | BPF_MUL | BPF_K, 0, 0, 0, i) : MOV(0, number + (int)i);
    number++;
    body[length - 1] = EXIT;
    union bpf_attr attr = program_attr(BPF_PROG_TYPE_KPROBE, body, length);
    attr.log_buf = attr.log_size = attr.log_level = 0;
    int fd = bpf(BPF_PROG_LOAD, &attr);
    free(body);
    return fd;
}

// A long function that is called at many places: what is known of its stack is kept for each of them.
static int calls(void)
{
    enum { LENGTH = 40000, CALLS = 10000, FUNCTION = 2 * CALLS + 2 };
    static struct bpf_insn body[FUNCTION + LENGTH + 4];
    for (int i = 0; i < CALLS; i++) {
        body[2 * i] = MOV(1, i == 0);
        body[2 * i + 1] = CALL_LOCAL(FUNCTION - 2 * i - 2);
    }
    body[FUNCTION - 2] = MOV(0, 0);
    body[FUNCTION - 1] = EXIT;
    body[FUNCTION] = MOV(0, 0);
    body[FUNCTION + 1] = JNE(1, 0, 1);
    body[FUNCTION + 2] = EXIT;
    for (int i = 0; i < LENGTH; i++)
        body[FUNCTION + 3 + i] = MOV(0, i);
    body[FUNCTION + 3 + LENGTH] = EXIT;
    union bpf_attr attr = program_attr(BPF_PROG_TYPE_KPROBE, body, sizeof body / sizeof *body);
    attr.log_buf = attr.log_size = attr.log_level = 0;
    return bpf(BPF_PROG_LOAD, &attr);
}

static int btf(unsigned size)
{
    struct { uint16_t magic; uint8_t version, flags; uint32_t header, types, types_len, strings, strings_len; } head =
        {0xeb9f, 1, 0, 24, 0, 0, 0, size - 24};
    char *data = calloc(1, size);
    union bpf_attr attr;
    memcpy(data, &head, sizeof head);
    memset(data + sizeof head + 1, 'x', size - sizeof head - 2);
    memset(&attr, 0, sizeof attr);
    attr.btf = (uintptr_t)data;
    attr.btf_size = size;
    int fd = bpf(BPF_BTF_LOAD, &attr);
    free(data);
    return fd;
}

static int ring(unsigned pages)
{
    struct perf_event_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.size = sizeof attr;
    attr.type = PERF_TYPE_SOFTWARE;
    attr.config = PERF_COUNT_SW_BPF_OUTPUT;
    attr.sample_type = PERF_SAMPLE_RAW;
    attr.wakeup_events = 1;
    int fd = (int)syscall(SYS_perf_event_open, &attr, -1, 0, -1, PERF_FLAG_FD_CLOEXEC);
    if (fd < 0)
        return -errno;
    size_t size = (size_t)(pages + 1) * 4096;
    void *at = mmap(0, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int error = errno;
    if (at == MAP_FAILED) {
        close(fd);
        return -error;
    }
    munmap(at, size);
    return fd;
}

static void close_all(void)
{
    while (count)
        close(fds[--count]);
}

static const char *hoard(const char *line)
{
    static char answer[100];
    unsigned a = 0, b = 0, c = 0, d = 0, e = 0, most = 0, made = 0;
    int fd = 0;
    sscanf(line, "maps %u %u %u %u %u %u", &a, &b, &c, &d, &e, &most);
    for (; made < most && (fd = create_map(a, b, c, d, e, 0)) >= 0; made++)
        keep(fd);
    if (sscanf(line, "filled %u %u %u", &a, &b, &most) == 3)
        for (; made < most && (fd = filled(a, b)) >= 0; made++)
            keep(fd);
    if (sscanf(line, "churn %u %u %u", &a, &b, &most) == 3)
        for (; made < most && (fd = filled(a, b)) >= 0; made++)
            close(fd);
    if (sscanf(line, "programs %u %u", &a, &most) == 2)
        for (; made < most && (fd = program(a)) >= 0; made++)
            keep(fd);
    if (sscanf(line, "calls %u", &most) == 1)
        for (; made < most && (fd = calls()) >= 0; made++)
            keep(fd);
    if (sscanf(line, "btf %u %u", &a, &most) == 2)
        for (; made < most && (fd = btf(a)) >= 0; made++)
            keep(fd);
    if (sscanf(line, "rings %u %u", &a, &most) == 2)
        for (; made < most && (fd = ring(a)) >= 0; made++)
            keep(fd);
    if (!strncmp(line, "close", 5))
        close_all();
    snprintf(answer, sizeof answer, "%u %s", made, fd < 0 ? strerror(-fd) : "good");
    return answer;
}

int main(void)
{
    char line[256];
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max < MOST_FDS ? limit.rlim_max : MOST_FDS;
    setrlimit(RLIMIT_NOFILE, &limit);
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    pid_t child = 0;
    while (fgets(line, sizeof line, stdin)) {
        if (!strncmp(line, "child ", 6)) {
            child = fork();
            if (!child) {
                puts(hoard(line + 6));
                for (;;)
                    pause();
            }
        } else {
            if (!strncmp(line, "end", 3)) {
                kill(child, SIGKILL);
                waitpid(child, NULL, 0);
            }
            puts(hoard(line));
        }
    }
    return 7;
}
