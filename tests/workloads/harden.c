/* Everything a badly made probe breaks, checked from inside.
 *
 * Same protocol as counts.c: "ready", "go" -> "done CHECKSUM", exit code 7. Functions of every kind of
 * first instruction are called with all registers set, and all registers are looked at afterwards;
 * what differs is counted and makes the checksum negative. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define PROBED __attribute__((noinline, noclone, used))
#define KEEP(value) __asm__ volatile("" : "+r"(value) : : "memory")

enum { EXIT_CODE = 7, CALLS = 100 };

/* One function per kind of first instruction. Each leaves every register but rip and rsp as it was. */
#define FUNCTION(name, body) \
    ".globl " name "\n.type " name ", @function\n.p2align 4\n" name ":\n" body ".size " name ", .-" name "\n"
#define SHORT_SYMBOL(name, body) \
    ".globl " name "\n.type " name ", @function\n.p2align 4\n" name ":\n" body ".size " name ", 4\n"
__asm__(".text\n"
    FUNCTION("k_endbr", "endbr64\n nop\n nop\n ret\n")
    FUNCTION("k_nop5", ".byte 0x0f, 0x1f, 0x44, 0, 0\n ret\n")
    FUNCTION("k_push", "push %rbp\n mov %rsp, %rbp\n pop %rbp\n ret\n")
    FUNCTION("k_mov", "mov %rdi, %rdi\n mov %rsi, %rsi\n ret\n")
    FUNCTION("k_sub", "sub $24, %rsp\n movq $1, 8(%rsp)\n add $24, %rsp\n ret\n")
    FUNCTION("k_ripload", "push %rax\n mov k_cell(%rip), %rax\n pop %rax\n ret\n")
    FUNCTION("k_riplead", "cmpq $0, k_cell(%rip)\n nop\n ret\n")
    FUNCTION("k_jump", "jmp 1f\n nop\n nop\n nop\n1: ret\n")
    FUNCTION("k_branch", "test %rsp, %rsp\n jz 1f\n nop\n nop\n1: ret\n")
    FUNCTION("k_call", "call k_ret\n ret\n")
    FUNCTION("k_ret", "ret\n")
    FUNCTION("k_short", "xchg %rax, %rax\n ret\n nop\n nop\n nop\n nop\n")
    FUNCTION("k_loop", "1: push %rcx\n xor %ecx, %ecx\n jrcxz 2f\n jmp 1b\n2: pop %rcx\n ret\n")
    FUNCTION("k_tail", "nop\n jmp k_mov\n")
    /* For the next two see wl_offset in counts.c: their symbols end before the place to probe.
     * The red zone is in use at +40: the probe there must step over it. (No five-byte nop: there Linux 6.18
     * itself pushes a return address into the red zone.) */
    SHORT_SYMBOL("k_redzone",
        "push %rax\n movabs $0x1122334455667788, %rax\n mov %rax, -8(%rsp)\n mov %rax, -64(%rsp)\n"
        ".fill 40 - (. - k_redzone), 1, 0x90\n mov %rbx, %rbx\n nop\n nop\n"
        "cmp %rax, -8(%rsp)\n jne 1f\n cmp %rax, -64(%rsp)\n jne 1f\n pop %rax\n ret\n1: ud2\n")
    /* The flags are in use at +16: the probe there must keep them. */
    SHORT_SYMBOL("k_flags",
        "cmp %rsp, %rsp\n stc\n .fill 16 - (. - k_flags), 1, 0x90\n nop\n nop\n nop\n nop\n nop\n"
        "jnz 1f\n jnc 1f\n ret\n1: ud2\n")
    ".data\nk_cell: .quad 5\n.text\n");

typedef void kind(void);
extern kind k_endbr, k_nop5, k_push, k_mov, k_sub, k_ripload, k_riplead, k_jump, k_branch, k_call, k_ret,
    k_short, k_loop, k_tail, k_redzone, k_flags;
static kind *const kinds[] = {k_endbr, k_nop5, k_push, k_mov, k_sub, k_ripload, k_riplead, k_jump, k_branch,
    k_call, k_ret, k_short, k_loop, k_tail, k_redzone, k_flags};
enum { KINDS = sizeof kinds / sizeof kinds[0] };

struct registers {
    uint64_t general[15]; /* rax rbx rcx rdx rsi rdi rbp r8 .. r15 */
    uint64_t pad;
    uint8_t vector[16][16];
    uint32_t mxcsr;
};

