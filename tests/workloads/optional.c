/* Loads a program that calls a function of the kernel's where there is one, as libbpf's weak symbols do.
 *
 *   optional ACQUIRE RELEASE
 *
 * These are the numbers of bpf_task_from_pid and bpf_task_release in the kernel's BTF. Says "loaded". */
#include "raw.h"

#define LD_FUNCTION(d, id) INSN(BPF_LD | BPF_DW | BPF_IMM, d, BPF_PSEUDO_BTF_ID, 0, id), INSN(0, 0, 0, 0, 0)
#define CALL_KERNEL(id) INSN(BPF_JMP | BPF_CALL, 0, BPF_PSEUDO_KFUNC_CALL, 0, id)

int main(int argc, char **argv)
{
    if (argc != 3)
        die("two numbers", -EINVAL);
    struct bpf_insn program[] = {
        LD_FUNCTION(2, atoi(argv[1])),
        JEQ(2, 0, 5),
        MOV(1, 1),
        CALL_KERNEL(atoi(argv[1])),
        JEQ(0, 0, 2),
        MOVR(1, 0),
        CALL_KERNEL(atoi(argv[2])),
        MOV(0, 0),
        EXIT,
    };
    good("BPF_PROG_LOAD", LOAD(BPF_PROG_TYPE_TRACEPOINT, program));
    puts("loaded");
    return 0;
}
