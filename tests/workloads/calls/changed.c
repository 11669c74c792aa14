/* A program whose C library is, in its own memory, not what the file holds. */
#include "scenes.h"
#include <stdint.h>
#include <sys/mman.h>

/* Another one of the instructions that do nothing behind a wrapper. */
static int change(void)
{
    static const unsigned char padding[] = {0xc3, 0x0f, 0x1f, 0x84, 0, 0, 0, 0, 0};
    unsigned char *code = (unsigned char *)getppid;
    int ret = 0;
    while (ret < 16 && memcmp(code + ret, padding, sizeof padding))
        ret++;
    CHECK(ret < 16);
    uintptr_t page = (uintptr_t)(code + ret) & -4096;
    CHECK(mprotect((void *)page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC) == 0);
    code[ret + 5] = 1;
    CHECK(mprotect((void *)page, 8192, PROT_READ | PROT_EXEC) == 0);
    return 0;
}

static int ids(void)
{
    for (int i = 0; i < 100; i++)
        CHECK(getppid() > 0 && (int)getuid() >= 0);
    return 0;
}

int main(void)
{
    static const struct scene scenes[] = {{"change", change}, {"ids", ids}, {NULL, NULL}};
    say("ready\n");
    return serve(scenes);
}
