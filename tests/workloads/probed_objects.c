/* A tool that changes maps of objects while programs use them in other processes, and prints what comes of it: the same
 * on every engine.
 *
 *   probed_objects WORKLOAD OFFSET
 *
 * WORKLOAD says "ready", works a round for each line and answers each; the function at OFFSET in its file is called CALLS
 * times in a round, with first arguments 0 to CALLS - 1. */
#define _GNU_SOURCE
#include "raw.h"
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

enum { CALLS = 1000, KPROBE = BPF_PROG_TYPE_KPROBE, DI = 112 /* in struct pt_regs */ };

static const char *workload;
static uint64_t offset;

struct target {
    pid_t pid;
    FILE *in, *out;
};

static void answer(struct target *target)
{
    char line[64];
    if (!fgets(line, sizeof line, target->out))
        die("the target's answer", -EPIPE);
}

static struct target start(void)
{
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) || pipe2(out, O_CLOEXEC))
        die("pipe", -errno);
    struct target target = {fork(), fdopen(in[1], "w"), fdopen(out[0], "r")};
    if (target.pid == 0) {
        dup2(in[0], 0), dup2(out[1], 1);
        execl(workload, workload, (char *)0);
        _exit(127);
    }
    close(in[0]), close(out[1]);
    answer(&target);
    return target;
}

static void begin(struct target *target) { fputs("go\n", target->in), fflush(target->in); }
static void work(struct target *target) { begin(target), answer(target); }
static int attach(int program, struct target *target) { return attach_uprobe(program, workload, offset, target->pid); }

static void end(struct target *target)
{
    int status;
    fclose(target->in), fclose(target->out);
    waitpid(target->pid, &status, 0);
    printf("exit code %d\n", WEXITSTATUS(status));
}

static long take_at(int map, uint32_t key)
{
    uint64_t value = 0, zero = 0;
    good("look-up", lookup(map, &key, &value));
    good("update", update(map, &key, &zero, BPF_ANY));
    return (long)value;
}

static long take_in_hash(int map)
{
    uint32_t key = 0;
    uint64_t value = 0;
    lookup(map, &key, &value);
    element(BPF_MAP_DELETE_ELEM, map, &key, 0, 0);
    return (long)value;
}

/* outer[key] -> inner; inner[0] += 1 there; otherwise missed[0] += 1. Inner maps may be hashes. */
static int load_inner_counter(int outer, int missed)
{
    const struct bpf_insn body[] = {
        ST(BPF_DW, 10, -8, 0), ST(BPF_DW, 10, -24, 1), MOVR(2, 10), ADD(2, -8), LD_MAP(1, outer),
        CALL(BPF_FUNC_map_lookup_elem), JEQ(0, 0, 20), MOVR(6, 0), ST(BPF_W, 10, -12, 0),
        MOVR(1, 6), MOVR(2, 10), ADD(2, -12), CALL(BPF_FUNC_map_lookup_elem), JNE(0, 0, 9),
        MOVR(1, 6), MOVR(2, 10), ADD(2, -12), MOVR(3, 10), ADD(3, -24), MOV(4, 0),
        CALL(BPF_FUNC_map_update_elem), MOV(0, 0), EXIT,
        MOV(1, 1), ATOMIC_ADD(0, 1, 0), MOV(0, 0), EXIT,
        COUNT(missed), MOV(0, 0), EXIT,
    };
    return loaded(LOAD(KPROBE, body));
}

