/* Runs compiled programs for aarch64: reads jobs from standard input and writes what became of each to standard output,
 * until the input ends. All numbers are words of 64 bits, little endian.
 *
 * A job:      count of programs, bytes of context, whether programs get a run (else the next word is their second argument),
 *             that argument; for each program its bytes of code and its count of maps, the code, and for each map the bytes
 *             of a value, the count of values, and the values; at last the context.
 * An outcome: the signal that ended the job or 0, r0, the registers that changed (bit n for xn), the bytes of stack that were
 *             written; the context, and the values of all maps of all programs, as they are then.
 *
 * The first program is run; the others are what its tail calls lead to, by their numbers. Maps are arrays. The handle of
 * a map is an address; see struct map. As the image sees it, programs run on CPU 1, at a place whose address is 0x517e, with
 * the cookie 0xc00c1e.
 */
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

typedef uint64_t word;

struct map {
    word value_bytes, entries;
    unsigned char *values;
};

/* beeline_isa::abi::Run, and what the image has behind it, as far as abi tells of it. */
struct run {
    const word *helpers, *maps, *values;
    word map_count;
    void *context;
    word unused[3];
    const word *site;
    word cpu, cookie;
};

struct program {
    void *code;
    word code_bytes, map_count;
    struct map *maps;
    word *handles, *values;
};

typedef word helper(word, word, word, word, word, struct run *);

enum { HELPERS = 256, TAIL_CALLS = 33, STACK = 1 << 18, FILLED = 1 << 14, SECONDS = 20 };

static struct program *programs;
static word program_count, tail_calls;
static word helpers[HELPERS];
static unsigned char stack[STACK] __attribute__((aligned(16)));
static sigjmp_buf fault;

/* Calls before[17] on another stack with all registers as in `before`, and notes in `after` what they are then. */
void enter_with(const word before[31], word after[31], void *stack_top);
__asm__(
    ".globl enter_with\n"
    "enter_with:\n"
    "stp x29, x30, [sp, #-96]!; stp x19, x20, [sp, #16]; stp x21, x22, [sp, #32]; stp x23, x24, [sp, #48]\n"
    "stp x25, x26, [sp, #64]; stp x27, x28, [sp, #80]\n"
    "mov x9, sp; mov sp, x2; stp x9, x1, [sp, #-16]!\n"
    "mov x30, x0\n"
    "ldp x0, x1, [x30]; ldp x2, x3, [x30, #16]; ldp x4, x5, [x30, #32]; ldp x6, x7, [x30, #48]\n"
    "ldp x8, x9, [x30, #64]; ldp x10, x11, [x30, #80]; ldp x12, x13, [x30, #96]; ldp x14, x15, [x30, #112]\n"
    "ldp x16, x17, [x30, #128]; ldp x18, x19, [x30, #144]; ldp x20, x21, [x30, #160]; ldp x22, x23, [x30, #176]\n"
    "ldp x24, x25, [x30, #192]; ldp x26, x27, [x30, #208]; ldp x28, x29, [x30, #224]\n"
    "blr x17\n"
    "ldr x30, [sp, #8]\n"
    "stp x0, x1, [x30]; stp x2, x3, [x30, #16]; stp x4, x5, [x30, #32]; stp x6, x7, [x30, #48]\n"
    "stp x8, x9, [x30, #64]; stp x10, x11, [x30, #80]; stp x12, x13, [x30, #96]; stp x14, x15, [x30, #112]\n"
    "stp x16, x17, [x30, #128]; stp x18, x19, [x30, #144]; stp x20, x21, [x30, #160]; stp x22, x23, [x30, #176]\n"
    "stp x24, x25, [x30, #192]; stp x26, x27, [x30, #208]; stp x28, x29, [x30, #224]\n"
    "ldr x9, [sp]; mov sp, x9\n"
    "ldp x19, x20, [sp, #16]; ldp x21, x22, [sp, #32]; ldp x23, x24, [sp, #48]; ldp x25, x26, [sp, #64]\n"
    "ldp x27, x28, [sp, #80]; ldp x29, x30, [sp], #96; ret\n");

