/* Loads the library named by its argument before it says "ready"; then as counts.c. */
#include <dlfcn.h>
#include <stdio.h>

enum { EXIT_CODE = 7 };

int main(int argc, char **argv)
{
    char line[16];
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : 0;
    long (*work)(long) = library ? (long (*)(long))dlsym(library, "plugin_work") : 0;
    if (!work)
        return 1;
    setvbuf(stdout, 0, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        long sum = 0;
        for (long i = 0; i < 300; i++)
            sum += work(i);
        printf("done %ld\n", sum);
    }
    return EXIT_CODE;
}
