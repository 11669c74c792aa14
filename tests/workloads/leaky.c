/* Allocates 100 blocks of 100 bytes in a round and frees 30. Same protocol as counts.c. */
#include <stdio.h>
#include <stdlib.h>

enum { EXIT_CODE = 7 };

__attribute__((noinline, noclone, used)) static void *leak_here(size_t size)
{
    void *block = malloc(size);
    __asm__ volatile("" : "+r"(block) : : "memory");
    return block;
}

int main(void)
{
    static char line[16], input[4096];
    setvbuf(stdin, input, _IOFBF, sizeof input);
    setvbuf(stdout, 0, _IONBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        for (int i = 0; i < 100; i++) {
            void *block = leak_here(100);
            if (i % 10 < 3)
                free(block);
        }
        puts("done");
    }
    return EXIT_CODE;
}