static void inner_maps(int is_hash)
{
    int missed = create_counter(), one = create_counter(), two = create_counter(), three = create_counter();
    uint32_t type = is_hash ? BPF_MAP_TYPE_HASH_OF_MAPS : BPF_MAP_TYPE_ARRAY_OF_MAPS;
    int outer = good("outer", create_map(type, is_hash ? 8 : 4, 4, 8, 0, one));
    uint64_t key = 0, other = 1;
    good("another element", update(outer, &other, &three, 0));
    int program = load_inner_counter(outer, missed);
    struct target early = start(), late = start();
    int link = attach(program, &early);
    work(&early);
    printf("nothing inserted: %ld missed\n", take_count(missed));
    good("insert", update(outer, &key, &one, 0));
    work(&early);
    printf("inserted: %ld, %ld missed\n", take_count(one), take_count(missed));
    int second_link = attach(program, &late);
    work(&early), work(&late);
    printf("two targets: %ld, %ld missed\n", take_count(one), take_count(missed));
    begin(&early), begin(&late);
    for (int i = 0; i < 200; i++)
        good("replace", update(outer, &key, i & 1 ? &one : &two, 0));
    answer(&early), answer(&late);
    printf("replaced while hot: %ld, %ld missed\n", take_count(one) + take_count(two), take_count(missed));
    /* A map that nobody has yet, and whose descriptor is closed at once. */
    int four = create_counter();
    uint32_t id = 0;
    good("insert", update(outer, &key, &four, 0));
    close(four);
    work(&early), work(&late);
    good("look-up", lookup(outer, &key, &id));
    four = good("by id", fd_of_id(BPF_MAP_GET_FD_BY_ID, id));
    printf("closed: %ld\n", take_count(four));
    good("delete", element(BPF_MAP_DELETE_ELEM, outer, &key, 0, 0));
    work(&early), work(&late);
    printf("deleted: %ld %ld %ld %ld, %ld missed\n", take_count(one), take_count(two), take_count(three), take_count(four),
           take_count(missed));
    close(link), close(second_link), close(program), close(outer);
    end(&early), end(&late);
}

/* Inner maps that grow, and more of them than a first table of objects holds. */
static void many_inner_maps(void)
{
    enum { MAPS = 100 };
    int maps[MAPS], missed = create_counter();
    for (int i = 0; i < MAPS; i++)
        maps[i] = good("inner", create_map(BPF_MAP_TYPE_HASH, 4, 8, 4, 0, 0));
    int outer = good("outer", create_map(BPF_MAP_TYPE_HASH_OF_MAPS, 8, 4, MAPS, 0, maps[0]));
    int program = load_inner_counter(outer, missed);
    struct target target = start();
    for (int i = 0; i < MAPS / 2; i++) {
        uint64_t key = (uint64_t)i;
        good("insert", update(outer, &key, &maps[i], 0));
    }
    int link = attach(program, &target);
    long total = 0;
    for (int i = 0; i < MAPS; i++) {
        uint64_t key = (uint64_t)i, zero = 0;
        good("insert", update(outer, &key, &maps[i], 0));
        good("insert", update(outer, &zero, &maps[i], 0));
        if (i % 10 == 0)
            work(&target);
    }
    for (int i = 0; i < MAPS; i++) {
        long count = take_in_hash(maps[i]);
        if (count)
            printf(" %d: %ld", i, count);
        total += count;
    }
    printf("\nof %d maps: %ld, %ld missed\n", MAPS, total, take_count(missed));
    for (int i = 0; i < MAPS; i++)
        close(maps[i]);
    close(link), close(program), close(outer);
    end(&target);
}

static int mappings_of_maps(pid_t pid)
{
    char path[64], line[512];
    int count = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        count += strstr(line, "beeline-") != 0 && strstr(line, "-map-") != 0;
    if (file)
        fclose(file);
    return count;
}

/* A new inner map for every round, as tools do that take what was counted and start afresh. */
static void rotation(void)
{
    enum { ROUNDS = 300, FEW = 60 };
    uint64_t key = 0, other = 1;
    int missed = create_counter(), first = create_counter();
    int outer = good("outer", create_map(BPF_MAP_TYPE_HASH_OF_MAPS, 8, 4, 2, 0, first));
    int program = load_inner_counter(outer, missed);
    struct target target = start();
    int link = attach(program, &target);
    good("first", update(outer, &key, &first, 0));
    work(&target);
    long total = 0, rounds = 0;
    for (int i = 0; i < ROUNDS; i++) {
        int inner = create_counter();
        good("insert", update(outer, &key, &inner, 0));
        good("insert", update(outer, &other, &inner, 0));
        if (i % 20 == 0) {
            work(&target), rounds++;
            total += take_count(inner);
        }
        close(inner);
    }
    /* What is out of reach is unmapped a little later. */
    for (int i = 0; i < 500 && mappings_of_maps(target.pid) > FEW; i++)
        work(&target), rounds++;
    printf("rotation: few mappings %d\n", mappings_of_maps(target.pid) <= FEW);
    uint32_t id;
    good("look-up", lookup(outer, &key, &id));
    int last = good("by id", fd_of_id(BPF_MAP_GET_FD_BY_ID, id));
    total += take_count(last);
    printf("all counted %d, first %ld, %ld missed\n", total == rounds * CALLS, take_count(first), take_count(missed));
    good("the first again", update(outer, &key, &first, 0));
    work(&target);
    printf("again: %ld, last %ld, %ld missed\n", take_count(first), take_count(last), take_count(missed));
    close(link), close(program), close(outer), close(last);
    end(&target);
}

