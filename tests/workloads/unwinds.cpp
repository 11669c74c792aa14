// Everything that unwinds a stack, through functions whose returns are probed. Same protocol as counts.c, but that the line
// says what is to be done: "ready", LINE -> "done SUM ...", exit code 7.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROBED extern "C" __attribute__((noinline, noclone, used))
#define KEEP(value) __asm__ volatile("" : "+r"(value) : : "memory")

enum { EXIT_CODE = 7, CALLS = 50, DEPTH = 20, THREADS = 8, FRAMES = 64 };

static long cleaned;
struct Cleaner { ~Cleaner() { __atomic_add_fetch(&cleaned, 1, __ATOMIC_RELAXED); } };

// Throws if told to.
PROBED long u_throws(long n)
{
    KEEP(n);
    if (n % 2)
        throw n;
    return n;
}

// Its caller's frame is u_throws' own: a tail call.
PROBED __attribute__((optimize("O2"))) long u_jumps(long n) { KEEP(n); return u_throws(n); }

// DEPTH frames of itself.
PROBED long u_recurses(long n, long depth)
{
    Cleaner cleaner;
    long got = depth ? u_recurses(n, depth - 1) : u_jumps(n);
    KEEP(got);
    return got;
}

// Catches and throws again.
PROBED long u_again(long n)
{
    try {
        long got = u_recurses(n, DEPTH);
        KEEP(got);
        return got;
    } catch (long thrown) {
        throw;
    }
}

PROBED long u_catches(long n)
{
    try {
        return u_again(n);
    } catch (long thrown) {
        return -thrown;
    }
}

static long exceptions()
{
    long sum = 0;
    for (long n = 0; n < CALLS; n++)
        sum += u_catches(n);
    return sum;
}

static void *in_thread(void *) { return (void *)exceptions(); }

static long in_threads()
{
    pthread_t threads[THREADS];
    long sum = 0;
    for (auto &thread : threads)
        pthread_create(&thread, nullptr, in_thread, nullptr);
    for (auto thread : threads) {
        void *got;
        pthread_join(thread, &got);
        sum += (long)got;
    }
    return sum;
}

static void count(void *by) { __atomic_add_fetch((long *)by, 1, __ATOMIC_RELAXED); }

static volatile int waits;

// Ends its thread, or waits for somebody to end it.
PROBED long u_ends(long wait)
{
    KEEP(wait);
    if (!wait)
        pthread_exit((void *)5);
    __atomic_store_n(&waits, 1, __ATOMIC_RELEASE);
    for (;;)
        pause();
}

PROBED long u_around(long wait)
{
    Cleaner cleaner;
    long got = u_ends(wait);
    KEEP(got);
    return got;
}

static void *ends(void *wait)
{
    pthread_cleanup_push(count, &cleaned);
    u_around((long)wait);
    pthread_cleanup_pop(0);
    return nullptr;
}

static long ended(long wait)
{
    pthread_t thread;
    void *got;
    waits = 0;
    pthread_create(&thread, nullptr, ends, (void *)wait);
    if (wait) {
        while (!__atomic_load_n(&waits, __ATOMIC_ACQUIRE))
            usleep(1000);
        pthread_cancel(thread);
    }
    pthread_join(thread, &got);
    return wait ? got == PTHREAD_CANCELED : (long)got;
}

static long frames_here(void **frames) { return backtrace(frames, FRAMES); }

// A list of callers, in a place that is DEPTH frames deep.
PROBED long u_lists(long depth, void **frames)
{
    long got = depth ? u_lists(depth - 1, frames) : frames_here(frames);
    KEEP(got);
    return got;
}

static void *handler_frames[FRAMES];
static long handler_count;
static void on_signal(int) { handler_count = backtrace(handler_frames, FRAMES); }

PROBED long u_raises(long n)
{
    raise(SIGUSR1);
    KEEP(n);
    return n;
}

static unsigned long sum_of(void **frames, long count)
{
    // Where code lies differs from run to run.
    unsigned long sum = 0;
    for (long i = 0; i < count; i++) {
        Dl_info info;
        if (dladdr(frames[i], &info))
            sum = sum * 31 + ((unsigned long)frames[i] - (unsigned long)info.dli_fbase);
        else
            sum = sum * 31 + 1;
    }
    return sum;
}

static long child()
{
    pid_t pid = fork();
    if (!pid) {
        try {
            u_throws(1);
        } catch (long) {
        }
        throw 3;
    }
    int status;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// Forks; the child throws through the call that it was forked in.
PROBED long u_forks(long n)
{
    long got = child();
    KEEP(got);
    return got + n;
}

int main()
{
    char line[4096];
    setvbuf(stdout, nullptr, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        cleaned = 0;
        long sum = 0;
        unsigned long frames = 0;
        if (!strcmp(line, "throw")) {
            sum = exceptions();
        } else if (!strcmp(line, "threads")) {
            sum = in_threads();
        } else if (!strcmp(line, "exit")) {
            sum = ended(0);
        } else if (!strcmp(line, "cancel")) {
            sum = ended(1);
        } else if (!strcmp(line, "list")) {
            void *list[FRAMES];
            sum = u_lists(DEPTH, list);
            frames = sum_of(list, sum);
        } else if (!strcmp(line, "handler")) {
            static char stack[1 << 16];
            stack_t alternate = {};
            alternate.ss_sp = stack;
            alternate.ss_size = sizeof stack;
            sigaltstack(&alternate, nullptr);
            struct sigaction action = {};
            action.sa_handler = on_signal;
            action.sa_flags = SA_ONSTACK;
            sigaction(SIGUSR1, &action, nullptr);
            u_raises(1);
            sum = handler_count;
            frames = sum_of(handler_frames, handler_count);
        } else if (!strcmp(line, "fork")) {
            pid_t self = getpid();
            try {
                sum = u_forks(1);
            } catch (int thrown) {
                _exit(getpid() == self ? 99 : thrown);
            }
        }
        printf("done %ld %ld %lx\n", sum, cleaned, frames);
    }
    return EXIT_CODE;
}
