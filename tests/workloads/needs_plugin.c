/* Calls its library's plugin_work ten times, and ends. */
long plugin_work(long n);

int main(void)
{
    for (long n = 0; n < 10; n++)
        plugin_work(n);
    return 0;
}
