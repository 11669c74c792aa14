// Compares two strings, a MiB apart, that end by zero; for two programs that differ in what they are given.
#include "program.h"

u64 run(u8 *memory)
{
    const signed char *one = (const signed char *)memory;
    const signed char *other = one + MIB;
    u32 i = FROM(0);
    while (one[WITHIN(i, MIB)] && one[WITHIN(i, MIB)] == other[WITHIN(i, MIB)] && MAY_GO_ON)
        i++;
    return (long long)(one[WITHIN(i, MIB)] - other[WITHIN(i, MIB)]);
}
