// A copy of one MiB to the MiB behind it, byte by byte.
#include "program.h"

u64 run(u8 *memory)
{
    for (u32 i = FROM(0); i < MIB && MAY_GO_ON; i++)
        memory[MIB + WITHIN(i, MIB)] = memory[WITHIN(i, MIB)];
    return 0;
}
