// Stacks of code without frame pointers. Same protocol as counts.c, but that the line says by which way s_leaf is called, once, and the
// answer has its callers as the C library's backtrace() finds them: addresses, "*" for one that is not known exactly. Exit code 7.
// With an argument, that is the only line.
#include <alloca.h>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <execinfo.h>
#include <immintrin.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#define PROBED extern "C" __attribute__((noipa, used))
#define KEEP(value) __asm__ volatile("" : "+r"(value) : : "memory")

enum { EXIT_CODE = 7, MOST = 256, DEPTH = 20, VERY_DEEP = 200, STACK = 64 << 10 };

static void *callers[MOST];
static int count;

PROBED long s_leaf(long n)
{
    count = backtrace(callers, MOST);
    return n + 1;
}

// A frame of a size that only the stack pointer's copy knows.
PROBED long s_variable(long n)
{
    char *room = (char *)alloca(n * 16 + 16);
    memset(room, 1, n);
    KEEP(room);
    long got = s_leaf(n) + room[0];
    KEEP(got);
    return got;
}

// A realigned frame.
PROBED long s_aligned(long n)
{
    alignas(64) volatile char room[256];
    volatile char *variable = (char *)alloca(n + 1);
    room[0] = variable[0] = 1;
    long got = s_variable(n) + room[0] + ((uintptr_t)room & 63);
    KEEP(got);
    return got;
}

// A large frame, and all registers that a function has to save.
PROBED long s_wide(long a, long b, long c, long d, long e, long f)
{
    volatile char room[5000];
    room[a] = 1;
    long got = s_aligned(a);
    KEEP(got);
    __asm__ volatile("" : "+r"(a), "+r"(b), "+r"(c), "+r"(d), "+r"(e), "+r"(f));
    return got + a + b * c - d * e + f + room[a];
}

PROBED long s_recurses(long n, long depth)
{
    long got = depth ? s_recurses(n, depth - 1) : s_wide(n, 1, 2, 3, 4, 5);
    KEEP(got);
    return got;
}

static int by_leaf(const void *a, const void *b)
{
    long got = s_leaf(1);
    KEEP(got);
    return *(const int *)a - *(const int *)b;
}

PROBED long s_sorts(void)
{
    int pair[2] = {2, 1};
    qsort(pair, 2, sizeof pair[0], by_leaf);
    return pair[0];
}

PROBED void s_handler(int signal)
{
    volatile long got = s_wide(signal, 1, 2, 3, 4, 5);
    (void)got;
}

PROBED long s_raises(bool elsewhere)
{
    static char stack[STACK];
    stack_t own = {};
    own.ss_sp = stack;
    own.ss_size = STACK;
    sigaltstack(&own, nullptr);
    struct sigaction action = {};
    action.sa_handler = s_handler;
    action.sa_flags = elsewhere ? SA_ONSTACK : 0;
    sigaction(SIGUSR1, &action, nullptr);
    long got = raise(SIGUSR1);
    KEEP(got);
    return got;
}

static void *in_thread(void *) { return (void *)s_recurses(1, 1); }

static void thread()
{
    pthread_t thread;
    pthread_create(&thread, nullptr, in_thread, nullptr);
    pthread_join(thread, nullptr);
}

struct Calls { ~Calls() { s_wide(1, 1, 2, 3, 4, 5); } };

PROBED long s_throws(long n)
{
    if (n)
        throw n;
    return n;
}

PROBED long s_cleans(long n)
{
    Calls calls;
    long got = s_throws(n);
    KEEP(got);
    return got;
}

PROBED long s_catches(bool inside)
{
    try {
        return inside ? s_cleans(1) : s_throws(1);
    } catch (long thrown) {
        return inside ? thrown : s_wide(thrown, 1, 2, 3, 4, 5);
    }
}

static void library(const char *path)
{
    void *handle = dlopen(path, RTLD_NOW);
    auto through = handle ? (long (*)(long (*)(long), long))dlsym(handle, "s_through") : nullptr;
    if (!through)
        exit(1);
    through(s_variable, 3);
    dlclose(handle);
}

// Calls s_leaf by code of which no file says anything: push rbp; mov rbp, rsp;
// push rbx; push rbx; call rdi; pop rbx; pop rbx; pop rbp; ret.
PROBED long s_calls_made_code(void)
{
    static const unsigned char code[] = {0x55, 0x48, 0x89, 0xe5, 0x53, 0x53, 0xff, 0xd7, 0x5b, 0x5b, 0x5d, 0xc3};
    enum { BEHIND_CALL = 8 };
    char *made = (char *)mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(made, code, sizeof code);
    void *own[MOST];
    int own_count = backtrace(own, MOST);
    long got = ((long (*)(long (*)(long)))made)(s_leaf);
    KEEP(got);
    callers[1] = made + BEHIND_CALL;
    callers[2] = nullptr; // this function, at another place
    memcpy(callers + 3, own + 1, (own_count - 1) * sizeof own[0]);
    count = own_count + 2;
    munmap(made, 4096);
    return got;
}

static void perform(const char *line)
{
    if (!strcmp(line, "plain"))
        s_recurses(1, DEPTH);
    else if (!strcmp(line, "deep"))
        s_recurses(1, VERY_DEEP);
    else if (!strcmp(line, "callback"))
        s_sorts();
    else if (!strcmp(line, "handler") || !strcmp(line, "alternate"))
        s_raises(line[0] == 'a');
    else if (!strcmp(line, "thread"))
        thread();
    else if (!strcmp(line, "catch") || !strcmp(line, "cleanup"))
        s_catches(!strcmp(line, "cleanup"));
    else if (!strcmp(line, "made"))
        s_calls_made_code();
    else
        library(line);
}

static void answer()
{
    // The first is s_leaf itself.
    for (int i = 1; i < count; i++)
        printf(callers[i] ? "%lx " : "* ", (unsigned long)callers[i]);
    puts("");
    fflush(stdout);
}

int main(int argument_count, char **arguments)
{
    char line[512];
    void *warm[1];
    backtrace(warm, 1);
    if (argument_count > 1) {
        perform(arguments[1]);
        answer();
        return 0;
    }
    puts("ready");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        perform(line);
        answer();
    }
    return EXIT_CODE;
}
