/* Asks for its parent as often as its argument says, and ends with that number for its exit code. With a second argument
 * it must have become root by its file's mode. */
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    int times = count > 1 ? atoi(arguments[1]) : 0;
    for (int i = 0; i < times; i++)
        syscall(SYS_getppid);
    if (count > 2 && (geteuid() != 0 || getuid() == 0))
        return 99;
    return times;
}
