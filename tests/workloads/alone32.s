# A 32-bit program that sleeps in pause() until it is killed.
    .globl _start
    .type _start, @function
_start:
    mov $29, %eax
    int $0x80
    jmp _start
    .size _start, .-_start
