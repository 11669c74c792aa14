/* Ten thousand functions, one every 32 bytes from many_0 on. Each line of input calls each of them once. */
#include <stdio.h>

__asm__(".altmacro\n"
        ".macro function n\n"
        ".globl many_\\n\n .type many_\\n, @function\n"
        "many_\\n: push %rbp\n mov %rsp, %rbp\n lea \\n(%rdi), %rax\n pop %rbp\n ret\n"
        ".size many_\\n, . - many_\\n\n .balign 32\n"
        ".endm\n"
        ".text\n .balign 32\n"
        ".set i, 0\n"
        ".rept 10000\n function %i\n .set i, i + 1\n .endr\n"
        ".noaltmacro\n");
extern char many_0[];

int main(void)
{
    char line[16];
    setbuf(stdout, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        long sum = 0;
        for (int i = 0; i < 10000; i++)
            sum += ((long (*)(long))(many_0 + 32 * i))(1);
        printf("%ld\n", sum);
    }
    return 7;
}
