/* Functions that begin with every kind of instruction, of every length from 1 to 15, called by 8 threads.
 *
 * It says "ready". "calls N": each thread calls every function N times; the answer is "right TOTAL", the calls of each function so far,
 * or "wrong" and what was. "start" (answer "running") has the threads go on until "stop", which answers as "calls" does. "turns" is
 * the calls of each function so far, of threads that run. "phase N" (answer "phase") calls b_phase(N). "list" is the names in a line.
 * "block" (answer "blocking"): a thread blocks all signals from now on. "fill" (answer "filled"): the memory is taken that a jump leads to
 * whose last byte is that of "add eax, esi". "crowd" (answer "crowded"): the memory is taken that a jump at a function leads to whose
 * last byte is an int3, and a thread blocks all signals in a call with a mask of its own. At end of file it exits with code 7.
 *
 * A result depends on all six arguments, and registers that a callee must keep hold known values. What an instruction adds to memory
 * shows that it ran exactly once. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { EXIT_CODE = 7, THREADS = 8, PAUSE_NS = 20000 };

typedef long (*function)(long, long, long, long, long, long);

/* Name, code, result. S is what SUM makes; IN is what rax holds at the entry. */
#define S (a + 2 * b + 4 * c + 8 * d + e + f)
#define IN 0x5a5a
#define FUNCTIONS(X) \
    X(push_rbp, "push rbp; mov rbp, rsp; SUM; pop rbp; ret", S) \
    X(pushes, "push rax; push rcx; push rdx; push rsi; push rdi; pop rdi; pop rsi; pop rdx; pop rcx; pop r11; SUM; add rax, r11; ret", S + IN) \
    X(nops, "nop; nop; nop; nop; nop; SUM; ret", S) \
    X(cld, "cld; SUM; ret", S) \
    X(ret, "ret", IN) \
    X(push_r15, "push r15; push r14; push r13; pop r13; pop r14; pop r15; SUM; ret", S) \
    X(pop_r11, "pop r11; push r11; SUM; ret", S) \
    X(push_byte, "push 17; pop r11; SUM; add rax, r11; ret", S + 17) \
    X(mov_eax_edi, "mov eax, edi; add rax, rsi; ret", (uint32_t)a + b) \
    X(mov_edi_esi, "mov edi, esi; SUM; ret", (uint32_t)b + 2 * b + 4 * c + 8 * d + e + f) \
    X(test_edi, "test edi, edi; mov r11d, 1; mov eax, 2; cmove r11d, eax; SUM; add rax, r11; ret", S + ((int)a == 0 ? 2 : 1)) \
    X(lea_add, "lea eax, [rdi + 1]; add eax, esi; add rax, rdx; ret", (uint32_t)(a + 1 + b) + c) \
    X(xor_eax, "xor eax, eax; add rax, rdi; add rax, rsi; ret", a + b) \
    X(looped, "xor eax, eax; 1: add rax, rsi; add rax, 1; cmp rax, 0; js 1b; ret", b + 1) \
    X(inner_loop, "mov al, 3; 1: add rdi, 2; dec al; jnz 1b; SUM; ret", S + 6) \
    X(nop2, ".byte 0x66, 0x90; SUM; ret", S) \
    X(jmp_short, ".byte 0xeb, 3; ud2; nop; SUM; ret", S) \
    X(je_short, "je 1f; SUM; ret; 1: SUM; add rax, 1; ret", S + ((int)a == 0)) \
    X(jne_short, "jne 1f; SUM; ret; 1: SUM; add rax, 1; ret", S + ((int)a != 0)) \
    X(mov_rax_rdi, "mov rax, rdi; lea rax, [rax + rsi]; ret", a + b) \
    X(movsxd_rdi, "movsxd rdi, edi; SUM; ret", S - a + (int)a) \
    X(movsxd_rax, "movsxd rax, edi; add rax, rdx; ret", (int)a + c) \
    X(nop3, ".byte 0x0f, 0x1f, 0; SUM; ret", S) \
    X(movaps, "movaps xmm1, xmm0; movq rax, xmm1; ret", a) \
    X(vzeroupper, "vzeroupper; SUM; ret", S) \
    X(sub_rsp8, "sub rsp, 24; SUM; add rsp, 24; ret", S) \
    X(endbr, "endbr64; SUM; ret", S) \
    X(endbr_push, "endbr64; push rbx; mov rbx, rdi; SUM; sub rax, rdi; add rax, rbx; pop rbx; ret", S) \
    X(add_rdi, "add rdi, 5; SUM; ret", S + 5) \
    X(lea_rax, "lea rax, [rdi + 8]; add rax, rcx; ret", a + 8 + d) \
    X(golike, "cmp rsp, [r14 + 16]; jbe 1f; SUM; ret; 1: xor eax, eax; ret", S) \
    X(nop4, ".byte 0x0f, 0x1f, 0x40, 0; SUM; ret", S) \
    X(pxor, "pxor xmm1, xmm1; por xmm1, xmm0; movq rax, xmm1; ret", a) \
    X(vmovaps, "vmovaps ymm1, ymm0; vmovq rax, xmm1; vzeroupper; ret", a) \
    X(mov_stack, "mov [rsp - 8], rdi; SUM; sub rax, rdi; add rax, [rsp - 8]; ret", S) \
    X(cvtsi2sd, "cvtsi2sd xmm1, rsi; cvttsd2si rax, xmm1; add rax, rdi; ret", a + b) \
    X(nop5, ".byte 0x0f, 0x1f, 0x44, 0, 0; SUM; ret", S) \
    X(mov_eax, "mov eax, 0x1234567; add rax, rdi; ret", a + 0x1234567) \
    X(mov_edi, "mov edi, 0x7654321; SUM; ret", S - a + 0x7654321) \
    X(lea_r12, "lea r12, [rsp - 8]; mov r11, r12; sub r11, rsp; mov r12, 0x12121212; SUM; add rax, r11; ret", S - 8) \
    X(lea_r10, "lea r10, [rsp + 8]; sub r10, rsp; SUM; add rax, r10; ret", S + 8) \
    X(push_word, "push 0x1234567; pop r11; SUM; add rax, r11; ret", S + 0x1234567) \
    X(jmp_near, ".byte 0xe9; .long 1f - . - 4; 1: SUM; ret", S) \
    X(jmp_away, "jmp b_common", S) \
    X(call_near, "call b_common; add rax, 1; ret", S + 1) \
    X(sys, "mov eax, 39; mov r10, rcx; syscall; mov rcx, r10; mov r10d, [rip + b_pid]; sub r10, rax; SUM; add rax, r10; ret", S) \
    X(je_near, ".byte 0x0f, 0x84; .long 1f - . - 4; SUM; ret; 1: SUM; add rax, 1; ret", S + ((int)a == 0)) \
    X(jne_near, ".byte 0x0f, 0x85; .long 1f - . - 4; SUM; ret; 1: SUM; add rax, 1; ret", S + ((int)a != 0)) \
    X(nop6, ".byte 0x66, 0x0f, 0x1f, 0x44, 0, 0; SUM; ret", S) \
    X(cmp_edi, "cmp edi, 0x1234567; SUM; ret", S) \
    X(mov_eax_rip, "mov eax, [rip + b_value]; add rax, rdi; ret", a + 0x777) \
    X(push_rip, "push [rip + b_value]; pop r11; SUM; add rax, r11; ret", S + 0x777) \
    X(jmp_rip, "jmp [rip + b_pointer]", S) \
    X(call_rip, "call [rip + b_pointer]; add rax, 2; ret", S + 2) \
    X(sub_rsp32, "sub rsp, 0x188; SUM; add rsp, 0x188; ret", S) \
    X(nop7, ".byte 0x0f, 0x1f, 0x80, 0, 0, 0, 0; SUM; ret", S) \
    X(mov_rax_rip, "mov rax, [rip + b_value]; add rax, rdi; ret", a + 0x777) \
    X(cmp_byte_rip, "cmp byte ptr [rip + b_value], 0x77; mov r11d, 1; mov eax, 2; cmove r11d, eax; SUM; add rax, r11; ret", S + 2) \
    X(lea_rdi_rip, "lea rdi, [rip + b_value]; mov rdi, [rdi]; SUM; ret", S - a + 0x777) \
    X(nop8, ".byte 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0; SUM; ret", S) \
    X(lock_add, "lock add dword ptr [rip + b_locked], 1; SUM; ret", S) \
    X(nop9, ".byte 0x66, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0; SUM; ret", S) \
    X(mov_fs, "mov rax, fs:[0]; sub rax, fs:[16]; add rax, rdi; ret", a) \
    X(movabs_rax, "movabs rax, 0x123456789abcdef; add rax, rdi; ret", a + 0x123456789abcdef) \
    X(movabs_rdi, "movabs rdi, 0x123456789abcdef; SUM; ret", S - a + 0x123456789abcdef) \
    X(mov_mem, "mov dword ptr [rip + b_stored], 0x1234567; SUM; ret", S) \
    X(lock_addq, "lock add qword ptr [rip + b_locked_too], 0x1234567; SUM; ret", S) \
    X(nop11, ".byte 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0; SUM; ret", S) \
    X(mov_stack12, "mov qword ptr [rsp - 0x100], 0x1234567; SUM; ret", S) \
    X(cmp_fs13, ".byte 0x64, 0x48, 0x81, 0x3c, 0x25; .long 0x28, 0x1234567; SUM; ret", S) \
    X(nop14, ".byte 0x66, 0x66, 0x66, 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0; SUM; ret", S) \
    X(nop15, ".byte 0x66, 0x66, 0x66, 0x66, 0x66, 0x66, 0x2e, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0; SUM; ret", S)

