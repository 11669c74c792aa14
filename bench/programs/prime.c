// How many primes there are below ten thousand, by division.
#include "program.h"

u64 run(u8 *memory)
{
    (void)memory;
    u32 primes = 0;
    for (u32 number = FROM(2); number < 10000 && MAY_GO_ON; number++) {
        u32 is_prime = 1;
        for (u32 divisor = FROM(2); divisor * divisor <= number && MAY_GO_ON; divisor++) {
            if (number % divisor == 0) {
                is_prime = 0;
                break;
            }
        }
        primes += is_prime;
    }
    return primes;
}
