/* A tool of many processes: map operations by forked children, grandchildren, children that share descriptors or memory,
 * that are another user's, in a pid namespace of their own, or run another program, and children that are killed in the
 * middle of their work. Prints what is in the maps then, which is the same every time. */
#define _GNU_SOURCE
#include "fast_path.h"
#include "raw.h"
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

enum { CHILDREN = 100, EACH = 100, OFTEN = 200 };

/* What children report to the first process. */
static struct {
    volatile long results[CHILDREN];
    volatile int round;
} *shared;

static int hash, array;

static void wait_for(pid_t child)
{
    int status = 0;
    pid_t ended;
    while ((ended = waitpid(child, &status, 0)) < 0 && errno == EINTR)
        ;
    if (ended != child || (status != 0 && status != SIGKILL)) {
        fprintf(stderr, "child %d: status %x\n", child, (unsigned)status);
        exit(1);
    }
}

/* Runs `work` in a forked child, and returns its result. */
static long in_child(long (*work)(int), int argument)
{
    shared->results[0] = -1000;
    pid_t child = fork();
    if (child == 0) {
        shared->results[0] = work(argument);
        _exit(0);
    }
    wait_for(child);
    return shared->results[0];
}

/* The number of keys, and the sum of their values. */
static void contents(const char *name, int map)
{
    uint32_t key = 0;
    uint64_t value = 0, sum = 0;
    long count = 0;
    int found = element(BPF_MAP_GET_NEXT_KEY, map, 0, &key, 0);
    for (; found == 0; count++) {
        value = 0;
        if (lookup(map, &key, &value) == 0)
            sum += value;
        found = element(BPF_MAP_GET_NEXT_KEY, map, &key, &key, 0);
    }
    printf("%s: %ld keys, sum %lu, then %d\n", name, count, (unsigned long)sum, found);
}

/* Writes and reads one element many times; returns the sum of the results, and of the wrong values. */
static long use(int map)
{
    uint32_t key = 5;
    long sum = 0;
    for (uint64_t turn = 1, value; turn <= OFTEN; turn++) {
        sum += update(map, &key, &turn, BPF_ANY);
        value = 0;
        sum += lookup(map, &key, &value) + (value != turn);
    }
    return sum;
}

/* All elements of this child, new ones, then changed, every second one deleted. */
static long own_part(int child)
{
    long sum = 0;
    for (uint32_t i = 0; i < EACH; i++) {
        uint32_t key = (uint32_t)child * EACH + i;
        uint64_t value = key, other = key + 1;
        sum += update(hash, &key, &value, BPF_NOEXIST) == 0;
        sum += update(hash, &key, &value, BPF_NOEXIST) == -EEXIST;
        sum += update(hash, &key, &other, BPF_EXIST) == 0;
        sum += update(array, &key, &other, BPF_ANY) == 0;
        if (i % 2)
            sum += element(BPF_MAP_DELETE_ELEM, hash, &key, 0, 0) == 0;
    }
    return sum;
}

static void many(void)
{
    pid_t children[CHILDREN];
    for (int child = 0; child < CHILDREN; child++)
        if ((children[child] = fork()) == 0) {
            shared->results[child] = own_part(child);
            _exit(0);
        }
    long sum = 0;
    for (int child = 0; child < CHILDREN; child++) {
        wait_for(children[child]);
        sum += shared->results[child];
    }
    printf("%d children: %ld operations\n", CHILDREN, sum);
    contents("hash", hash);
    contents("array", array);
}

/* Others go on while some are killed, and nothing is lost: no element, no room, no lock. A killed one's lock may take a
 * moment to be freed on a busy machine. */
static void churn(int map, unsigned seed, int until)
{
    long wrong = 0;
    while (shared->round < until) {
        seed = seed * 1103515245 + 12345;
        uint32_t key = seed >> 16 & 63;
        uint64_t value = key;
        int done = seed >> 24 & 1 ? update(map, &key, &value, BPF_ANY) : element(BPF_MAP_DELETE_ELEM, map, &key, 0, 0);
        wrong += done != 0 && done != -ENOENT && done != -EBUSY;
    }
    __atomic_add_fetch(&shared->results[0], wrong, __ATOMIC_SEQ_CST);
}