int b_pid;
long b_value = 0x777;
int b_stored;
_Atomic uint32_t b_locked;
_Atomic uint64_t b_locked_too;
long b_common(long, long, long, long, long, long);
function b_pointer = b_common;
_Atomic unsigned long b_altered;
static long go_thread[8];
void b_phase(long);

#define CODE(name, code, result) \
    ".globl b_" #name "\n.type b_" #name ", @function\n.p2align 4\nb_" #name ": " code "\n.size b_" #name ", . - b_" #name "\n.fill 8, 1, 0xcc\n"

/* call_checked calls r11 = its seventh argument with the six, rax = IN, xmm0 = the first, and
 * flags that say if that is zero; counts in b_altered what was not kept. */
__asm__(".intel_syntax noprefix\n"
        ".macro SUM\n"
        "lea rax, [rdi + rsi * 2]\nlea rax, [rax + rdx * 4]\nlea rax, [rax + rcx * 8]\nadd rax, r8\nadd rax, r9\n"
        ".endm\n"
        ".globl b_common\n.type b_common, @function\nb_common: SUM; ret\n.size b_common, . - b_common\n"
        FUNCTIONS(CODE)
        ".type call_checked, @function\n.p2align 4\ncall_checked:\n"
        "push rbp; push rbx; push r12; push r13; push r14; push r15\n"
        "mov r11, [rsp + 56]; mov r14, [rsp + 64]; push r14; movq xmm0, rdi\n"
        "mov ebx, 0x0b0b0b0b; mov r12d, 0x12121212; mov r13d, 0x13131313; mov r15d, 0x15151515; mov ebp, 0x05050505\n"
        "mov eax, 0x5a5a; test edi, edi; call r11\n"
        "cmp rbx, 0x0b0b0b0b; jne 1f; cmp r12, 0x12121212; jne 1f; cmp r13, 0x13131313; jne 1f\n"
        "cmp r15, 0x15151515; jne 1f; cmp rbp, 0x05050505; jne 1f; cmp r14, [rsp]; je 2f\n"
        "1: lock add qword ptr [rip + b_altered], 1\n"
        "2: add rsp, 8; pop r15; pop r14; pop r13; pop r12; pop rbx; pop rbp; ret\n"
        ".size call_checked, . - call_checked\n"
        ".att_syntax\n");

