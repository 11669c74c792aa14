// C++ exceptions through probed functions. Same protocol as counts.c: "ready", "go" -> "done SUM", exit code 7.
#include <cstdio>

#define PROBED extern "C" __attribute__((noinline, noclone, used))
#define KEEP(value) __asm__ volatile("" : "+r"(value) : : "memory")

enum { EXIT_CODE = 7 };

// 50 calls, 25 of which (the odd ones) throw.
PROBED long t_throws(long n)
{
    KEEP(n);
    if (n % 2)
        throw n;
    return n;
}

static long cleaned;
struct Cleaner { ~Cleaner() { cleaned++; } };

// 50 calls around those of t_throws: an exception passes through, and cleans up on its way.
PROBED long t_passes(long n)
{
    Cleaner cleaner;
    long got = t_throws(n);
    KEEP(got);
    return got;
}

// 50 calls, each of which returns: the exceptions end here.
PROBED long t_catches(long n)
{
    try {
        return t_passes(n);
    } catch (long thrown) {
        return -thrown;
    }
}

int main()
{
    char line[16];
    setvbuf(stdout, nullptr, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        long sum = 0;
        cleaned = 0;
        for (long i = 0; i < 50; i++)
            sum += t_catches(i);
        printf("done %ld %ld\n", sum, cleaned);
    }
    return EXIT_CODE;
}
