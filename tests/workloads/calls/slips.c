/* Threads that sleep in a call made by code that was written at run time: "sleep" starts one whose code is executable only,
 * "slip" one whose code can still be written. */
#include "scenes.h"
#include <pthread.h>
#include <sys/mman.h>

/* mov eax, SYS_read; syscall; ret. */
static const unsigned char code[] = {0xb8, 0, 0, 0, 0, 0x0f, 0x05, 0xc3};

static int ends[2];

static void *reads(void *place)
{
    char byte;
    ((long (*)(int, void *, long))place)(ends[0], &byte, 1);
    return 0;
}

static int start_reader(int protection)
{
    unsigned char *place = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(place != MAP_FAILED);
    memcpy(place, code, sizeof code);
    pthread_t thread;
    CHECK(mprotect(place, 4096, protection) == 0 && pthread_create(&thread, 0, reads, place) == 0);
    return 0;
}

static int start_sleeper(void)
{
    return start_reader(PROT_READ | PROT_EXEC);
}

static int start_slipping(void)
{
    return start_reader(PROT_READ | PROT_WRITE | PROT_EXEC);
}

int main(void)
{
    static const struct scene scenes[] = {{"sleep", start_sleeper}, {"slip", start_slipping}, {0, 0}};
    if (pipe(ends))
        return 1;
    say("ready\n");
    return serve(scenes);
}
