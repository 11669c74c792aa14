/* Counts as counts.c does, or, with the argument "attack", harms what Beeline has mapped into it. Each line on its input is an
 * attack and a text, and the attack is made on all of Beeline's memory files with that text in their names. It answers with the
 * number of mappings that it was made on, and of those where it worked. Then, and for a line "go", it works as counts.c does. */
#define main counts_main
#include "counts.c"
#undef main
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

enum { MOST = 256, PAGE = 4096 };

struct mapping {
    char *start, *end;
    int is_writable;
};
static struct mapping mappings[MOST];

/* Finds the memory files with the text in their names; all if it is "". */
static int find(const char *text)
{
    char line[512];
    int count = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && count < MOST && fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        char permissions[8];
        char *name = strstr(line, "/memfd:beeline-");
        if (!name || !strstr(name, text) || sscanf(line, "%lx-%lx %7s", &start, &end, permissions) != 3)
            continue;
        mappings[count++] = (struct mapping){(char *)start, (char *)end, permissions[1] == 'w'};
    }
    if (maps)
        fclose(maps);
    return count;
}

static size_t length(const struct mapping *m) { return (size_t)(m->end - m->start); }

/* Each attack returns whether it has worked. */

static int protect(struct mapping *m)
{
    return !mprotect(m->start, length(m), PROT_READ | PROT_WRITE | PROT_EXEC);
}

/* As a debugger does, which may write to what the process may not. */
static int poke(struct mapping *m)
{
    int memory = open("/proc/self/mem", O_RDWR);
    ssize_t done = pwrite(memory, m->start, 8, (off_t)m->start);
    close(memory);
    return done > 0;
}

/* The same, by another process of the user. */
static int poke_sibling(struct mapping *m)
{
    pid_t parent = getpid(), child = fork();
    if (!child) {
        char path[64];
        snprintf(path, sizeof path, "/proc/%d/mem", parent);
        int memory = open(path, O_RDWR);
        _exit(pwrite(memory, m->start, 8, (off_t)m->start) > 0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) && WEXITSTATUS(status) == 1;
}

static int write_vector(struct mapping *m)
{
    static char bytes[8];
    struct iovec from = {bytes, 8}, to = {m->start, 8};
    return process_vm_writev(getpid(), &from, 1, &to, 1, 0) > 0;
}

/* A second mapping of the same file, with other rights. */
static int alias(struct mapping *m)
{
    char *again = mremap(m->start, 0, length(m), MREMAP_MAYMOVE);
    return again != MAP_FAILED && !mprotect(again, length(m), PROT_READ | PROT_WRITE);
}

/* The file behind a mapping, which only the superuser may open this way. */
static int open_behind(const struct mapping *m)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/self/map_files/%lx-%lx", (long)m->start, (long)m->end);
    return open(path, O_RDWR);
}

static int resize(struct mapping *m)
{
    int file = open_behind(m), works = file >= 0 && (!ftruncate(file, 0) || !ftruncate(file, 1L << 32));
    close(file);
    return works;
}

static int overwrite(struct mapping *m)
{
    int file = open_behind(m), works = file >= 0 && pwrite(file, "harm", 4, 0) > 0;
    close(file);
    return works;
}

static int punch(struct mapping *m) { return !madvise(m->start, length(m), MADV_REMOVE); }
static int forget(struct mapping *m) { return !madvise(m->start, length(m), MADV_DONTNEED); }
static int unmap(struct mapping *m) { return !munmap(m->start, length(m)); }
static int forbid(struct mapping *m) { return !mprotect(m->start, length(m), PROT_NONE); }

static int replace(struct mapping *m)
{
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    return mmap(m->start, length(m), PROT_READ | PROT_WRITE, flags, -1, 0) != MAP_FAILED;
}