/* --- Helpers, by the kernel's numbers and with its results; those from 200 on are for tests of calls. --- */

static word look_up(word map, word key, word c, word d, word e, struct run *run) {
    const struct map *array = (void *)map;
    uint32_t index = *(uint32_t *)key;
    return index < array->entries ? (word)(array->values + index * array->value_bytes) : 0;
}

static word update(word map, word key, word value, word flags, word e, struct run *run) {
    const struct map *array = (void *)map;
    void *place = (void *)look_up(map, key, 0, 0, 0, run);
    if (flags > 2) return -22;
    if (!place) return -7;
    if (flags == 1) return -17;
    memcpy(place, (void *)value, array->value_bytes);
    return 0;
}

static word delete(word map, word key, word c, word d, word e, struct run *run) { return -22; }

static word same(word a, word b, word c, word d, word e, struct run *run) { return a; }

static word tail_call(word context, word map, word index, word d, word e, struct run *run) {
    index = (uint32_t)index;
    if (index >= program_count || tail_calls == TAIL_CALLS) return 0;
    tail_calls++;
    run->maps = programs[index].handles;
    run->values = programs[index].values;
    run->map_count = programs[index].map_count;
    return (word)programs[index].code;
}

static word loop(word count, word callback, word context, word flags, word e, struct run *run) {
    if (flags) return -22;
    count = (uint32_t)count;
    if (count > 1 << 23) return -7;
    for (word i = 0; i < count; i++)
        if (((helper *)callback)(i, context, 0, 0, 0, run)) return i + 1;
    return count;
}

static word for_each(word map, word callback, word context, word flags, word e, struct run *run) {
    const struct map *array = (void *)map;
    if (flags) return -22;
    for (uint32_t i = 0; i < array->entries; i++) {
        uint32_t key = i;
        word value = (word)(array->values + i * array->value_bytes);
        if (((helper *)callback)(map, (word)&key, value, context, 0, run)) return i + 1;
    }
    return array->entries;
}

/* callback(1, 2, 3, 4, 5) */
static word once(word a, word callback, word c, word d, word e, struct run *run) {
    return ((helper *)callback)(1, 2, 3, 4, 5, run);
}

/* callback(r1) * 1000 + callback(r1 + 1) */
static word twice(word a, word callback, word c, word d, word e, struct run *run) {
    word first = ((helper *)callback)(a, 0, 0, 0, 0, run);
    return first * 1000 + ((helper *)callback)(a + 1, 0, 0, 0, 0, run);
}

/* The arguments' digits, and how far the stack is from its alignment. */
static word digits(word a, word b, word c, word d, word e, struct run *run) {
    word misaligned = (word)__builtin_frame_address(0) & 15;
    return a * 10000 + b * 1000 + c * 100 + d * 10 + e + (misaligned || !run ? 1000000 : 0);
}

static void fill_helpers(void) {
    helpers[1] = (word)look_up;
    helpers[2] = (word)update;
    helpers[3] = (word)delete;
    helpers[5] = (word)same; /* as the conformance suite wants it */
    helpers[12] = (word)tail_call;
    helpers[164] = (word)for_each;
    helpers[181] = (word)loop;
    helpers[200] = (word)once;
    helpers[201] = (word)twice;
    helpers[255] = (word)digits;
}

/* --- Jobs --- */

static void get(void *to, word bytes) {
    if (bytes && fread(to, 1, bytes, stdin) != bytes) exit(1);
}

static word get_word(void) {
    word value;
    get(&value, sizeof value);
    return value;
}

static void put(const void *from, word bytes) { fwrite(from, 1, bytes, stdout); }

static void put_word(word value) { put(&value, sizeof value); }

static void *allocate(word bytes) {
    void *memory = calloc(1, bytes + 16);
    if (!memory) exit(1);
    return memory;
}

