/* Attaches a program that changes what a system call returns.
 *
 *   modifies ID
 *
 * ID is that of the call's function in the kernel's BTF. Says "attached", or ends with the errno of
 * BPF_RAW_TRACEPOINT_OPEN. */
#include <errno.h>
#include <linux/bpf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int bpf(int command, union bpf_attr *attr)
{
    return (int)syscall(SYS_bpf, command, attr, sizeof *attr);
}

int main(int argc, char **argv)
{
    static const struct bpf_insn program[] = {
        {.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .imm = -EPERM},
        {.code = BPF_JMP | BPF_EXIT},
    };
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.prog_type = BPF_PROG_TYPE_TRACING;
    attr.expected_attach_type = BPF_MODIFY_RETURN;
    attr.attach_btf_id = argc > 1 ? (uint32_t)atoi(argv[1]) : 0;
    attr.insns = (uintptr_t)program;
    attr.insn_cnt = sizeof program / sizeof *program;
    attr.license = (uintptr_t) "GPL";
    int loaded = bpf(BPF_PROG_LOAD, &attr);
    if (loaded < 0) {
        perror("BPF_PROG_LOAD");
        return 100;
    }
    memset(&attr, 0, sizeof attr);
    attr.raw_tracepoint.prog_fd = (uint32_t)loaded;
    if (bpf(BPF_RAW_TRACEPOINT_OPEN, &attr) < 0)
        return errno;
    puts("attached");
    return 0;
}
