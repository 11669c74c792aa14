/* Objects whose descriptors are closed, and which others keep alive: a link its program, a program its maps and its
 * types. Each is looked for by its id, and among all ids, as bpftool does. Raw instructions and plain system calls. */
#define _GNU_SOURCE
#include "raw.h"

#include "functions.h"

static void info_of(int fd, void *info, uint32_t size)
{
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    memset(info, 0, size);
    attr.info.bpf_fd = (uint32_t)fd;
    attr.info.info_len = size;
    attr.info.info = (uintptr_t)info;
    good("BPF_OBJ_GET_INFO_BY_FD", bpf(BPF_OBJ_GET_INFO_BY_FD, &attr));
}

/* Says whether an object with this id is among all of its kind, and can be opened. */
static void look_for(const char *what, int next_command, int open_command, uint32_t id)
{
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    int listed = 0;
    while (!listed && bpf(next_command, &attr) == 0) {
        listed = attr.next_id == id;
        attr.start_id = attr.next_id;
    }
    int fd = fd_of_id(open_command, id);
    printf("%s: listed %d, opened %d\n", what, listed, fd >= 0);
    if (fd >= 0)
        close(fd);
}

static void look_for_all(const char *when, uint32_t program, uint32_t map, uint32_t btf)
{
    /* What has been closed may go meanwhile. */
    usleep(300000);
    printf("%s\n", when);
    look_for("  program", BPF_PROG_GET_NEXT_ID, BPF_PROG_GET_FD_BY_ID, program);
    look_for("  map", BPF_MAP_GET_NEXT_ID, BPF_MAP_GET_FD_BY_ID, map);
    look_for("  types", BPF_BTF_GET_NEXT_ID, BPF_BTF_GET_FD_BY_ID, btf);
}

/* The link's program, by its id, is the whole program. */
static void look_at_program(uint32_t id)
{
    struct bpf_prog_info info;
    int fd = good("program by id", fd_of_id(BPF_PROG_GET_FD_BY_ID, id));
    info_of(fd, &info, sizeof info);
    printf("its instructions are there %d, maps %u, types %d, functions %u\n", info.xlated_prog_len > 0, info.nr_map_ids,
           info.btf_id != 0, info.nr_func_info);
    close(fd);
}

int main(void)
{
    struct bpf_func_info functions[2];
    struct bpf_prog_info info;
    union bpf_attr attr;
    int map = create_counter();
    uint32_t map_id = id_of(map, 0);
    const struct bpf_insn body[] = {COUNT(map), MOV(0, 0), EXIT};
    attr = program_attr(BPF_PROG_TYPE_PERF_EVENT, body, LENGTH(body));
    describe_functions(&attr, functions, 0);
    attr.func_info_cnt = 1;
    int program = loaded(bpf(BPF_PROG_LOAD, &attr));
    int types = (int)attr.prog_btf_fd;
    info_of(program, &info, sizeof info);

    struct perf_event_attr clock = {.size = sizeof clock, .type = PERF_TYPE_SOFTWARE, .config = PERF_COUNT_SW_CPU_CLOCK,
                                    .sample_period = 1000000000};
    int event = (int)syscall(SYS_perf_event_open, &clock, -1, 0, -1, PERF_FLAG_FD_CLOEXEC);
    if (event < 0)
        die("perf_event_open", -errno);
    memset(&attr, 0, sizeof attr);
    attr.link_create.prog_fd = (uint32_t)program;
    attr.link_create.target_fd = (uint32_t)event;
    attr.link_create.attach_type = BPF_PERF_EVENT;
    int link = good("BPF_LINK_CREATE", bpf(BPF_LINK_CREATE, &attr));
    close(event);
    close(map);
    close(types);
    look_for_all("a program is open", info.id, map_id, info.btf_id);
    close(program);
    look_for_all("a link is open", info.id, map_id, info.btf_id);
    look_at_program(info.id);
    close(link);
    return 0;
}