static void get_program(struct program *program) {
    program->code_bytes = get_word();
    program->map_count = get_word();
    program->code = mmap(0, program->code_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (program->code == MAP_FAILED) exit(1);
    get(program->code, program->code_bytes);
    __builtin___clear_cache(program->code, (char *)program->code + program->code_bytes);
    mprotect(program->code, program->code_bytes, PROT_READ | PROT_EXEC);
    program->maps = allocate(program->map_count * sizeof(struct map));
    program->handles = allocate(program->map_count * sizeof(word));
    program->values = allocate(program->map_count * sizeof(word));
    for (word i = 0; i < program->map_count; i++) {
        struct map *map = &program->maps[i];
        map->value_bytes = get_word();
        map->entries = get_word();
        map->values = allocate(map->value_bytes * map->entries);
        get(map->values, map->value_bytes * map->entries);
        program->handles[i] = (word)map;
        program->values[i] = (word)map->values;
    }
}

static void put_program(struct program *program) {
    for (word i = 0; i < program->map_count; i++) {
        struct map *map = &program->maps[i];
        put(map->values, map->value_bytes * map->entries);
        free(map->values);
    }
    munmap(program->code, program->code_bytes);
    free(program->maps);
    free(program->handles);
    free(program->values);
}

static void on_fault(int signal) { siglongjmp(fault, signal); }

static void catch_faults(void) {
    static unsigned char other_stack[1 << 16];
    stack_t other = {.ss_sp = other_stack, .ss_size = sizeof other_stack};
    struct sigaction action = {.sa_handler = on_fault, .sa_flags = SA_ONSTACK | SA_NODEFER};
    static const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGTRAP, SIGALRM};
    sigaltstack(&other, 0);
    for (unsigned i = 0; i < sizeof signals / sizeof *signals; i++) sigaction(signals[i], &action, 0);
}

static void one_job(void) {
    program_count = get_word();
    word context_bytes = get_word(), with_run = get_word(), second = get_word();
    programs = allocate(program_count * sizeof *programs);
    for (word i = 0; i < program_count; i++) get_program(&programs[i]);
    unsigned char *context = allocate(context_bytes);
    get(context, context_bytes);

    static const word site[] = {0, 0x517e};
    struct run run = {
        .helpers = helpers,
        .maps = programs->handles,
        .values = programs->values,
        .map_count = programs->map_count,
        .context = context_bytes ? context : 0,
        .site = site,
        .cpu = 1,
        .cookie = 0xc00c1e,
    };
    static word before[31], after[31];
    for (int i = 0; i < 31; i++) before[i] = 0x5afe000000000000 + i;
    before[0] = (word)run.context;
    before[1] = with_run ? (word)&run : second;
    before[17] = (word)programs->code;
    unsigned char *filled = stack + STACK - FILLED;
    memset(filled, 0xa5, FILLED);
    tail_calls = 0;

    word changed = 0, written = 0;
    int signal = sigsetjmp(fault, 1);
    if (!signal) {
        alarm(SECONDS);
        enter_with(before, after, stack + STACK);
        for (int i = 0; i < 30; i++)
            if (before[i] != after[i]) changed |= (word)1 << i;
        /* The topmost 16 bytes are enter_with's. */
        while (written < FILLED && filled[written] == 0xa5) written++;
        written = written < FILLED - 16 ? FILLED - 16 - written : 0;
    }
    alarm(0);
    put_word(signal);
    put_word(after[0]);
    put_word(changed);
    put_word(written);
    put(context, context_bytes);
    for (word i = 0; i < program_count; i++) put_program(&programs[i]);
    fflush(stdout);
    free(context);
    free(programs);
}

int main(void) {
    fill_helpers();
    catch_faults();
    for (;;) {
        int next = getc(stdin);
        if (next == EOF) return 0;
        ungetc(next, stdin);
        one_job();
    }
}
