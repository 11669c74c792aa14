/* A target with USDT probes and their semaphores, written as <sys/sdt.h> does.
 *
 * Each line of input is one round: ten calls of two places of probe "counted", behind their semaphore, and of probe
 * "alone". Then it prints both semaphores and how often the first was found raised. "fork" forks a child first, which
 * does the same rounds in silence and ends with its parent; "load" loads the library that its argument names, and
 * from then on the rounds call `loaded_work` there, and the library's semaphore is printed in place of the first.
 *
 * With -DLIBRARY -shared it is that library. */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROBE(name, semaphore, nop)                                                                    \
    __asm__ volatile("990: " nop "\n"                                                                  \
                     ".pushsection .note.stapsdt,\"?\",\"note\"\n"                                     \
                     ".balign 4\n .4byte 992f-991f, 994f-993f, 3\n"                                    \
                     "991: .asciz \"stapsdt\"\n 992: .balign 4\n"                                      \
                     "993: .8byte 990b, _.stapsdt.base, " #semaphore "\n"                              \
                     ".asciz \"workload\"\n .asciz \"" name "\"\n .asciz \"-8@%0\"\n"                  \
                     "994: .balign 4\n .popsection\n"                                                  \
                     ".ifndef _.stapsdt.base\n"                                                        \
                     ".pushsection .stapsdt.base,\"aG\",\"progbits\",.stapsdt.base,comdat\n"           \
                     ".weak _.stapsdt.base\n .hidden _.stapsdt.base\n _.stapsdt.base: .space 1\n"      \
                     ".size _.stapsdt.base,1\n .popsection\n .endif\n" : : "r"(n))
#define SEMAPHORE __attribute__((section(".probes"), visibility("hidden"))) volatile unsigned short
/* Room for jumps of several sessions. */
#define PROBED __attribute__((noinline, aligned(32)))
#define NOP "nop"
#define NOP5 ".byte 0x0f, 0x1f, 0x44, 0x00, 0x00"

#ifdef LIBRARY
SEMAPHORE loaded_semaphore = 0;
PROBED void loaded_work(long n) { PROBE("loaded", loaded_semaphore, NOP); }
int loaded_count(void) { return loaded_semaphore; }
#else
SEMAPHORE counted_semaphore = 0;
SEMAPHORE alone_semaphore = 0;

PROBED static void first(long n) { PROBE("counted", counted_semaphore, NOP); }
PROBED static void second(long n) { PROBE("counted", counted_semaphore, NOP5); }
PROBED static void alone(long n) { PROBE("alone", alone_semaphore, NOP); }

static void (*loaded_work)(long);
static int (*loaded_count)(void);

static int work(void)
{
    int raised = 0;
    for (long n = 0; n < 10; n++) {
        if (counted_semaphore) {
            raised++;
            first(n);
            second(n);
        }
        alone(n);
        if (loaded_work)
            loaded_work(n);
    }
    return raised;
}

static void load(const char *path)
{
    void *library = dlopen(path, RTLD_NOW);
    if (!library)
        fprintf(stderr, "%s\n", dlerror());
    loaded_work = library ? (void (*)(long))dlsym(library, "loaded_work") : 0;
    loaded_count = library ? (int (*)(void))dlsym(library, "loaded_count") : 0;
}

int main(void)
{
    char line[4096];
    int to_child[2] = {-1, -1}, from_child[2] = {-1, -1}, answer[2] = {0, 0};
    setbuf(stdout, 0);
    setbuf(stdin, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, "load ", 5))
            load(line + 5);
        if (!strcmp(line, "fork") && !pipe(to_child) && !pipe(from_child) && !fork()) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            close(to_child[1]);
            while (read(to_child[0], line, 1) == 1) {
                int child[2] = {work(), counted_semaphore};
                if (write(from_child[1], child, sizeof child) < 0)
                    break;
            }
            _exit(0);
        }
        int raised = work();
        if (to_child[1] >= 0 && (write(to_child[1], "g", 1) < 0 || read(from_child[0], answer, sizeof answer) < 0))
            return 1;
        if (to_child[1] >= 0)
            printf("%d, child %d\n", counted_semaphore, answer[1]);
        else
            printf("%d %d, raised %d\n", loaded_count ? loaded_count() : counted_semaphore, alone_semaphore, raised);
    }
    return 7;
}
#endif
