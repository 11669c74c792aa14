/* A program that makes a system call fail. */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

SEC("fmod_ret/__x64_sys_sethostname")
int refuse(void *context)
{
	return -1;
}

char LICENSE[] SEC("license") = "GPL";
