// A plugin for late.c whose exceptions pass through the program's own function.
extern "C" long back(long n)
{
    if (n % 2)
        throw n;
    return n;
}

extern "C" long plugin_runs(long (*call)(long (*)(long), long))
{
    long sum = 0;
    for (long n = 0; n < 50; n++) {
        try {
            sum += call(back, n);
        } catch (long thrown) {
            sum -= thrown;
        }
    }
    return sum;
}
