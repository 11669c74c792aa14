// A choice among 64 values, for each of the numbers; the first number is how many follow.
#include "program.h"

static inline u32 choice(u32 number)
{
    switch (number) {
    case 0:
        return 10;
    case 1:
        return 20;
    case 2:
        return 12;
    case 3:
        return 31;
    case 4:
        return 50;
    case 5:
        return 55;
    case 6:
        return 19;
    case 7:
        return 56;
    case 8:
        return 43;
    case 9:
        return 45;
    case 10:
        return 0;
    case 11:
        return 21;
    case 12:
        return 1;
    case 13:
        return 16;
    case 14:
        return 8;
    case 15:
        return 22;
    case 16:
        return 11;
    case 17:
        return 54;
    case 18:
        return 53;
    case 19:
        return 42;
    case 20:
        return 24;
    case 21:
        return 29;
    case 22:
        return 18;
    case 23:
        return 33;
    case 24:
        return 30;
    case 25:
        return 28;
    case 26:
        return 49;
    case 27:
        return 61;
    case 28:
        return 44;
    case 29:
        return 40;
    case 30:
        return 17;
    case 31:
        return 48;
    case 32:
        return 38;
    case 33:
        return 59;
    case 34:
        return 62;
    case 35:
        return 39;
    case 36:
        return 14;
    case 37:
        return 7;
    case 38:
        return 36;
    case 39:
        return 51;
    case 40:
        return 46;
    case 41:
        return 35;
    case 42:
        return 47;
    case 43:
        return 15;
    case 44:
        return 57;
    case 45:
        return 26;
    case 46:
        return 27;
    case 47:
        return 5;
    case 48:
        return 2;
    case 49:
        return 13;
    case 50:
        return 32;
    case 51:
        return 58;
    case 52:
        return 37;
    case 53:
        return 23;
    case 54:
        return 6;
    case 55:
        return 34;
    case 56:
        return 52;
    case 57:
        return 4;
    case 58:
        return 3;
    case 59:
        return 63;
    case 60:
        return 25;
    case 61:
        return 9;
    case 62:
        return 60;
    case 63:
        return 41;
    default:
        return 114514;
    }
}

u64 run(u8 *memory)
{
    const u32 *numbers = (const u32 *)memory;
    u32 count = numbers[0];
    u32 result = 0;
    for (u32 i = FROM(1); i <= count && MAY_GO_ON; i++)
        result ^= choice(numbers[WITHIN(i, 4096)]);
    return result;
}
