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

/* mov eax, SYS_getppid; syscall; ret; and the same with the longer move, behind something else. */
static const unsigned char short_code[] = {0xb8, 110, 0, 0, 0, 0x0f, 0x05, 0xc3};
static const unsigned char long_code[] = {0x90, 0x31, 0xff, 0x48, 0xc7, 0xc0, 110, 0, 0, 0, 0x0f, 0x05, 0xc3};

static long call(const void *place)
{
    return ((long (*)(void))place)();
}

/* Writable or executable, in turns. */
static int write_code(void)
{
    unsigned char *place = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(place != MAP_FAILED);
    for (int i = 0; i < 6; i++) {
        CHECK(mprotect(place, 4096, PROT_READ | PROT_WRITE) == 0);
        memset(place, 0xcc, 4096);
        if (i % 2)
            memcpy(place + 40, short_code, sizeof short_code);
        else
            memcpy(place + 40, long_code, sizeof long_code);
        CHECK(mprotect(place, 4096, PROT_READ | PROT_EXEC) == 0);
        for (int j = 0; j < 3; j++)
            CHECK(call(place + 40) == getppid());
        /* Who comes to the call another way makes it, too. */
        if (i % 2 == 0) {
            long parent;
            __asm__ volatile("call *%2" : "=a"(parent) : "0"(110L), "r"(place + 50) : "rcx", "r11", "memory");
            CHECK(parent == getppid());
        }
    }
    /* Again, over what has been hooked, and nothing else of it. */
    CHECK(mprotect(place, 4096, PROT_READ | PROT_WRITE) == 0);
    memcpy(place + 2000, short_code, sizeof short_code);
    CHECK(mprotect(place, 4096, PROT_READ | PROT_EXEC) == 0);
    CHECK(call(place + 2000) == getppid() && call(place + 40) == getppid());
    CHECK(munmap(place, 4096) == 0);
    return 0;
}

/* Both at once, and it stays. */
static int write_and_run(void)
{
    static unsigned char *place;
    if (!place)
        place = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(place != MAP_FAILED);
    memcpy(place, short_code, sizeof short_code);
    for (int i = 0; i < 10; i++)
        CHECK(call(place) == getppid());
    return 0;
}

/* Code that stays, as it was written. */
static unsigned char *kept;

static int keep_code(void)
{
    kept = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(kept != MAP_FAILED);
    memcpy(kept, short_code, sizeof short_code);
    CHECK(mprotect(kept, 4096, PROT_READ | PROT_EXEC) == 0 && call(kept) == getppid());
    return 0;
}

static int is_changed(void)
{
    CHECK(memcmp(kept, short_code, sizeof short_code) != 0 && call(kept) == getppid());
    return 0;
}

static int is_as_written(void)
{
    CHECK(memcmp(kept, short_code, sizeof short_code) == 0 && call(kept) == getppid());
    return 0;
}

/* A library that has gone from its directory since. */
static int call_removed(void)
{
    static long (*parent)(void);
    if (!parent) {
        parent = (long (*)(void))dlsym(dlopen(library, RTLD_NOW), "bare_getppid");
        CHECK(parent && unlink(library) == 0);
    }
    for (int i = 0; i < 10; i++)
        CHECK(parent() == getppid());
    return 0;
}

int main(int count, char **arguments)
{
    static const struct scene scenes[] = {{"load", load},
                                          {"write code", write_code},
                                          {"write and run", write_and_run},
                                          {"removed", call_removed},
                                          {"keep code", keep_code},
                                          {"is changed", is_changed},
                                          {"is as written", is_as_written},
                                          {0, 0}};
    if (count < 2)
        return 1;
    library = arguments[1];
    say("ready\n");
    return serve(scenes);
}
