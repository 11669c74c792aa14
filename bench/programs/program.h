// What the programs share. Each defines `run(memory)` and is compiled as it stands for the host, for eBPF and for
// WebAssembly. The kernel's verifier wants to see bounds and ends of loops: FOR_KERNEL gives it both, at the
// least cost that it accepts.
#pragma once

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

#define MIB (1u << 20)

#ifdef FOR_KERNEL

static inline __attribute__((always_inline)) u64 run(u8 *memory);

#define WITHIN(index, size) ((index) & ((size)-1))

// The instruction `may_goto`, for compilers that do not know it: the loop goes on until the kernel has had enough.
#define MAY_GO_ON                                                                                         \
    ({                                                                                                    \
        __label__ enough, on;                                                                             \
        int goes_on = 1;                                                                                  \
        asm volatile goto("1: .byte 0xe5; .byte 0; .long ((%l[enough] - 1b - 8) / 8) & 0xffff; .short 0"  \
                          : : : : enough);                                                                \
        goto on;                                                                                          \
    enough:                                                                                               \
        goes_on = 0;                                                                                      \
    on:;                                                                                                  \
        goes_on;                                                                                          \
    })

// The one global variable, so at the start of its map's value. The last bytes are zero, which the verifier does not know:
// a loop that counts from a constant it would walk to the end.
u8 memory[2 * MIB + 8];
#define FROM(value) ((value) + *(volatile u32 *)(memory + 2 * MIB))

__attribute__((section("socket"), used)) int program(void *packet)
{
    (void)packet;
    return run(memory);
}

#else

u64 run(u8 *memory);

#define WITHIN(index, size) (index)
#define FROM(value) (value)
#define MAY_GO_ON 1

#endif
