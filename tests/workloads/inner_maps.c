/* Inner maps live as long as something leads to them: a descriptor, or an element of an outer map that lives itself. Says
 * after each step which of them can still be opened by their ids. */
#include "raw.h"
#include <time.h>

enum { INNER = 3 };

static uint32_t ids[INNER];

static int open_by(uint32_t id) { return fd_of_id(BPF_MAP_GET_FD_BY_ID, id); }

/* The kernel frees what was in an outer map a moment after its end. */
static int after_a_moment(uint32_t id, int is_to_end)
{
    int map = open_by(id);
    for (int turn = 0; is_to_end && map >= 0 && turn < 20; turn++) {
        close(map);
        nanosleep(&(struct timespec){0, 20000000}, 0);
        map = open_by(id);
    }
    if (map >= 0)
        close(map);
    return map < 0 ? map : 0;
}

/* `left` has a bit for each that is expected to be there. */
static void say(const char *step, unsigned left)
{
    printf("%s:", step);
    for (int n = 0; n < INNER; n++)
        printf(" %d", after_a_moment(ids[n], !(left >> n & 1)));
    printf("\n");
}

static int is_listed(uint32_t id)
{
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    while (bpf(BPF_MAP_GET_NEXT_ID, &attr) == 0) {
        if (attr.next_id == id)
            return 1;
        attr.start_id = attr.next_id;
    }
    return 0;
}

static void with(const char *name, uint32_t type)
{
    int inner[INNER];
    for (int n = 0; n < INNER; n++) {
        inner[n] = good("inner map", create_map(BPF_MAP_TYPE_ARRAY, 4, 8, 1, 0, 0));
        ids[n] = id_of(inner[n], 0);
    }
    int outer = good("outer map", create_map(type, 4, 4, INNER, 0, inner[0]));
    printf("%s\n", name);
    for (uint32_t n = 0; n < INNER; n++)
        good("element", update_at(outer, n, (uint32_t)inner[n]));
    for (int n = 0; n < INNER; n++)
        close(inner[n]);
    say("closed", 7);
    good("delete", delete_at(outer, 1));
    say("deleted", 5);
    int opened = good("by id", open_by(ids[2]));
    good("replace", update_at(outer, 0, (uint32_t)opened));
    say("replaced", 4);
    close(outer);
    say("the outer map closed", 4);
    printf("listed: %d\n", is_listed(ids[2]));
    close(opened);
    say("all closed", 0);
    printf("listed: %d\n", is_listed(ids[2]));
}

int main(void)
{
    with("array of maps", BPF_MAP_TYPE_ARRAY_OF_MAPS);
    with("hash of maps", BPF_MAP_TYPE_HASH_OF_MAPS);
    return 0;
}
