/* Code that comes later: a library whose own system calls are bare instructions, and code that is written at run time. */
#include "scenes.h"
#include <dlfcn.h>
#include <sys/mman.h>

static char *library;

static int load(void)
{
    for (int i = 0; i < 3; i++) {
        void *handle = dlopen(library, RTLD_NOW);
        CHECK(handle);
        long (*parent)(void) = (long (*)(void))dlsym(handle, "bare_getppid");
        CHECK(parent);
        for (int j = 0; j < 10; j++)
            CHECK(parent() == getppid());
        CHECK(dlclose(handle) == 0);
    }
    return 0;
}

/* mov eax, SYS_getppid; syscall; ret, of which nobody knows; only that it works is asked for. */
static int write_code(void)
{
    static const unsigned char code[] = {0xb8, 110, 0, 0, 0, 0x0f, 0x05, 0xc3};
    unsigned char *place = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(place != MAP_FAILED);
    for (int i = 0; i < 3; i++) {
        CHECK(mprotect(place, 4096, PROT_READ | PROT_WRITE) == 0);
        memcpy(place, code, sizeof code);
        CHECK(mprotect(place, 4096, PROT_READ | PROT_EXEC) == 0);
        CHECK(((long (*)(void))place)() == getppid());
    }
    CHECK(munmap(place, 4096) == 0);
    return 0;
}

int main(int count, char **arguments)
{
    static const struct scene scenes[] = {{"load", load}, {"write code", write_code}, {0, 0}};
    if (count < 2)
        return 1;
    library = arguments[1];
    say("ready\n");
    return serve(scenes);
}
