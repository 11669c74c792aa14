/* For tools whose map operations are to be answered in their own processes. */
#pragma once
#include <stdio.h>
#include <string.h>

/* Says on stderr whether another's code is mapped by which this process does map operations itself. */
static inline void say_fast_path(void)
{
    char line[512];
    int mapped = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps && fgets(line, sizeof line, maps))
        mapped |= strstr(line, "-fast-path") != 0;
    if (maps)
        fclose(maps);
    fprintf(stderr, "fast path: %s\n", mapped ? "yes" : "no");
}
