/* Counts as counts.c does, or, with the argument "attack", harms what Beeline shares with it: for each line on its input it
 * calls wl_add once and then overwrites memory files of Beeline's that it may write, those with the line's text in their names,
 * for as long as it runs. It answers "attacks N", the number of files. */
#define main counts_main
#include "counts.c"
#undef main
#include <stdlib.h>

enum { MOST = 256 };

static struct { uint64_t *start, *end; } files[MOST];
static int count;

/* Finds the files whose names have the text in them. */
static int find(const char *text)
{
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    if (!maps)
        return 0;
    count = 0;
    while (count < MOST && fgets(line, sizeof line, maps)) {
        unsigned long start, end;
        char permissions[8];
        char *name = strstr(line, "/memfd:beeline-");
        if (!name || !strstr(name, text) || sscanf(line, "%lx-%lx %7s", &start, &end, permissions) != 3)
            continue;
        if (permissions[1] != 'w')
            continue;
        files[count].start = (uint64_t *)start;
        files[count++].end = (uint64_t *)end;
    }
    fclose(maps);
    return count;
}

static void *overwrite(void *unused)
{
    uint64_t number = 88172645463325252u;
    for (;;) {
        for (int i = 0; i < count; i++) {
            for (volatile uint64_t *word = files[i].start; word < files[i].end; word++) {
                number ^= number << 13;
                number ^= number >> 7;
                number ^= number << 17;
                *word = number;
            }
        }
    }
    return unused;
}

int main(int argc, char **argv)
{
    if (argc < 2 || strcmp(argv[1], "attack"))
        return counts_main(argc, argv);
    setvbuf(stdout, 0, _IONBF, 0);
    puts("ready");
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        wl_add(1, 2);
        printf("attacks %d\n", find(line));
        pthread_t thread;
        if (count && pthread_create(&thread, 0, overwrite, 0))
            return 1;
    }
    return EXIT_CODE;
}