/* Loads `before` into the registers, calls, stores them to `after`. */
void call_with(struct registers *before, struct registers *after, kind *function);
__asm__(FUNCTION("call_with",
    "push %rbx\n push %rbp\n push %r12\n push %r13\n push %r14\n push %r15\n push %rsi\n push %rdx\n sub $8, %rsp\n"
    "ldmxcsr 384(%rdi)\n"
    "movups 128(%rdi), %xmm0\n movups 144(%rdi), %xmm1\n movups 160(%rdi), %xmm2\n movups 176(%rdi), %xmm3\n"
    "movups 192(%rdi), %xmm4\n movups 208(%rdi), %xmm5\n movups 224(%rdi), %xmm6\n movups 240(%rdi), %xmm7\n"
    "movups 256(%rdi), %xmm8\n movups 272(%rdi), %xmm9\n movups 288(%rdi), %xmm10\n movups 304(%rdi), %xmm11\n"
    "movups 320(%rdi), %xmm12\n movups 336(%rdi), %xmm13\n movups 352(%rdi), %xmm14\n movups 368(%rdi), %xmm15\n"
    "mov (%rdi), %rax\n mov 8(%rdi), %rbx\n mov 16(%rdi), %rcx\n mov 24(%rdi), %rdx\n mov 32(%rdi), %rsi\n"
    "mov 48(%rdi), %rbp\n mov 56(%rdi), %r8\n mov 64(%rdi), %r9\n mov 72(%rdi), %r10\n mov 80(%rdi), %r11\n"
    "mov 88(%rdi), %r12\n mov 96(%rdi), %r13\n mov 104(%rdi), %r14\n mov 112(%rdi), %r15\n mov 40(%rdi), %rdi\n"
    "call *8(%rsp)\n"
    "push %rdi\n mov 24(%rsp), %rdi\n"
    "mov %rax, (%rdi)\n mov %rbx, 8(%rdi)\n mov %rcx, 16(%rdi)\n mov %rdx, 24(%rdi)\n mov %rsi, 32(%rdi)\n"
    "pop %rax\n mov %rax, 40(%rdi)\n"
    "mov %rbp, 48(%rdi)\n mov %r8, 56(%rdi)\n mov %r9, 64(%rdi)\n mov %r10, 72(%rdi)\n mov %r11, 80(%rdi)\n"
    "mov %r12, 88(%rdi)\n mov %r13, 96(%rdi)\n mov %r14, 104(%rdi)\n mov %r15, 112(%rdi)\n"
    "movups %xmm0, 128(%rdi)\n movups %xmm1, 144(%rdi)\n movups %xmm2, 160(%rdi)\n movups %xmm3, 176(%rdi)\n"
    "movups %xmm4, 192(%rdi)\n movups %xmm5, 208(%rdi)\n movups %xmm6, 224(%rdi)\n movups %xmm7, 240(%rdi)\n"
    "movups %xmm8, 256(%rdi)\n movups %xmm9, 272(%rdi)\n movups %xmm10, 288(%rdi)\n movups %xmm11, 304(%rdi)\n"
    "movups %xmm12, 320(%rdi)\n movups %xmm13, 336(%rdi)\n movups %xmm14, 352(%rdi)\n movups %xmm15, 368(%rdi)\n"
    "stmxcsr 384(%rdi)\n"
    "add $8, %rsp\n pop %rdx\n pop %rsi\n pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbp\n pop %rbx\n ret\n"));

/* 100 calls of each kind; answers how many came back with a register changed. */
static long check_registers(void)
{
    struct registers before, after;
    long wrong = 0;
    for (int i = 0; i < KINDS * CALLS; i++) {
        unsigned char *byte = (unsigned char *)&before;
        for (size_t j = 0; j < sizeof before; j++)
            byte[j] = (unsigned char)(j * 37 + (size_t)i * 11 + 1);
        before.mxcsr = 0x1f80 | (i & 1 ? 0x6000u : 0);
        after = before;
        call_with(&before, &after, kinds[i % KINDS]);
        wrong += memcmp(&before, &after, sizeof before) != 0;
    }
    uint32_t usual = 0x1f80;
    __asm__ volatile("ldmxcsr %0" : : "m"(usual));
    return wrong;
}

/* 100 calls, left by longjmp every time. */
static jmp_buf escape;
PROBED long h_escapes(long n) { KEEP(n); longjmp(escape, (int)n + 1); }
/* 200 calls, 100 of them around an escape: the return probe must find its own return addresses. */
PROBED long h_around(long n)
{
    long got = setjmp(escape);
    if (got == 0 && n >= 0)
        h_escapes(n);
    KEEP(got);
    return got;
}

/* 8 calls, none of which returns. */
PROBED void *h_exits(void *argument) { KEEP(argument); pthread_exit(argument); }

/* 50 calls, in a signal handler, each while h_interrupted runs (50 calls). */
static volatile long handled;
PROBED long h_handler(long n) { KEEP(n); return n; }
static void on_signal(int number) { handled += h_handler(number); }
PROBED long h_interrupted(long n) { raise(SIGUSR1); KEEP(n); return n; }

/* 10 calls in this process and one in each of 10 children, which exit with code 33 + n. */
PROBED long h_forks(long n) { KEEP(n); return n + 33; }

/* 500 calls: doubles in, a double out. */
PROBED double h_float(double a, double b) { __asm__ volatile("" : "+x"(a)); return a * b; }

static long check_jumps(void)
{
    long sum = 0;
    for (long i = 0; i < 100; i++)
        sum += h_around(i) + h_around(-1);
    return sum; /* 1 + 2 + .. + 100 */
}

static long check_thread_exits(void)
{
    long sum = 0;
    for (long i = 0; i < 8; i++) {
        pthread_t thread;
        void *value;
        pthread_create(&thread, 0, h_exits, (void *)(i + 1));
        pthread_join(thread, &value);
        sum += (long)value;
    }
    return sum;
}

static long check_signals(void)
{
    handled = 0;
    signal(SIGUSR1, on_signal);
    long sum = 0;
    for (long i = 0; i < 50; i++)
        sum += h_interrupted(i);
    return sum + handled;
}

static long check_forks(void)
{
    long sum = 0;
    for (long i = 0; i < 10; i++) {
        pid_t child = fork();
        if (child == 0)
            _exit((int)h_forks(i));
        int status = 0;
        waitpid(child, &status, 0);
        sum += (WIFEXITED(status) ? WEXITSTATUS(status) : 100000) + h_forks(i);
    }
    return sum;
}

static long check_floats(void)
{
    double sum = 0;
    for (int i = 0; i < 500; i++)
        sum += h_float(i, 0.5);
    return (long)sum;
}

int main(void)
{
    char line[16];
    setvbuf(stdout, 0, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        errno = 77;
        long wrong = check_registers() + (errno != 77);
        long sum = check_jumps() + check_thread_exits() + check_signals() + check_forks() + check_floats();
        printf("done %ld\n", wrong ? -wrong : sum);
    }
    return EXIT_CODE;
}