#define TAIL_CALL(programs) MOVR(1, 6), LD_MAP(2, programs), CALL(BPF_FUNC_tail_call)

/* sum[0] += first argument; calls[0] += 1. Looks at registers and at memory as only it does. */
static int load_summing(int sum, int calls)
{
    const struct bpf_insn body[] = {
        LDX(BPF_DW, 3, 1, DI), LD_VALUE(1, sum, 0), ATOMIC_ADD(1, 3, 0), COUNT(calls), MOV(0, 0), EXIT,
    };
    return loaded(LOAD(KPROBE, body));
}

static void tail_calls(void)
{
    int own = create_counter(), fell = create_counter(), sum = create_counter(), first = create_counter(),
        second = create_counter();
    int array = good("program array", create_map(BPF_MAP_TYPE_PROG_ARRAY, 4, 4, 4, 0, 0));
    /* Which of two, by the lowest bit of the argument. */
    const struct bpf_insn caller[] = {
        MOVR(6, 1), COUNT(own), LDX(BPF_DW, 3, 6, DI), AND(3, 1), TAIL_CALL(array), COUNT(fell), MOV(0, 0), EXIT,
    };
    int program = loaded(LOAD(KPROBE, caller));
    int summing = load_summing(sum, first), other = load_summing(sum, second);
    struct target early = start(), late = start();
    int link = attach(program, &early);
    work(&early);
    printf("no programs: %ld, %ld fell through\n", take_count(own), take_count(fell));
    good("first", update_at(array, 0, (uint32_t)summing));
    work(&early);
    printf("one: %ld, %ld fell, sum %ld of %ld\n", take_count(own), take_count(fell), take_count(sum), take_count(first));
    good("second", update_at(array, 1, (uint32_t)other));
    int second_link = attach(program, &late);
    work(&early), work(&late);
    printf("two: %ld, %ld fell, sum %ld of %ld and %ld\n", take_count(own), take_count(fell), take_count(sum),
           take_count(first), take_count(second));
    begin(&early), begin(&late);
    for (int i = 0; i < 200; i++)
        good("replace", update_at(array, i / 2 & 1, (uint32_t)(i & 1 ? summing : other)));
    answer(&early), answer(&late);
    printf("replaced while hot: %ld, %ld fell, sum %ld of %ld\n", take_count(own), take_count(fell), take_count(sum),
           take_count(first) + take_count(second));
    /* In a circle, with a map that the targets have not seen. */
    int rounds = create_counter();
    const struct bpf_insn circle[] = {
        MOVR(6, 1), COUNT(rounds), MOV(3, 2), TAIL_CALL(array), COUNT(fell), MOV(0, 0), EXIT,
    };
    int circling = loaded(LOAD(KPROBE, circle));
    good("circle", update_at(array, 2, (uint32_t)circling));
    good("into the circle", update_at(array, 0, (uint32_t)circling));
    good("into the circle", update_at(array, 1, (uint32_t)circling));
    close(circling);
    work(&early), work(&late);
    printf("circle: %ld, %ld rounds, %ld fell\n", take_count(own), take_count(rounds), take_count(fell));
    for (uint32_t i = 0; i < 3; i++)
        good("delete", delete_at(array, i));
    work(&early), work(&late);
    printf("deleted: %ld, %ld rounds, %ld fell\n", take_count(own), take_count(rounds), take_count(fell));
    close(link), close(second_link), close(program), close(array);
    end(&early), end(&late);
}

