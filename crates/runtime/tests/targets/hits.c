// After a line of its input four threads call hit() until the next line; then it prints how often they have.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

#define THREADS 4

static volatile long sink;
static atomic_int stop;

__attribute__((noinline)) void hit(long value)
{
    sink += value;
}

static void *call(void *count)
{
    long calls = 0;
    while (!stop)
        hit(calls++);
    *(long *)count = calls;
    return NULL;
}

int main(void)
{
    puts("ready");
    fflush(stdout);
    while (getchar() != EOF) {
        pthread_t threads[THREADS];
        long counts[THREADS], sum = 0;
        stop = 0;
        for (int i = 0; i < THREADS; i++)
            pthread_create(&threads[i], NULL, call, &counts[i]);
        int next = getchar();
        stop = 1;
        for (int i = 0; i < THREADS; i++) {
            pthread_join(threads[i], NULL);
            sum += counts[i];
        }
        printf("%ld\n", sum);
        fflush(stdout);
        if (next == EOF)
            break;
    }
    return 0;
}
