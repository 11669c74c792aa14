// Binary logarithms of 64-bit numbers, by halving; the first number is how many follow.
#include "program.h"

static inline u64 log2_of(u64 value)
{
    u32 log = 0;
    u32 half = value >> 32;
    if (half)
        log = 32;
    else
        half = value;
    u32 shift = (half > 0xffff) << 4;
    half >>= shift;
    log |= shift;
    shift = (half > 0xff) << 3;
    half >>= shift;
    log |= shift;
    shift = (half > 0xf) << 2;
    half >>= shift;
    log |= shift;
    shift = (half > 0x3) << 1;
    half >>= shift;
    log |= shift;
    return log | half >> 1;
}

u64 run(u8 *memory)
{
    const u64 *numbers = (const u64 *)memory;
    u32 count = numbers[0];
    u64 result = 0;
    for (u32 i = FROM(1); i <= count && MAY_GO_ON; i++)
        result ^= log2_of(numbers[WITHIN(i, 4096)]);
    return result;
}
