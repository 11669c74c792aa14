/*
 * Puts itself under a seccomp filter and runs a program: filtered RULES PROGRAM ARGUMENT...
 *
 * A line of RULES is "default ACTION", "ACTION NAME", or "ACTION NAME ARGUMENT OPERATOR VALUE [MASKED]", of numbers but
 * for the name; several filters are separated by lines "load". Names that libseccomp does not know are skipped, as
 * container runtimes do. libseccomp's package for developers need not be installed.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct scmp_arg_cmp {
    unsigned int arg;
    int op;
    uint64_t value, masked;
};
enum { UNKNOWN = -1, NO_NEW_PRIVS = 3, X86 = 0x40000003 };
extern void *seccomp_init(uint32_t action);
extern int seccomp_attr_set(void *filter, int attribute, uint32_t value);
extern int seccomp_arch_add(void *filter, uint32_t machine);
extern int seccomp_syscall_resolve_name(const char *name);
extern int seccomp_rule_add_array(void *filter, uint32_t action, int call, unsigned int count, const struct scmp_arg_cmp *);
extern int seccomp_load(const void *filter);

static void fail(const char *what, int error)
{
    fprintf(stderr, "filtered: %s: %s\n", what, strerror(error));
    exit(1);
}

static void load(void *filter)
{
    int error = filter ? seccomp_load(filter) : 0;
    if (error)
        fail("load", -error);
}

int main(int count, char **words)
{
    char line[256], name[64];
    FILE *rules = count > 2 ? fopen(words[1], "r") : 0;
    void *filter = 0;
    if (!rules)
        fail("rules", errno);
    while (fgets(line, sizeof line, rules)) {
        uint32_t action;
        struct scmp_arg_cmp is = {0, 0, 0, 0};
        if (!strncmp(line, "load", 4)) {
            load(filter);
            filter = 0;
        } else if (sscanf(line, "default %u", &action) == 1) {
            filter = seccomp_init(action);
            /* As container runtimes do where they may. */
            if (geteuid() == 0)
                seccomp_attr_set(filter, NO_NEW_PRIVS, 0);
            seccomp_arch_add(filter, X86);
        } else {
            int got = sscanf(line, "%u %63s %u %d %lu %lu", &action, name, &is.arg, &is.op, &is.value, &is.masked);
            int call = got >= 2 ? seccomp_syscall_resolve_name(name) : UNKNOWN;
            if (call == UNKNOWN)
                continue;
            int error = seccomp_rule_add_array(filter, action, call, got > 2, &is);
            /* The action is the default anyway. */
            if (error && error != -EACCES && error != -EEXIST)
                fail(line, -error);
        }
    }
    load(filter);
    execv(words[2], words + 2);
    fail(words[2], errno);
}
