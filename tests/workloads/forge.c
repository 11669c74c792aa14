/* forge NAME ADDRESS FILE: maps what looks like a memory file of Beeline's, called NAME and filled with FILE, at
 * ADDRESS if that is free. Says "ready"; answers each line with "done". Exit code 7 at end of file. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { EXIT_CODE = 7 };
static const size_t LENGTH = 4 << 20; /* as a real one; a short file has nothing behind its end */

static int copy(const char *from, int to)
{
    static char bytes[1 << 16];
    int file = open(from, O_RDONLY);
    ssize_t length = 0;
    while (file >= 0 && (length = read(file, bytes, sizeof bytes)) > 0)
        if (write(to, bytes, (size_t)length) != length)
            return -1;
    close(file);
    return file < 0 || length < 0 ? -1 : 0;
}

int main(int argc, char **argv)
{
    char line[16];
    if (argc < 4)
        return 1;
    int memory = memfd_create(argv[1], MFD_CLOEXEC);
    void *place = (void *)strtoul(argv[2], 0, 0);
    if (memory < 0 || copy(argv[3], memory))
        return 2;
    if (mmap(place, LENGTH, PROT_READ | PROT_EXEC, MAP_SHARED | MAP_FIXED_NOREPLACE, memory, 0) == MAP_FAILED
        && mmap(0, LENGTH, PROT_READ | PROT_EXEC, MAP_SHARED, memory, 0) == MAP_FAILED)
        return 3;
    setvbuf(stdout, 0, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin))
        puts("done");
    return EXIT_CODE;
}
