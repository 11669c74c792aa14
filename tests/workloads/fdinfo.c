/* Prints what /proc/self/fdinfo says of a map and of a program, without what differs from run to run. */
#include "raw.h"

static void print(const char *what, int fd)
{
    static const char *varying[] = {"pos:", "flags:", "mnt_id:", "ino:", "memlock:", "map_id:", "prog_id:"};
    char path[40], line[200];
    snprintf(path, sizeof path, "/proc/self/fdinfo/%d", fd);
    FILE *file = fopen(path, "r");
    if (!file)
        die(path, -errno);
    while (fgets(line, sizeof line, file)) {
        int varies = 0;
        for (unsigned i = 0; i < LENGTH(varying); i++)
            varies |= strncmp(line, varying[i], strlen(varying[i])) == 0;
        if (!varies)
            printf("%s: %s", what, line);
    }
    fclose(file);
}

int main(void)
{
    static const struct bpf_insn program[] = {MOV(0, 0), EXIT};
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.map_type = BPF_MAP_TYPE_HASH;
    attr.key_size = 4;
    attr.value_size = 8;
    attr.max_entries = 5;
    attr.map_flags = BPF_F_NO_PREALLOC;
    print("map", good("BPF_MAP_CREATE", bpf(BPF_MAP_CREATE, &attr)));
    print("program", good("BPF_PROG_LOAD", LOAD(BPF_PROG_TYPE_KPROBE, program)));
    return 0;
}
