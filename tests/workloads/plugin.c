/* A library that host.c loads with dlopen: 300 calls of plugin_work in a round. */
__attribute__((noinline)) long plugin_work(long n)
{
    __asm__ volatile("" : "+r"(n));
    return n * 5;
}