/* A program that is tail-called and has a map of maps of its own. */
static void behind_each_other(void)
{
    int missed = create_counter(), inner = create_counter(), late_inner = create_counter();
    int outer = good("outer", create_map(BPF_MAP_TYPE_ARRAY_OF_MAPS, 4, 4, 2, 0, inner));
    int array = good("program array", create_map(BPF_MAP_TYPE_PROG_ARRAY, 4, 4, 1, 0, 0));
    uint64_t key = 0;
    const struct bpf_insn caller[] = {MOVR(6, 1), MOV(3, 0), TAIL_CALL(array), MOV(0, 0), EXIT};
    int program = loaded(LOAD(KPROBE, caller)), counting = load_inner_counter(outer, missed);
    good("inner", update(outer, &key, &inner, 0));
    struct target target = start();
    int link = attach(program, &target);
    good("program", update_at(array, 0, (uint32_t)counting));
    work(&target);
    printf("behind: %ld, %ld missed\n", take_count(inner), take_count(missed));
    good("inner", update(outer, &key, &late_inner, 0));
    work(&target);
    printf("behind, later: %ld %ld, %ld missed\n", take_count(inner), take_count(late_inner), take_count(missed));
    close(link), close(program), close(counting), close(outer), close(array);
    end(&target);
}

/* Only the program that is tail-called looks at its task: one that comes before the link, and one after it. */
static void tasks_behind(void)
{
    int early_seen = create_counter(), late_seen = create_counter();
    int array = good("program array", create_map(BPF_MAP_TYPE_PROG_ARRAY, 4, 4, 1, 0, 0));
    const struct bpf_insn caller[] = {MOVR(6, 1), MOV(3, 0), TAIL_CALL(array), MOV(0, 0), EXIT};
    const struct bpf_insn early[] = {CALL(BPF_FUNC_get_current_task), JEQ(0, 0, 4), COUNT(early_seen), MOV(0, 0), EXIT};
    const struct bpf_insn late[] = {CALL(BPF_FUNC_get_current_task), JEQ(0, 0, 4), COUNT(late_seen), MOV(0, 0), EXIT};
    int program = loaded(LOAD(KPROBE, caller));
    struct target first = start(), second = start();
    int link = attach(program, &first);
    good("program", update_at(array, 0, (uint32_t)loaded(LOAD(KPROBE, late))));
    work(&first);
    printf("tasks, later: %ld\n", take_count(late_seen));
    good("program", update_at(array, 0, (uint32_t)loaded(LOAD(KPROBE, early))));
    int second_link = attach(program, &second);
    work(&second);
    printf("tasks, before: %ld\n", take_count(early_seen));
    close(link), close(second_link), close(program), close(array);
    end(&first), end(&second);
}

/* Cgroups: a directory with one below. */
static char parent[128], child[160];

static int open_directory(const char *path) { return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC); }

static void move_to(const char *cgroup, pid_t pid)
{
    char path[200];
    snprintf(path, sizeof path, "%s/cgroup.procs", cgroup);
    FILE *file = fopen(path, "w");
    if (!file || fprintf(file, "%d\n", pid) < 0 || fclose(file) != 0)
        die(path, -errno);
}

static uint64_t inode(const char *path)
{
    struct stat facts;
    return stat(path, &facts) == 0 ? facts.st_ino : 0;
}

/* results[0..6] = under cgroup 0, 1, 2 (empty), 3 (out of range); own id; ancestors 1 and 2 and 9. */
static int load_asking(int groups, int results)
{
    struct bpf_insn body[200];
    size_t length = 0;
    static const struct { int helper, argument; } calls[] = {
        {BPF_FUNC_current_task_under_cgroup, 0},   {BPF_FUNC_current_task_under_cgroup, 1},
        {BPF_FUNC_current_task_under_cgroup, 2},   {BPF_FUNC_current_task_under_cgroup, 3},
        {BPF_FUNC_get_current_cgroup_id, 0},       {BPF_FUNC_get_current_ancestor_cgroup_id, 0},
        {BPF_FUNC_get_current_ancestor_cgroup_id, 1}, {BPF_FUNC_get_current_ancestor_cgroup_id, 2},
        {BPF_FUNC_get_current_ancestor_cgroup_id, 9}, {BPF_FUNC_get_current_ancestor_cgroup_id, -1},
    };
    for (uint32_t i = 0; i < LENGTH(calls); i++) {
        const struct bpf_insn under[] = {LD_MAP(1, groups), MOV(2, calls[i].argument), CALL(calls[i].helper)};
        const struct bpf_insn id[] = {MOV(1, calls[i].argument), CALL(calls[i].helper)};
        const struct bpf_insn store[] = {
            MOVR(6, 0), ST(BPF_W, 10, -4, i), LD_MAP(1, results), MOVR(2, 10), ADD(2, -4), CALL(BPF_FUNC_map_lookup_elem),
            JEQ(0, 0, 1), STX(BPF_DW, 0, 6, 0),
        };
        int is_id = calls[i].helper != BPF_FUNC_current_task_under_cgroup;
        memcpy(body + length, is_id ? id : under, is_id ? sizeof id : sizeof under);
        length += is_id ? LENGTH(id) : LENGTH(under);
        memcpy(body + length, store, sizeof store);
        length += LENGTH(store);
    }
    body[length++] = MOV(0, 0);
    body[length++] = EXIT;
    return loaded(load_program(KPROBE, 0, body, length));
}