long call_checked(long, long, long, long, long, long, function, long *);

#define DECLARE(name, code, result) long b_##name(long, long, long, long, long, long);
FUNCTIONS(DECLARE)
#define EXPECTED(name, code, result) \
    static long want_##name(long a, long b, long c, long d, long e, long f) \
    { (void)a, (void)b, (void)c, (void)d, (void)e, (void)f; return result; }
FUNCTIONS(EXPECTED)

static const struct { const char *name; function call, want; } functions[] = {
#define ROW(name, code, result) {"b_" #name, b_##name, want_##name},
    FUNCTIONS(ROW)
};
enum { FUNCTION_COUNT = sizeof functions / sizeof *functions };

/* Tells who traces what comes next. */
__attribute__((noinline, noclone, used)) void b_phase(long n) { __asm__ volatile("" : "+r"(n) : : "memory"); }

static pthread_barrier_t begin, end;
static atomic_long quota, turns;
static atomic_bool stopping;
static atomic_int wrong;
static char what_is_wrong[200];

static void complain(int which, long got, long want)
{
    if (atomic_exchange(&wrong, 1) == 0)
        snprintf(what_is_wrong, sizeof what_is_wrong, "wrong %s gave %#lx, not %#lx", functions[which].name, got, want);
}

static void call_all(long seed)
{
    static const char *text = "a string";
    for (int i = 0; i < FUNCTION_COUNT; i++) {
        /* Sometimes zero, so that jumps go both ways; the second is a string. */
        long a = (seed + i) % 3 * 0x10000001L, b = (long)text, c = seed, d = i, e = -seed, f = seed * 3;
        long got = call_checked(a, b, c, d, e, f, functions[i].call, go_thread);
        long want = functions[i].want(a, b, c, d, e, f);
        if (got != want)
            complain(i, got, want);
    }
}

