/* Makes a call by an instruction with no room around it for a jump. */
#include "scenes.h"

long tight(long number);
__asm__(".type tight, @function\n"
        "tight: xchg %eax, %edi\n"
        "syscall\n"
        "ret\n"
        ".size tight, . - tight\n"
        ".type behind, @function\n"
        "behind: ret\n"
        ".size behind, . - behind");

static int calls(void)
{
    CHECK(tight(SYS_getppid) == getppid());
    return 0;
}

int main(void)
{
    static const struct scene scenes[] = {{"calls", calls}, {0, 0}};
    say("ready\n");
    return serve(scenes);
}