static void killed(void)
{
    enum { WORKERS = 6, ROUNDS = 60, ROOM = 128 };
    int map = good("map", create_map(BPF_MAP_TYPE_HASH, 4, 8, ROOM, 0, 0));
    pid_t workers[WORKERS];
    shared->round = 0;
    shared->results[0] = 0;
    for (int round = 0; round < ROUNDS + WORKERS; round++) {
        int worker = round % WORKERS;
        if (round >= WORKERS) {
            nanosleep(&(struct timespec){0, 1000000 + round * 7919 % 3000000}, 0);
            /* The last ones are to end by themselves. */
            if (worker != 0) {
                kill(workers[worker], SIGKILL);
                wait_for(workers[worker]);
            }
        }
        if (round < WORKERS || worker != 0)
            if ((workers[worker] = fork()) == 0) {
                churn(map, (unsigned)round, ROUNDS);
                _exit(0);
            }
    }
    shared->round = ROUNDS;
    for (int worker = 0; worker < WORKERS; worker++)
        wait_for(workers[worker]);
    nanosleep(&(struct timespec){0, 300000000}, 0);
    long wrong = 0, room = 0;
    for (uint32_t key = 0; key < 64; key++) {
        int done = element(BPF_MAP_DELETE_ELEM, map, &key, 0, 0);
        wrong += done != 0 && done != -ENOENT;
    }
    uint64_t value = 1;
    int full = 0;
    for (uint32_t key = 1000; full == 0; key++, room++)
        full = update(map, &key, &value, BPF_NOEXIST);
    printf("killed: %ld wrong, %ld wrong at the end, room for %ld, then %d\n", shared->results[0], wrong, room - 1, full);
    close(map);
}

static long stale(int other)
{
    int number = hash;
    long first = use(number);
    uint32_t key = 5;
    uint64_t value = 0;
    close(number);
    int closed = lookup(number, &key, &value);
    int file = open("/etc/passwd", O_RDONLY);
    if (file != number)
        dup2(file, number);
    int is_file = lookup(number, &key, &value);
    dup2(other, number);
    long second = use(number);
    uint32_t no_key = 77;
    return first + second + (closed == -EBADF ? 1 : 0) + (is_file == -EINVAL ? 2 : 0) + (lookup(number, &no_key, &value) == -ENOENT ? 4 : 0);
}

/* Shares the table of descriptors: each sees at once what the other does to it. */
static int shares(void *others)
{
    int number = ((int *)others)[0], other = ((int *)others)[1];
    uint32_t key = 6;
    uint64_t value = 60;
    long sum = use(number);
    dup2(other, number);
    sum += use(number) + update(number, &key, &value, BPF_ANY);
    shared->results[1] = sum;
    return 0;
}

static void tables(int other)
{
    static char stack[1 << 16] __attribute__((aligned(16)));
    int number = dup(hash), others[] = {number, other};
    uint32_t key = 6;
    uint64_t value = 0;
    pid_t child = clone(shares, stack + sizeof stack, CLONE_FILES | SIGCHLD, others);
    wait_for(child);
    int found = lookup(number, &key, &value);
    printf("a shared table: %ld, then %d, %lu\n", shared->results[1], found, (unsigned long)value);
    shared->results[1] = -1;
    others[0] = dup(hash);
    child = clone(shares, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, others);
    wait_for(child);
    printf("shared memory: %ld, then %ld\n", shared->results[1], use(others[0]));
}

static long nested(int depth)
{
    long sum = use(hash);
    return depth == 0 ? sum : sum + in_child(nested, depth - 1) + use(array);
}

static long as_nobody(int map)
{
    if (setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0)
        return -1;
    return use(map);
}

static long uses(int map) { return use(map); }

/* The child is process 1 to itself, where that is allowed, and its memory is new to it. */
static long in_namespace(int map)
{
    if (unshare(CLONE_NEWPID) != 0 && errno != EPERM)
        return -1;
    return in_child(uses, map);
}

static void *thread(void *map)
{
    uint32_t key = (uint32_t)(uintptr_t)pthread_self();
    uint64_t value = 1;
    long sum = 0;
    for (int turn = 0; turn < OFTEN; turn++)
        sum += update(*(int *)map, &key, &value, BPF_ANY) + lookup(*(int *)map, &key, &value);
    return (void *)(sum + element(BPF_MAP_DELETE_ELEM, *(int *)map, &key, 0, 0));
}

static long with_threads(int map)
{
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    long sum = use(map);
    for (int n = 0; n < THREADS; n++)
        pthread_create(&threads[n], 0, thread, &map);
    for (int n = 0; n < THREADS; n++) {
        void *result;
        pthread_join(threads[n], &result);
        sum += (long)result;
    }
    return sum;
}

