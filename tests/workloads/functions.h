/* Type information for raw programs of two functions, `static int f(void)`: the kernel wants it of a program that takes
 * the address of one. */
#include <linux/bpf.h>
#include <linux/btf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What a load of such a program has besides the usual; the second function begins at slot `second`. */
static inline void describe_functions(union bpf_attr *load, struct bpf_func_info functions[2], int second)
{
    static const struct {
        struct btf_header header;
        uint32_t types[3 + 1 + 3 + 3 + 3];
        char names[8];
    } btf = {
        {.magic = BTF_MAGIC, .version = 1, .hdr_len = sizeof(struct btf_header), .type_len = sizeof btf.types,
         .str_off = sizeof btf.types, .str_len = sizeof btf.names},
        {1, BTF_KIND_INT << 24, 4, BTF_INT_SIGNED << 24 | 32, 0, BTF_KIND_FUNC_PROTO << 24, 1,
         5, BTF_KIND_FUNC << 24, 2, 5, BTF_KIND_FUNC << 24, 2},
        "\0int\0f",
    };
    union bpf_attr attr = {.btf = (uintptr_t)&btf, .btf_size = sizeof btf};
    int types = (int)syscall(SYS_bpf, BPF_BTF_LOAD, &attr, sizeof attr);
    if (types < 0) {
        perror("BPF_BTF_LOAD");
        exit(1);
    }
    functions[0] = (struct bpf_func_info){0, 3};
    functions[1] = (struct bpf_func_info){(uint32_t)second, 4};
    load->prog_btf_fd = (uint32_t)types;
    load->func_info_rec_size = sizeof *functions;
    load->func_info = (uintptr_t)functions;
    load->func_info_cnt = 2;
}
