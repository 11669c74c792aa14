/* A tool made of everything that object files have: loads every program, attaches those whose section says where, and says what came of
 * each: what the load came to, the digest of the program as it was loaded, and what attaching it came to. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <bpf/bpf.h>
#include <bpf/libbpf.h>

static int say_nothing(enum libbpf_print_level level, const char *format, va_list arguments) {
    return 0;
}

static void report(const char *file, struct bpf_program *program, int loaded) {
    struct bpf_prog_info info;
    unsigned length = sizeof info;
    printf("%s %s: load %d", file, bpf_program__name(program), loaded);
    if (loaded == 0) {
        memset(&info, 0, sizeof info);
        if (bpf_obj_get_info_by_fd(bpf_program__fd(program), &info, &length))
            printf(" info %d", -errno);
        for (unsigned byte = 0; byte < sizeof info.tag; byte++)
            printf("%s%02x", byte ? "" : " ", info.tag[byte]);
        struct bpf_link *link = bpf_program__attach(program);
        printf(" attach %d", link ? 0 : -errno);
        bpf_link__destroy(link);
    }
    puts("");
}

/* Opens a file and loads its programs, or only one of them: those that tools choose between do not all fit one kernel. */
static struct bpf_object *load(const char *file, const char *only, int *result) {
    struct bpf_object *object = bpf_object__open_file(file, 0);
    struct bpf_program *program;
    if (!object) {
        *result = -errno;
        return 0;
    }
    bpf_object__for_each_program(program, object)
        bpf_program__set_autoload(program, !only || !strcmp(bpf_program__name(program), only));
    *result = bpf_object__load(object);
    return object;
}

static void load_each(const char *path, const char *file, struct bpf_object *all) {
    struct bpf_program *program, *other;
    int result;
    bpf_object__for_each_program(program, all) {
        const char *name = bpf_program__name(program);
        struct bpf_object *object = load(path, name, &result);
        bpf_object__for_each_program(other, object)
            if (!strcmp(bpf_program__name(other), name))
                report(file, other, result);
        bpf_object__close(object);
    }
}

int main(int argc, char **argv) {
    struct bpf_program *program;
    int result;
    libbpf_set_print(say_nothing);
    setvbuf(stdout, 0, _IOLBF, 0);
    for (int n = 1; n < argc; n++) {
        const char *slash = strrchr(argv[n], '/');
        const char *file = slash ? slash + 1 : argv[n];
        struct bpf_object *object = load(argv[n], 0, &result);
        if (!object) {
            printf("%s: open %d\n", file, result);
            continue;
        }
        if (result == 0) {
            bpf_object__for_each_program(program, object)
                report(file, program, 0);
        } else {
            load_each(argv[n], file, object);
        }
        bpf_object__close(object);
    }
    return 0;
}
