# A script for bcc that prints by bpf_trace_printk, and reads that as most short ones do.
from bcc import BPF

b = BPF(
    text=r"""
TRACEPOINT_PROBE(syscalls, sys_enter_sethostname)
{
    bpf_trace_printk("a name of %d letters", args->len);
    return 0;
}
"""
)
print("attached", flush=True)
try:
    while True:
        task, pid, cpu, flags, time, text = b.trace_fields()
        print(pid, cpu, text.decode(), flush=True)
except KeyboardInterrupt:
    pass
