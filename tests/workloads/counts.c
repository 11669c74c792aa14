/* A program whose every call is counted: the scripts' usual target.
 *
 * It says "ready", then runs one round for each line "go" on its input and answers "done CHECKSUM".
 * At end of file it exits with code 7. With the argument "now" it runs one round and exits.
 * Every function that a script may probe begins with wl_; the comment gives its calls in one round. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define PROBED __attribute__((noinline, noclone, used))
#define KEEP(value) __asm__ volatile("" : "+r"(value) : : "memory")

enum { EXIT_CODE = 7, THREADS = 4, PER_THREAD = 250 };

/* 1,000 calls: (0, 0), (1, 2), (2, 4) ... */
PROBED long wl_add(long a, long b) { KEEP(a); return a + b; }

/* 10 calls: (i, 2i, 3i, 4i, 5i, 6i, 7i, 8i) for i of 1 to 10; the last two are on the stack. */
PROBED long wl_eight(long a, long b, long c, long d, long e, long f, long g, long h)
{
    KEEP(a);
    return a + b + c + d + e + f + g + h;
}

/* 60 calls: 10 "alpha", 20 "beta", 30 "gamma". */
PROBED long wl_name(const char *name) { KEEP(name); return name[0]; }

/* 5 calls: 8 bytes, "\0\1\2...\7" with the first byte i. */
PROBED long wl_bytes(const unsigned char *bytes, long length) { KEEP(bytes); return bytes[length - 1]; }

/* 100 calls: returns 0, 1, 4, 9 ... 9801. */
PROBED long wl_square(long n) { KEEP(n); return n * n; }

/* 55 calls: depths 1 to 10. */
PROBED long wl_depth(long n)
{
    KEEP(n);
    long rest = n > 1 ? wl_depth(n - 1) : 0;
    KEEP(rest);
    return rest + 1;
}

/* 1, 2 and 3 calls. */
PROBED long wl_wild_one(long n) { KEEP(n); return n + 1; }
PROBED long wl_wild_two(long n) { KEEP(n); return n + 2; }
PROBED long wl_wild_three(long n) { KEEP(n); return n + 3; }

/* 20 calls of a millisecond or more. */
PROBED long wl_pause(long n)
{
    struct timespec millisecond = {0, 1000000};
    nanosleep(&millisecond, 0);
    KEEP(n);
    return n;
}

/* 12 calls of each: wl_outer calls wl_middle calls wl_inner. */
PROBED long wl_inner(long n) { KEEP(n); return n + 1; }
PROBED long wl_middle(long n) { long r = wl_inner(n); KEEP(r); return r + 1; }
PROBED long wl_outer(long n) { long r = wl_middle(n); KEEP(r); return r + 1; }

/* 250 calls in each of 4 threads named worker-0 to worker-3. */
PROBED long wl_threaded(long n) { KEEP(n); return n ^ 1; }

/* 8 calls; the instructions at +4 and +7 are known: rax is n at +7. Debian's bpftrace takes an address inside
 * a function only where no symbol reaches, so the symbol is said to be four bytes long. */
long wl_offset(long n);
__asm__(".globl wl_offset\n.type wl_offset, @function\n.p2align 4\nwl_offset:\n"
        "  endbr64\n"           /* +0 */
        "  mov %rdi, %rax\n"    /* +4 */
        "  lea 1(%rax), %rax\n" /* +7 */
        "  add $2, %rax\n"      /* +11 */
        "  ret\n"
        ".size wl_offset, 4\n");

#ifdef NO_ROOM
/* Reserves all memory that a jump from here reaches, and some more. */
__attribute__((constructor)) static void leave_no_room(void)
{
    enum { PIECE = 1 << 16, PAGE = 1 << 12 };
    const long reach = 0xa0000000;
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    char *here = (char *)((long)wl_add & -PIECE);
    for (long away = -reach; away < reach; away += PIECE) {
        if (mmap(here + away, PIECE, PROT_NONE, flags, -1, 0) != MAP_FAILED)
            continue;
        for (long at = 0; at < PIECE; at += PAGE)
            mmap(here + away + at, PAGE, PROT_NONE, flags, -1, 0);
    }
}
#endif

static void *worker(void *argument)
{
    long index = (long)argument, sum = 0;
    char name[16];
    snprintf(name, sizeof name, "worker-%ld", index);
    pthread_setname_np(pthread_self(), name);
    for (long i = 0; i < PER_THREAD; i++)
        sum += wl_threaded(i + index);
    return (void *)sum;
}

static long run_threads(void)
{
    pthread_t threads[THREADS];
    long sum = 0;
    for (long i = 0; i < THREADS; i++)
        pthread_create(&threads[i], 0, worker, (void *)i);
    for (long i = 0; i < THREADS; i++) {
        void *part;
        pthread_join(threads[i], &part);
        sum += (long)part;
    }
    return sum;
}

static long run_strings(void)
{
    long sum = 0;
    for (int i = 0; i < 10; i++)
        sum += wl_name("alpha");
    for (int i = 0; i < 20; i++)
        sum += wl_name("beta");
    for (int i = 0; i < 30; i++)
        sum += wl_name("gamma");
    for (unsigned char i = 0; i < 5; i++) {
        unsigned char bytes[8] = {i, 1, 2, 3, 4, 5, 6, 7};
        sum += wl_bytes(bytes, sizeof bytes);
    }
    return sum;
}

static long run_numbers(void)
{
    long sum = 0;
    for (long i = 0; i < 1000; i++)
        sum += wl_add(i, 2 * i);
    for (long i = 1; i <= 10; i++)
        sum += wl_eight(i, 2 * i, 3 * i, 4 * i, 5 * i, 6 * i, 7 * i, 8 * i);
    for (long i = 0; i < 100; i++)
        sum += wl_square(i);
    for (long i = 1; i <= 10; i++)
        sum += wl_depth(i);
    for (long i = 0; i < 8; i++)
        sum += wl_offset(i);
    return sum;
}

static long run_shapes(void)
{
    long sum = wl_wild_one(1);
    for (long i = 0; i < 2; i++)
        sum += wl_wild_two(i);
    for (long i = 0; i < 3; i++)
        sum += wl_wild_three(i);
    for (long i = 0; i < 20; i++)
        sum += wl_pause(i);
    for (long i = 0; i < 12; i++)
        sum += wl_outer(i);
    return sum;
}

/* A probe must not change errno: it is part of the checksum. */
static long round_once(void)
{
    errno = 1234;
    long sum = run_numbers() + run_strings() + run_shapes() + run_threads();
    return sum * 10000 + errno;
}

int main(int argc, char **argv)
{
    char line[16];
    setvbuf(stdout, 0, _IOLBF, 0);
    if (argc > 1 && strcmp(argv[1], "now") == 0) {
        printf("done %ld\n", round_once());
        return EXIT_CODE;
    }
    puts("ready");
    while (fgets(line, sizeof line, stdin))
        printf("done %ld\n", round_once());
    return EXIT_CODE;
}
