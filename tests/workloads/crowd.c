/* What map operations of a tool of many processes cost, on the kernel or under Beeline.
 *
 *   crowd NAME
 *
 * Prints "NAME NS": nanoseconds of the whole for each operation. */
#define _GNU_SOURCE
#include "raw.h"
#include <pthread.h>
#include <sys/wait.h>
#include <time.h>

enum { CHILDREN = 100, OFTEN = 1000, MAKERS = 20, MAPS = 50, OWN = 2000, WALKED = 100000, KEYS = 1000 };

static int hash, array;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* Twice `times` operations. */
static void use(int map, uint32_t first, int times)
{
    for (int turn = 0; turn < times; turn++) {
        uint32_t key = (first + (uint32_t)turn) % KEYS;
        uint64_t value = (uint64_t)turn;
        good("update", update(map, &key, &value, BPF_ANY));
        good("look-up", lookup(map, &key, &value));
    }
}

static void use_both(int child)
{
    use(hash, (uint32_t)child * 10, OFTEN);
    use(array, (uint32_t)child * 10, OFTEN);
}

static void run_again(int child)
{
    char numbers[3][12];
    int values[] = {dup(hash), dup(array), child};
    for (int n = 0; n < 3; n++)
        snprintf(numbers[n], sizeof numbers[n], "%d", values[n]);
    execl("/proc/self/exe", "crowd", numbers[0], numbers[1], numbers[2], (char *)0);
    die("exec", -errno);
}

static long walk(int map)
{
    uint32_t key;
    long count = 0;
    int found = element(BPF_MAP_GET_NEXT_KEY, map, 0, &key, 0);
    for (; found == 0; count++)
        found = element(BPF_MAP_GET_NEXT_KEY, map, &key, &key, 0);
    return count;
}

static void fill(int map, int count)
{
    for (uint32_t key = 0; key < (uint32_t)count; key++)
        good("update", update(map, &key, &(uint64_t){key}, BPF_ANY));
}

static int new_hash(uint32_t entries) { return good("map", create_map(BPF_MAP_TYPE_HASH, 4, 8, entries, 0, 0)); }

static void own_map(int child)
{
    (void)child;
    int map = new_hash(OWN);
    fill(map, OWN);
    if (walk(map) != OWN)
        die("walk", -EIO);
}

static void short_lived_maps(int child)
{
    (void)child;
    for (int n = 0; n < MAPS; n++) {
        int map = new_hash(100);
        good("update", update_at(map, 1, 2));
        close(map);
    }
}

static void children(int count, void (*work)(int))
{
    for (int child = 0; child < count; child++)
        if (fork() == 0) {
            work(child);
            _exit(0);
        }
    int status;
    while (wait(&status) > 0)
        if (status != 0)
            die("a child", -EIO);
}

static void *thread(void *first)
{
    use_both((int)(intptr_t)first);
    return 0;
}

static void threads(int count)
{
    pthread_t all[CHILDREN];
    for (int n = 0; n < count; n++)
        pthread_create(&all[n], 0, thread, (void *)(intptr_t)n);
    for (int n = 0; n < count; n++)
        pthread_join(all[n], 0);
}

int main(int count, char **arguments)
{
    if (count == 4) {
        hash = atoi(arguments[1]), array = atoi(arguments[2]);
        use_both(atoi(arguments[3]));
        return 0;
    }
    const char *name = count == 2 ? arguments[1] : "";
    long each = CHILDREN * 4L * OFTEN;
    hash = new_hash(WALKED);
    array = good("array", create_map(BPF_MAP_TYPE_ARRAY, 4, 8, WALKED, 0, 0));
    if (strcmp(name, "forked") == 0)
        use(hash, 0, OFTEN);
    if (strcmp(name, "walk") == 0)
        fill(hash, WALKED);
    double start = now();
    if (strcmp(name, "forked") == 0 || strcmp(name, "forked-first") == 0)
        children(CHILDREN, use_both);
    else if (strcmp(name, "executed") == 0)
        children(CHILDREN, run_again);
    else if (strcmp(name, "threads") == 0)
        threads(CHILDREN);
    else if (strcmp(name, "walk") == 0)
        each = walk(hash);
    else if (strcmp(name, "own-maps") == 0)
        children(MAKERS, own_map), each = MAKERS * 2L * OWN;
    else if (strcmp(name, "short-lived") == 0)
        children(MAKERS, short_lived_maps), each = MAKERS * MAPS;
    else
        die("usage: crowd NAME", -EINVAL);
    printf("%s %.0f\n", name, (now() - start) / (double)each);
    return 0;
}
