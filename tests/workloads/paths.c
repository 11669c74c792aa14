/* What a tool starts, and makes calls with paths. `paths CALLS` makes so many of each kind, alone and then in a
 * second thread, and prints how often it has waited: "alone: open 3 switches". */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static long calls;

static void open_file(void) { close(open("/etc/passwd", O_RDONLY)); }
static void open_relative(void) { close(open("etc/passwd", O_RDONLY)); }
static void stat_file(void) { struct stat one; stat("/etc/passwd", &one); }
static void statx_file(void) { struct statx one; statx(AT_FDCWD, "/etc/passwd", 0, STATX_ALL, &one); }
static void access_file(void) { access("/etc/passwd", R_OK); }
static void read_link(void) { char room[64]; readlink("/no/such/link", room, sizeof room); }

static const struct { const char *name; void (*call)(void); } kinds[] = {
    {"open", open_file}, {"relative", open_relative}, {"stat", stat_file}, {"statx", statx_file},
    {"access", access_file}, {"readlink", read_link},
};

static long switches(void)
{
    struct rusage used;
    getrusage(RUSAGE_THREAD, &used);
    return used.ru_nvcsw;
}

static void *all(void *what)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        long before = switches();
        for (long n = 0; n < calls; n++)
            kinds[i].call();
        printf("%s %s %ld switches\n", (char *)what, kinds[i].name, switches() - before);
    }
    return NULL;
}

int main(int count, char **arguments)
{
    if (count != 2)
        return 2;
    calls = atol(arguments[1]);
    if (chdir("/") != 0)
        return 1;
    all("alone:");
    pthread_t thread;
    pthread_create(&thread, NULL, all, "beside:");
    pthread_join(thread, NULL);
    return 0;
}
