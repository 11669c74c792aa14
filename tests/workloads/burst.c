/* Prints a burst of lines by bpf_trace_printk while nobody reads trace_pipe, then reads it until each line is read or told as lost:
 * "printed N, read R, lost L". Argument: how many thousand lines. */
#include "raw.h"

enum { TURNS = 1000, PATIENCE = 60 };

/* Prints "p" and says nothing, a thousand times. */
static int printer(void)
{
    struct bpf_insn body[] = {
        MOV(6, 0),
        ST(BPF_W, 10, -8, 'p'),
        MOVR(1, 10), ADD(1, -8), MOV(2, 2), CALL(BPF_FUNC_trace_printk),
        ADD(6, 1), INSN(BPF_JMP | BPF_JLT | BPF_K, 6, 0, -7, TURNS),
        MOV(0, 0), EXIT,
    };
    union bpf_attr load = program_attr(BPF_PROG_TYPE_RAW_TRACEPOINT, body, LENGTH(body));
    /* Every turn of the loop is in the log, which would be too long. */
    load.log_buf = load.log_size = load.log_level = 0;
    return loaded(bpf(BPF_PROG_LOAD, &load));
}

int main(int argc, char **argv)
{
    FILE *pipe = fopen("/sys/kernel/tracing/trace_pipe", "r");
    if (!pipe || argc != 2)
        die("trace_pipe", -errno);
    int program = printer();
    long printed = 0, read = 0, lost = 0;
    for (long n = strtol(argv[1], 0, 10); n > 0; n--) {
        run_once(program);
        printed += TURNS;
    }
    /* Whoever waits for a line that is never told is ended by this. */
    alarm(PATIENCE);
    char line[512];
    while (read + lost < printed && fgets(line, sizeof line, pipe)) {
        const char *told = strstr(line, " [LOST ");
        if (told)
            lost += strtol(told + strlen(" [LOST "), 0, 10);
        else if (strstr(line, "bpf_trace_printk: p"))
            read++;
    }
    printf("printed %ld, read %ld, lost %ld\n", printed, read, lost);
    return 0;
}