static int move(struct mapping *m)
{
    char *to = mmap(0, length(m), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return mremap(m->start, length(m), length(m), MREMAP_MAYMOVE | MREMAP_FIXED, to) != MAP_FAILED;
}

static int zero(struct mapping *m)
{
    if (m->is_writable)
        memset(m->start, 0, length(m));
    return m->is_writable;
}

static const struct {
    const char *name;
    int (*make)(struct mapping *);
} attacks[] = {
    {"protect", protect},     {"poke", poke},       {"poke_sibling", poke_sibling}, {"write_vector", write_vector},
    {"alias", alias},         {"resize", resize},   {"overwrite", overwrite},       {"punch", punch},
    {"forget", forget},       {"unmap", unmap},     {"forbid", forbid},             {"replace", replace},
    {"move", move},           {"zero", zero},
};

static void attack(const char *name, const char *text)
{
    int count = find(text), worked = 0;
    for (size_t a = 0; a < sizeof attacks / sizeof *attacks; a++)
        if (!strcmp(attacks[a].name, name))
            for (int i = 0; i < count; i++)
                worked += attacks[a].make(&mappings[i]);
    printf("%d mappings, %d harmed\n", count, worked);
}

/* What a process that shares the attacker's descriptors has done to those that came by. */
static volatile struct {
    long seen, closed, resized, written, mapped, sealed, reopened;
} *caught;

/* The content of data is left alone: a process of the tool's user may change that anyway. */
static void harm(int file, int is_code)
{
    struct stat status;
    char path[32];
    caught->seen++;
    if (!fstat(file, &status)) {
        caught->resized += !ftruncate(file, 0);
        caught->resized += !ftruncate(file, status.st_size + PAGE);
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    int again = open(path, O_RDWR);
    if (again >= 0) {
        caught->reopened++;
        close(again);
    }
    if (is_code) {
        caught->written += pwrite(file, "harm", 4, 64) > 0;
        caught->written += !fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE);
        char *place = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (place != MAP_FAILED) {
            caught->mapped++;
            munmap(place, PAGE);
        }
    }
    caught->sealed += !fcntl(file, F_ADD_SEALS, F_SEAL_FUTURE_WRITE);
}

/* Looks for Beeline's files among the descriptors, or closes whatever comes, on and on. Beeline does not stop this process. */
static void catch_files(const char *text, int closes)
{
    for (;;) {
        if (closes) {
            caught->closed += !syscall(SYS_close_range, 3, ~0u, 0);
            continue;
        }
        for (int file = 3; file < 16; file++) {
            char path[32], name[128];
            if (fcntl(file, F_GET_SEALS) < 0) /* not a memory file; cheaper than to look at its name */
                continue;
            snprintf(path, sizeof path, "/proc/self/fd/%d", file);
            ssize_t length = readlink(path, name, sizeof name - 1);
            name[length < 0 ? 0 : length] = 0;
            if (strstr(name, "/memfd:beeline-") && strstr(name, text))
                harm(file, strcmp(text, "ring-"));
        }
    }
}

/* Starts that process. */
static pid_t begin_to_catch(const char *text, int closes)
{
    caught = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pid_t child = (pid_t)syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0);
    if (!child) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        catch_files(text, closes);
    }
    return child;
}

int main(int argc, char **argv)
{
    pid_t catcher = 0;
    if (argc < 2 || strcmp(argv[1], "attack"))
        return counts_main(argc, argv);
    if (argc > 3)
        catcher = begin_to_catch(argv[3], !strcmp(argv[2], "close"));
    setvbuf(stdout, 0, _IONBF, 0);
    puts("ready");
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        char name[32] = "", text[32] = "";
        sscanf(line, "%31s %31s", name, text);
        if (!strcmp(name, "caught"))
            printf("seen %ld closed %ld resized %ld written %ld mapped %ld sealed %ld reopened %ld\n", caught->seen,
                   caught->closed, caught->resized, caught->written, caught->mapped, caught->sealed, caught->reopened);
        else if (!strcmp(name, "go"))
            printf("%ld\n", wl_add(1, 2));
        else
            attack(name, text);
    }
    if (catcher > 0)
        kill(catcher, SIGKILL);
    return EXIT_CODE;
}
