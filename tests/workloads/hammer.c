/* Threads that run through probed functions without a pause, for attaching and detaching under them.
 *
 * Says "ready"; on "go" the threads start and it answers "running"; on "stop" they end and it answers
 * "done WRONG CALLS": WRONG results out of CALLS calls. Exit code 7 at end of file. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define PROBED __attribute__((noinline, noclone, used))
#define KEEP(value) __asm__ volatile("" : "+r"(value) : : "memory")

enum { EXIT_CODE = 7, THREADS = 4 };

static atomic_int running;
static atomic_long calls, wrong;

PROBED long hm_leaf(long a, long b) { KEEP(a); return a * 3 + b; }
PROBED long hm_outer(long a, long b) { long r = hm_leaf(a, b); KEEP(r); return r + 1; }
long hm_tight(long a); /* mov, add, ret: threads stand within the first five bytes most of the time. */
__asm__(".globl hm_tight\n.type hm_tight, @function\n.p2align 4\n"
        "hm_tight: mov %rdi, %rax\n add $9, %rax\n ret\n.size hm_tight, .-hm_tight\n");
long hm_locked(long a); /* Beside a kernel uprobe a jump over this would do harm, so a breakpoint hooks it, and what is behind it. */
long hm_count;
__asm__(".globl hm_locked\n.type hm_locked, @function\n.p2align 4\n"
        "hm_locked: lock addl $1, hm_count(%rip)\n mov %rdi, %rax\n add $9, %rax\n ret\n.size hm_locked, .-hm_locked\n");

static void *hammer(void *unused)
{
    (void)unused;
    long own = 0, bad = 0;
    while (atomic_load_explicit(&running, memory_order_relaxed))
        for (long i = 0; i < 1000; i++, own++)
            bad += hm_outer(i, own) != i * 3 + own + 1 || hm_tight(own) != own + 9 || hm_locked(own) != own + 9;
    atomic_fetch_add(&calls, own);
    atomic_fetch_add(&wrong, bad);
    return 0;
}

int main(void)
{
    char line[16];
    pthread_t threads[THREADS];
    setvbuf(stdout, 0, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        if (strcmp(line, "go\n") == 0) {
            atomic_store(&running, 1);
            for (int i = 0; i < THREADS; i++)
                pthread_create(&threads[i], 0, hammer, 0);
            puts("running");
        } else {
            atomic_store(&running, 0);
            for (int i = 0; i < THREADS; i++)
                pthread_join(threads[i], 0);
            printf("done %ld %ld\n", atomic_load(&wrong), atomic_load(&calls));
        }
    }
    return EXIT_CODE;
}