/* Memory that the parent has and the child has not, at places that both have used. */
static uint64_t *gone;

static long without_memory(int map)
{
    uint32_t key = 5;
    long sum = use(map);
    return sum + (lookup(map, &key, gone) == -EFAULT) + 2 * (lookup(map, gone, &key) == -EFAULT);
}

/* More maps than are remembered at a time, one after the other. */
static long one_by_one(int count)
{
    long sum = 0;
    for (int n = 0; n < count; n++) {
        int map = good("one of many", create_map(n % 2 ? BPF_MAP_TYPE_ARRAY : BPF_MAP_TYPE_HASH, 4, 8, 10, 0, 0));
        for (int turn = 0; turn < 3; turn++) {
            uint32_t key = (uint32_t)turn;
            uint64_t value = (uint64_t)n, found = 0;
            sum += update(map, &key, &value, BPF_ANY) + lookup(map, &key, &found) + (found != value);
        }
        close(map);
    }
    return sum;
}

/* By another program, with the descriptors that it inherits. */
static long runs(int map)
{
    char number[12], result[24];
    int ends[2];
    if (pipe(ends) != 0)
        return -1;
    snprintf(number, sizeof number, "%d", dup(map));
    pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], 1);
        execl("/proc/self/exe", "processes", number, (char *)0);
        _exit(127);
    }
    wait_for(child);
    ssize_t length = read(ends[0], result, sizeof result - 1);
    result[length < 0 ? 0 : length] = 0;
    return length > 0 ? atol(result) : -2;
}

static volatile pid_t stopped;

static void resume(int signal)
{
    (void)signal;
    shared->round = -1;
    if (stopped != 0)
        kill(stopped, SIGCONT);
}

/* While Beeline, of this number, is stopped: it has no part in this. The parent lets it go on if it has. */
static long alone(int beeline)
{
    long sum = use(hash);
    if (beeline == 0)
        return sum + use(array);
    kill(beeline, SIGSTOP);
    sum += use(hash);
    sum += use(array);
    kill(beeline, SIGCONT);
    return sum;
}

static int beeline(void)
{
    char comm[16] = "", path[64];
    snprintf(path, sizeof path, "/proc/%d/comm", getppid());
    FILE *file = fopen(path, "r");
    int is_it = file && fgets(comm, sizeof comm, file) && strcmp(comm, "beeline\n") == 0;
    if (file)
        fclose(file);
    return is_it ? getppid() : 0;
}

int main(int count, char **arguments)
{
    if (count > 1) {
        printf("%ld", use(atoi(arguments[1])));
        return 0;
    }
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    hash = good("hash", create_map(BPF_MAP_TYPE_HASH, 4, 8, CHILDREN * EACH, 0, 0));
    array = good("array", create_map(BPF_MAP_TYPE_ARRAY, 4, 8, CHILDREN * EACH, 0, 0));
    int other = good("other", create_map(BPF_MAP_TYPE_HASH, 4, 8, 10, 0, 0));
    printf("one process: %ld\n", use(array));
    uint32_t key = 5;
    signal(SIGALRM, resume);
    stopped = beeline();
    alarm(5);
    printf("alone: %ld", in_child(alone, stopped));
    alarm(0);
    printf("%s\n", shared->round < 0 ? ", but not without Beeline" : "");
    element(BPF_MAP_DELETE_ELEM, hash, &key, 0, 0);
    many();
    killed();
    printf("stale descriptors: %ld\n", in_child(stale, other));
    printf("the parent's: %ld\n", use(hash) + use(other));
    tables(other);
    printf("nested: %ld\n", in_child(nested, 3));
    printf("another user's: %ld, in a namespace: %ld\n", in_child(as_nobody, hash), in_child(in_namespace, hash));
    printf("threads: %ld\n", in_child(with_threads, hash));
    gone = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    madvise(gone, 4096, MADV_DONTFORK);
    *gone = 5;
    printf("memory: %d, %d, then %ld\n", lookup(hash, &key, gone), lookup(hash, gone, &key), in_child(without_memory, hash));
    printf("one by one: %ld, in a child: %ld\n", one_by_one(200), in_child(one_by_one, 200));
    printf("another program: %ld\n", runs(hash));
    contents("hash", hash);
    contents("other", other);
    say_fast_path();
    return 0;
}