static void *work(void *unused)
{
    struct timespec pause = {0, PAUSE_NS};
    for (;;) {
        pthread_barrier_wait(&begin);
        long limit = quota;
        for (long done = 0; done < limit && !stopping; done++) {
            call_all(done);
            turns++;
            if (limit > 1000000)
                nanosleep(&pause, 0);
        }
        pthread_barrier_wait(&end);
    }
    return unused;
}

static void report(void)
{
    pthread_barrier_wait(&end);
    long total = turns;
    if (!wrong && (b_locked != (uint32_t)total || b_locked_too != (uint64_t)total * 0x1234567)) {
        wrong = 1;
        snprintf(what_is_wrong, sizeof what_is_wrong, "wrong lock_add ran %u times, lock_addq %lu, called %ld times", b_locked,
                 b_locked_too / 0x1234567, total);
    }
    if (!wrong && b_altered) {
        wrong = 1;
        snprintf(what_is_wrong, sizeof what_is_wrong, "wrong registers were not kept %lu times", b_altered);
    }
    if (wrong)
        puts(what_is_wrong);
    else
        printf("right %ld\n", total);
}

/* It waits in a call that takes a mask of its own. */
static int is_held_by_call;

static void *block_all(void *blocking)
{
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, 0);
    pthread_barrier_wait(blocking);
    for (;;)
        if (is_held_by_call)
            sigsuspend(&all);
        else
            pause();
    return 0;
}

/* Starts a thread that blocks all signals. */
static void block(void)
{
    static pthread_barrier_t blocking;
    pthread_t thread;
    pthread_barrier_init(&blocking, 0, 2);
    pthread_create(&thread, 0, block_all, &blocking);
    pthread_barrier_wait(&blocking);
}

/* Takes the memory that jumps lead to whose displacement's highest byte is this. */
static void take(unsigned highest)
{
    char *from = (char *)(((uintptr_t)b_common & -4096) + (int)(highest << 24) - (1 << 20));
    if (mmap(from, (1 << 24) + (2 << 20), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0) == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
}

int main(void)
{
    char line[64];
    pthread_t thread;
    setvbuf(stdout, 0, _IOLBF, 0);
    b_pid = getpid();
    pthread_barrier_init(&begin, 0, THREADS + 1);
    pthread_barrier_init(&end, 0, THREADS + 1);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&thread, 0, work, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        if (strncmp(line, "calls ", 6) == 0) {
            quota = atol(line + 6);
            stopping = 0;
            pthread_barrier_wait(&begin);
            report();
        } else if (strncmp(line, "start", 5) == 0) {
            quota = INT64_MAX;
            stopping = 0;
            pthread_barrier_wait(&begin);
            puts("running");
        } else if (strncmp(line, "stop", 4) == 0) {
            stopping = 1;
            report();
        } else if (strncmp(line, "turns", 5) == 0) {
            printf("%ld\n", (long)turns);
        } else if (strncmp(line, "phase ", 6) == 0) {
            b_phase(atol(line + 6));
            puts("phase");
        } else if (strncmp(line, "block", 5) == 0) {
            block();
            puts("blocking");
        } else if (strncmp(line, "fill", 4) == 0) {
            take(0xf0);
            puts("filled");
        } else if (strncmp(line, "crowd", 5) == 0) {
            take(0xcc);
            is_held_by_call = 1;
            block();
            puts("crowded");
        } else if (strncmp(line, "list", 4) == 0) {
            for (int i = 0; i < FUNCTION_COUNT; i++)
                printf("%s%c", functions[i].name, i + 1 < FUNCTION_COUNT ? ' ' : '\n');
        }
    }
    return EXIT_CODE;
}
