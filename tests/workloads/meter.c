/* The benchmark's target: it measures itself. Says "ready", then answers each line of input.
 *
 *   time FUNCTION CALLS ROUNDS   "PICOSECONDS": CPU time of a call of FUNCTION, the best round
 *   spin                         "spinning": a thread begins to read the clock without a pause
 *   rest                         "LONGEST ALL": that thread ends; how long it stood still, at most and in all, in
 *                                nanoseconds
 *   stamp COUNT PAUSE            "done": calls m_stamp with the time COUNT times, PAUSE microseconds apart
 *
 * FUNCTION is a kind of first instruction, or getpid. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define FUNCTION(name, body) \
    ".globl " name "\n.type " name ", @function\n.p2align 4\n" name ":\n" body ".size " name ", .-" name "\n"
__asm__(".text\n"
    FUNCTION("m_nop5", ".byte 0x0f, 0x1f, 0x44, 0, 0\n ret\n")
    FUNCTION("m_push", "push %rbp\n mov %rsp, %rbp\n pop %rbp\n ret\n")
    FUNCTION("m_endbr64", "endbr64\n mov %rdi, %rax\n ret\n")
    FUNCTION("m_mov", "mov $1, %eax\n ret\n")
    FUNCTION("m_compare", "cmp $-1, %rdi\n jbe 1f\n1: mov %rdi, %rax\n ret\n")
    FUNCTION("m_sub", "sub $24, %rsp\n mov %rdi, %rax\n add $24, %rsp\n ret\n")
    /* A hundred functions m_many_0 to m_many_99, for attaching to many at once. */
    ".altmacro\n.macro many n\n.globl m_many_\\n\n.type m_many_\\n, @function\n.p2align 4\n"
    "m_many_\\n: endbr64\n push %rbp\n mov %rsp, %rbp\n pop %rbp\n ret\n.size m_many_\\n, .-m_many_\\n\n.endm\n"
    ".set i, 0\n.rept 100\nmany %i\n.set i, i + 1\n.endr\n");

typedef long function(long);
extern function m_nop5, m_push, m_endbr64, m_mov, m_compare, m_sub;
__attribute__((noinline, noclone, used)) long m_stamp(long nanoseconds)
{
    __asm__ volatile("" : "+r"(nanoseconds));
    return nanoseconds;
}
static long own_getpid(long unused) { return getpid() + unused * 0; }

static const struct { const char *name; function *call; } functions[] = {
    {"nop5", m_nop5}, {"push", m_push}, {"endbr64", m_endbr64}, {"mov", m_mov}, {"compare", m_compare}, {"sub", m_sub},
    {"getpid", own_getpid},
};

static long clock_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000L + now.tv_nsec;
}

static long best_round(function *call, long calls, long rounds)
{
    long best = -1;
    for (long round = 0; round < rounds; round++) {
        long begin = clock_ns(CLOCK_THREAD_CPUTIME_ID);
        for (long i = 0; i < calls; i++)
            call(i);
        long spent = clock_ns(CLOCK_THREAD_CPUTIME_ID) - begin;
        if (best < 0 || spent < best)
            best = spent;
    }
    return (long)((double)best * 1000.0 / (double)calls);
}

enum { STANDSTILL = 10000 /* ns: a shorter gap is an interrupt */ };

static atomic_int spinning;
static long longest, in_all;

static void *spin(void *unused)
{
    (void)unused;
    long last = clock_ns(CLOCK_MONOTONIC);
    longest = in_all = 0;
    while (atomic_load_explicit(&spinning, memory_order_relaxed)) {
        long now = clock_ns(CLOCK_MONOTONIC), gap = now - last;
        if (gap > longest)
            longest = gap;
        if (gap > STANDSTILL)
            in_all += gap;
        last = now;
    }
    return 0;
}

static void stamp(long count, long pause)
{
    struct timespec between = {pause / 1000000, pause % 1000000 * 1000};
    for (long i = 0; i < count; i++) {
        nanosleep(&between, 0);
        m_stamp(clock_ns(CLOCK_MONOTONIC));
    }
}

static void time_function(const char *line)
{
    char name[32];
    long calls, rounds;
    if (sscanf(line, "time %31s %ld %ld", name, &calls, &rounds) != 3) {
        puts("which function, how many calls, how many rounds?");
        return;
    }
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++)
        if (strcmp(functions[i].name, name) == 0) {
            printf("%ld\n", best_round(functions[i].call, calls, rounds));
            return;
        }
    puts("no such function");
}

int main(void)
{
    char line[128];
    long count, pause;
    pthread_t spinner = 0;
    setvbuf(stdout, 0, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        if (strncmp(line, "time", 4) == 0) {
            time_function(line);
        } else if (strncmp(line, "spin", 4) == 0) {
            atomic_store(&spinning, 1);
            pthread_create(&spinner, 0, spin, 0);
            puts("spinning");
        } else if (strncmp(line, "rest", 4) == 0) {
            atomic_store(&spinning, 0);
            pthread_join(spinner, 0);
            printf("%ld %ld\n", longest, in_all);
        } else if (sscanf(line, "stamp %ld %ld", &count, &pause) == 2) {
            stamp(count, pause);
            puts("done");
        }
    }
    return 7;
}
