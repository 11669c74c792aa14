/* A tool that stalls whoever reads its memory: its attributes lie in a page that nobody fills.
 *
 * As many threads as the argument says make a bpf(2) call with such an attribute. Then it says
 * "stalled", makes a map as other tools do, says "served" if that works and "refused ERRNO" if not, and
 * waits for its end. Exits with 3 if it may not use userfaultfd(2). */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { PAGE = 4096, NOT_ALLOWED = 3 };

static void *page;

static void *stall(void *number)
{
    /* Each kind of call reads its attribute, or what that points to. */
    union bpf_attr attr = {.map_type = BPF_MAP_TYPE_HASH, .key_size = 4, .value_size = 8, .max_entries = 8};
    int map = (int)syscall(SYS_bpf, BPF_MAP_CREATE, &attr, sizeof attr);
    memset(&attr, 0, sizeof attr);
    switch ((long)number % 3) {
    case 0:
        syscall(SYS_bpf, BPF_MAP_CREATE, page, sizeof attr);
        break;
    case 1:
        attr.map_fd = map;
        attr.key = (unsigned long)page;
        attr.value = (unsigned long)page;
        syscall(SYS_bpf, BPF_MAP_UPDATE_ELEM, &attr, sizeof attr);
        break;
    default:
        attr.prog_type = BPF_PROG_TYPE_KPROBE;
        attr.insn_cnt = 2;
        attr.insns = (unsigned long)page;
        attr.license = (unsigned long)"GPL";
        syscall(SYS_bpf, BPF_PROG_LOAD, &attr, sizeof attr);
    }
    return 0;
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : 1;
    int faults = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    page = mmap(0, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register place = {{(unsigned long)page, PAGE}, UFFDIO_REGISTER_MODE_MISSING, 0};
    setvbuf(stdout, 0, _IOLBF, 0);
    if (faults < 0 || ioctl(faults, UFFDIO_API, &api) || ioctl(faults, UFFDIO_REGISTER, &place))
        return NOT_ALLOWED;
    for (long i = 0; i < threads; i++) {
        pthread_t thread;
        if (pthread_create(&thread, 0, stall, (void *)i))
            return 1;
    }
    /* As many messages come as readers wait for the page: at least one, as later ones may share it. */
    struct uffd_msg message;
    if (read(faults, &message, sizeof message) != sizeof message)
        return 1;
    puts("stalled");
    union bpf_attr attr = {.map_type = BPF_MAP_TYPE_ARRAY, .key_size = 4, .value_size = 8, .max_entries = 1};
    if (syscall(SYS_bpf, BPF_MAP_CREATE, &attr, sizeof attr) < 0)
        printf("refused %d\n", errno);
    else
        puts("served");
    pause();
}
