/* Kernel uprobes without programs: the kernel's own count of what it saw.
 *
 * "on PATH OFFSET entry|ret" attaches one, by an event on each CPU for all processes, so that every thread of whoever maps the file is
 * counted; the answer is its number, or "refused" and why. "off N" takes it away ("off"), "off all" all at once, "count N" is its count; "counts" is all
 * counts in a line. All that are
 * there when the input ends go with the process, which exits with code 7. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/perf_event.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { EXIT_CODE = 7, PROBES = 4096, CPUS = 64 };

static int events[PROBES][CPUS];
static int cpus, probes;

static long number_in(const char *path, const char *format)
{
    long number = -1;
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, format, &number) != 1) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(1);
    }
    fclose(file);
    return number;
}

static void *close_it(void *event)
{
    close((int)(intptr_t)event);
    return 0;
}

/* Each close waits for all CPUs, so all are done side by side. */
static void take_away(int from, int to)
{
    static pthread_t threads[PROBES * CPUS];
    int closing = 0;
    for (int probe = from; probe < to; probe++) {
        for (int cpu = 0; cpu < cpus; cpu++) {
            if (events[probe][cpu] > 0)
                closing += !pthread_create(&threads[closing], 0, close_it, (void *)(intptr_t)events[probe][cpu]);
            events[probe][cpu] = 0;
        }
    }
    while (closing > 0)
        pthread_join(threads[--closing], 0);
}

static void attach(const char *path, uint64_t offset, int is_return)
{
    struct perf_event_attr attr = {.size = sizeof attr};
    attr.type = number_in("/sys/bus/event_source/devices/uprobe/type", "%ld");
    attr.config = (uint64_t)is_return << number_in("/sys/bus/event_source/devices/uprobe/format/retprobe", "config:%ld");
    attr.config1 = (uintptr_t)path;
    attr.config2 = offset;
    for (int cpu = 0; cpu < cpus; cpu++) {
        int event = syscall(SYS_perf_event_open, &attr, -1, cpu, -1, PERF_FLAG_FD_CLOEXEC);
        if (event < 0) {
            printf("refused %s\n", strerror(errno));
            take_away(probes, probes + 1);
            return;
        }
        events[probes][cpu] = event;
    }
    printf("%d\n", probes++);
}

static uint64_t count(int probe)
{
    uint64_t total = 0;
    for (int cpu = 0; cpu < cpus; cpu++) {
        uint64_t value = 0;
        if (events[probe][cpu] > 0 && read(events[probe][cpu], &value, sizeof value) == sizeof value)
            total += value;
    }
    return total;
}

int main(void)
{
    static char line[5000], path[4096], how[16];
    struct rlimit files = {65536, 65536};
    setrlimit(RLIMIT_NOFILE, &files);
    setvbuf(stdout, 0, _IOLBF, 0);
    cpus = sysconf(_SC_NPROCESSORS_ONLN);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        unsigned long offset;
        int probe;
        if (sscanf(line, "on %4095s %lu %15s", path, &offset, how) == 3 && probes < PROBES) {
            attach(path, offset, strcmp(how, "ret") == 0);
        } else if (sscanf(line, "off %d", &probe) == 1 && probe >= 0 && probe < probes) {
            take_away(probe, probe + 1);
            puts("off");
        } else if (strcmp(line, "off all\n") == 0) {
            take_away(0, probes);
            probes = 0;
            puts("off");
        } else if (strcmp(line, "counts\n") == 0) {
            for (probe = 0; probe < probes; probe++)
                printf("%lu ", count(probe));
            puts("");
        } else if (sscanf(line, "count %d", &probe) == 1 && probe >= 0 && probe < probes) {
            printf("%lu\n", count(probe));
        } else {
            puts("refused what is that");
        }
    }
    return EXIT_CODE;
}
