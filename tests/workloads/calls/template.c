/* Code that is kept as data among the code, to be copied and run elsewhere; and a function right before it. */
#include "scenes.h"
#include <sys/mman.h>

long template_before(void);
extern const unsigned char template_code[];
__asm__(".text\n.p2align 4\n"
        ".globl template_before\n.type template_before, @function\n"
        "template_before: mov $102, %eax\n syscall\n ret\n.size template_before, . - template_before\n"
        ".globl template_code\n.type template_code, @object\n"
        "template_code: mov $110, %eax\n syscall\n ret\n.size template_code, . - template_code\n");

static const unsigned char expected[] = {0xb8, 110, 0, 0, 0, 0x0f, 0x05, 0xc3};

static int look(void)
{
    for (int i = 0; i < 100; i++)
        CHECK(template_before() == (long)getuid());
    CHECK(memcmp(template_code, expected, sizeof expected) == 0);
    return 0;
}

static int copy(void)
{
    unsigned char *place = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(place != MAP_FAILED);
    memcpy(place, template_code, sizeof expected);
    CHECK(mprotect(place, 4096, PROT_READ | PROT_EXEC) == 0);
    for (int i = 0; i < 100; i++)
        CHECK(((long (*)(void))place)() == getppid());
    CHECK(munmap(place, 4096) == 0);
    return 0;
}

int main(void)
{
    static const struct scene scenes[] = {{"look", look}, {"copy", copy}, {NULL, NULL}};
    say("ready\n");
    return serve(scenes);
}
