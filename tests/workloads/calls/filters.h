/*
 * Seccomp filters by rules in a file. A line is "default ACTION" or "ACTION NAME", with "ARGUMENT OPERATOR VALUE MASKED"
 * behind it for each argument that matters: numbers, but for the name. Names that libseccomp does not know are skipped,
 * as container runtimes do. libseccomp's package for developers need not be installed.
 */
#pragma once
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
extern void *seccomp_init(uint32_t action);
extern int seccomp_attr_set(void *filter, int attribute, uint32_t value);
extern int seccomp_arch_add(void *filter, uint32_t machine);
extern int seccomp_syscall_resolve_name(const char *name);
extern int seccomp_rule_add_array(void *filter, uint32_t action, int call, unsigned int count, const struct scmp_arg_cmp *);
extern int seccomp_load(const void *filter);

static void fail(const char *what, int error)
{
    fprintf(stderr, "%s: %s\n", what, strerror(error));
    exit(1);
}

static void load_rules(const char *file)
{
    enum { UNKNOWN = -1, NO_NEW_PRIVS = 3, ALL_THREADS = 4, I386 = 0x40000003, ARGUMENTS = 6 };
    char line[256], name[64];
    FILE *rules = fopen(file, "r");
    void *filter = 0;
    uint32_t action;
    int error, at, more;
    if (!rules)
        fail(file, errno);
    while (fgets(line, sizeof line, rules)) {
        struct scmp_arg_cmp is[ARGUMENTS];
        unsigned count = 0;
        if (sscanf(line, "default %u", &action) == 1) {
            filter = seccomp_init(action);
            /* Container runtimes do without, too. */
            if (geteuid() == 0)
                seccomp_attr_set(filter, NO_NEW_PRIVS, 0);
            seccomp_attr_set(filter, ALL_THREADS, 1);
            seccomp_arch_add(filter, I386);
            continue;
        }
        if (sscanf(line, "%u %63s%n", &action, name, &at) != 2)
            fail(line, EINVAL);
        while (count < ARGUMENTS && sscanf(line + at, "%u %d %lu %lu%n", &is[count].arg, &is[count].op,
                                           &is[count].value, &is[count].masked, &more) == 4) {
            at += more;
            count++;
        }
        int call = seccomp_syscall_resolve_name(name);
        if (call == UNKNOWN)
            continue;
        error = seccomp_rule_add_array(filter, action, call, count, is);
        /* The action is the default anyway, or the rule is there already. */
        if (error && error != -EACCES && error != -EEXIST)
            fail(line, -error);
    }
    fclose(rules);
    if ((error = seccomp_load(filter)))
        fail("seccomp_load", -error);
}