static const char *named(uint64_t id)
{
    static char other[24];
    if (id == inode(parent))
        return "parent";
    if (id == inode(child))
        return "child";
    snprintf(other, sizeof other, "%ld", (long)id);
    return other;
}

/* Works until the programs see the target in `cgroup`, then says what they see. */
static void report(const char *where, struct target *target, int results, const char *cgroup)
{
    for (int i = 0; i < 500; i++) {
        uint32_t own = 4;
        uint64_t seen = 0;
        work(target);
        good("look-up", lookup(results, &own, &seen));
        if (seen == inode(cgroup))
            break;
    }
    printf("%s:", where);
    for (uint32_t i = 0; i < 10; i++)
        printf(" %s", named((uint64_t)take_at(results, i)));
    puts("");
}

static void cgroups(const char *mount)
{
    snprintf(parent, sizeof parent, "%s/beeline-test-%d", mount, getpid());
    snprintf(child, sizeof child, "%s/inner", parent);
    if (mkdir(parent, 0755) || mkdir(child, 0755)) {
        puts("no cgroups can be made");
        return;
    }
    int groups = good("cgroup array", create_map(BPF_MAP_TYPE_CGROUP_ARRAY, 4, 4, 3, 0, 0));
    int results = good("results", create_map(BPF_MAP_TYPE_ARRAY, 4, 8, 10, 0, 0));
    int above = open_directory(parent), below = open_directory(child), elsewhere = open_directory("/tmp");
    char path[200];
    snprintf(path, sizeof path, "%s/cgroup.procs", parent);
    int file = open(path, O_RDONLY), by_path = open(child, O_PATH);
    struct target target = start();
    int program = load_asking(groups, results);
    int link = attach(program, &target);
    report("no elements", &target, results, mount);
    printf("parent %d, child %d\n", update_at(groups, 0, (uint32_t)above), update_at(groups, 1, (uint32_t)by_path));
    printf("file %d, no cgroup %d, no descriptor %d, a map %d\n", update_at(groups, 2, (uint32_t)file),
           update_at(groups, 2, (uint32_t)elsewhere), update_at(groups, 2, 999), update_at(groups, 2, (uint32_t)results));
    printf("out of range %d\n", update_at(groups, 3, (uint32_t)below));
    uint32_t zero = 0, value;
    printf("look-up %d, next key %d\n", lookup(groups, &zero, &value),
           element(BPF_MAP_GET_NEXT_KEY, groups, &zero, &value, 0));
    report("at the root", &target, results, mount);
    move_to(parent, target.pid);
    report("in the parent", &target, results, parent);
    move_to(child, target.pid);
    report("in the child", &target, results, child);
    move_to(parent, target.pid);
    report("back in the parent", &target, results, parent);
    printf("delete %d\n", delete_at(groups, 0));
    printf("delete %d\n", delete_at(groups, 0));
    report("deleted", &target, results, parent);
    close(link), close(program), close(groups);
    move_to(mount, target.pid);
    end(&target);
    rmdir(child), rmdir(parent);
}

int main(int argc, char **argv)
{
    if (argc != 3 && argc != 4) {
        fputs("usage: probed_objects WORKLOAD OFFSET [CGROUP2_MOUNT]\n", stderr);
        return 2;
    }
    workload = argv[1], offset = strtoull(argv[2], 0, 0);
    setvbuf(stdout, 0, _IOLBF, 0);
    if (argc == 4) {
        cgroups(argv[3]);
        return 0;
    }
    inner_maps(0);
    inner_maps(1);
    many_inner_maps();
    rotation();
    tail_calls();
    behind_each_other();
    tasks_behind();
    return 0;
}
