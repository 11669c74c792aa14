/* What a tool starts: keeps values in r9, the register of a system call's sixth argument, over calls with a path, which have
 * none. Prints "kept", or what was lost. The calls stand in the ways that compilers write them in spite of the conventions. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { TURNS = 200, MARKER = 0x1234 };

/* A function that its caller, by -fipa-ra, knows not to change r9. */
static __attribute__((noinline, noclone)) long opened(const char *path)
{
    long fd;
    register long r10 __asm__("r10") = 0;
    __asm__ volatile("syscall" : "=a"(fd) : "0"((long)SYS_openat), "D"((long)AT_FDCWD), "S"(path), "d"(0L), "r"(r10)
                     : "rcx", "r11", "memory");
    return fd;
}

__attribute__((noinline, noclone)) static long over_a_function(const char *path)
{
    long kept;
    __asm__ volatile("mov %[marker], %%r9\n\tcall opened_by_name\n\tmov %%r9, %[kept]"
                     : [kept] "=r"(kept), "+D"(path) : [marker] "r"((long)MARKER)
                     : "rax", "rcx", "rdx", "rsi", "r8", "r9", "r10", "r11", "memory");
    return kept;
}

/* What `call opened_by_name` reaches: it keeps r9 as above, and closes nothing. */
__asm__(".text\n.type opened_by_name, @function\nopened_by_name:\n"
        "mov %rdi, %rsi\nmov $-100, %edi\nxor %edx, %edx\nmov $257, %eax\nsyscall\nmov %rax, last_opened(%rip)\nret\n"
        ".size opened_by_name, . - opened_by_name\n");
static long last_opened __asm__("last_opened") __attribute__((used));

/* A branch to a part of the function that stands elsewhere. */
__asm__(".text\n.type branches, @function\nbranches:\n"
        "mov $0x1234, %r9d\nmov %rdi, %rsi\nmov $-100, %edi\nxor %edx, %edx\nmov $257, %eax\nsyscall\ntest %rax, %rax\n"
        "js branches_cold\nmov %r9, %rax\nret\n.size branches, . - branches\n"
        ".type branches_cold, @function\nbranches_cold:\nmov %r9, %rax\nret\n.size branches_cold, . - branches_cold\n");
extern long branches(const char *path);

struct call { long number, first, second, third, fourth, fifth, result; };

/* A loop that makes any calls, and keeps the sixth argument. */
static __attribute__((noinline, noclone)) void make(struct call *call, struct call *end, long last)
{
    register long r9 __asm__("r9") = last;
    for (; call != end; call++) {
        register long r10 __asm__("r10") = call->fourth;
        register long r8 __asm__("r8") = call->fifth;
        __asm__ volatile("syscall" : "=a"(call->result)
                         : "0"(call->number), "D"(call->first), "S"(call->second), "d"(call->third), "r"(r10), "r"(r8), "r"(r9)
                         : "rcx", "r11", "memory");
    }
}

int main(void)
{
    char page[4096];
    int file = memfd_create("pages", 0), lost = 0;
    for (const char *letter = "AB"; *letter; letter++) {
        memset(page, *letter, sizeof page);
        lost += write(file, page, sizeof page) != sizeof page;
    }
    for (int turn = 0; turn < TURNS && lost == 0; turn++) {
        close((int)opened("/etc/passwd"));
        lost += over_a_function("/etc/passwd") != MARKER;
        close((int)last_opened);
        lost += 2 * (branches("/no/such/file") != MARKER);
        struct call calls[] = {
            {SYS_openat, AT_FDCWD, (long)"/etc/passwd", 0, 0, 0, 0},
            {SYS_mmap, 0, 4096, PROT_READ, MAP_PRIVATE, file, 0},
        };
        make(calls, calls + 2, 4096);
        close((int)calls[0].result);
        lost += 4 * (*(char *)calls[1].result != 'B');
        munmap((void *)calls[1].result, 4096);
    }
    puts(lost == 0 ? "kept" : "lost");
    return lost;
}
