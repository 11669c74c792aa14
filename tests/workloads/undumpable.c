/* A process whose memory the kernel shows to nobody but the privileged. */
#include <sys/prctl.h>
#include <unistd.h>

int main(void)
{
    char line[16];
    if (prctl(PR_SET_DUMPABLE, 0) || write(1, "ready\n", 6) != 6)
        return 1;
    while (read(0, line, sizeof line) > 0)
        ;
    return 7;
}
