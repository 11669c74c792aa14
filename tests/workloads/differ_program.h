/* The program of differ.c: an interpreter of orders, assembled for the map of the round. Part of that file. */


static struct bpf_insn code[1024];
static int length;

static void put(uint8_t op, uint8_t dst, uint8_t src, int16_t off, int32_t imm)
{
    code[length++] = (struct bpf_insn){.code = op, .dst_reg = dst, .src_reg = src, .off = off, .imm = imm};
}

static void put_map(int reg, int fd, int source)
{
    put(0x18, reg, source, 0, fd);
    put(0, 0, 0, 0, 0);
}

static void put_move(int dst, int src) { put(0xbf, dst, src, 0, 0); }
static void put_add(int reg, int imm) { put(0x07, reg, 0, 0, imm); }
static void put_call(int helper) { put(0x85, 0, 0, 0, helper); }

/* dst = r7 + the offset of a field of the order */
static void put_field(int dst, size_t offset)
{
    put_move(dst, 7);
    put_add(dst, offset);
}

/* Copies value_size bytes from r0 to the outcome. */
static void put_copy(void)
{
    static const struct { uint8_t size, load, store; } STEPS[] = {
        {8, 0x79, 0x7b}, {4, 0x61, 0x63}, {2, 0x69, 0x6b}, {1, 0x71, 0x73}};
    uint32_t at = 0;
    for (int i = 0; i < 4; i++)
        for (; value_size - at >= STEPS[i].size; at += STEPS[i].size) {
            put(STEPS[i].load, 1, 0, at, 0);
            put(STEPS[i].store, 8, 1, offsetof(struct outcome, value) + at, 0);
        }
}

static void put_argument_map(void) { put_map(1, map, BPF_PSEUDO_MAP_FD); }

static void put_keyed(int what)
{
    put_argument_map();
    put_field(2, offsetof(struct order, key));
    if (what == UPDATE) {
        put_field(3, offsetof(struct order, value));
        put(0x79, 4, 7, offsetof(struct order, flags), 0);
        put_call(2);
    } else if (what == DELETE) {
        put_call(3);
    } else {
        put_call(1);
        int skip = length;
        put(0x15, 0, 0, 0, 0); /* if r0 == 0 */
        if (what == MODIFY) {
            put(0x71, 1, 0, 0, 0);
            put(0x71, 2, 7, offsetof(struct order, value), 0);
            put(0x0f, 1, 2, 0, 0);
            put(0x73, 0, 1, 0, 0);
            if (value_size >= 8) {
                put(0x79, 1, 7, offsetof(struct order, value), 0);
                put(0xdb, 0, 1, 0, 0); /* lock *(u64 *)r0 += r1 */
            }
        }
        put_copy();
        put(0xb7, 0, 0, 0, 1);
        code[skip].off = length - skip - 1;
    }
}

static void put_pile(int what)
{
    put_argument_map();
    if (kind->family == BLOOM && what == PEEK)
        put_field(2, offsetof(struct order, value));
    else if (what == PUSH)
        put_field(2, offsetof(struct order, value));
    else {
        put_move(2, 8);
        put_add(2, offsetof(struct outcome, value));
    }
    if (what == PUSH)
        put(0x79, 3, 7, offsetof(struct order, flags), 0);
    put_call(what == PUSH ? 87 : what == POP ? 88 : 89);
}

/* The size of records that are reserved is fixed in the program. */
enum { RESERVED = 40 };

static void put_ring(int what)
{
    put_argument_map();
    if (what == OUTPUT) {
        put_field(2, offsetof(struct order, key)); /* key and value are 128 bytes together */
        put(0x61, 3, 7, offsetof(struct order, size), 0);
        put(0x57, 3, 0, 0, 127);
        put(0x79, 4, 7, offsetof(struct order, flags), 0);
        put_call(130);
    } else if (what == QUERY) {
        put(0x79, 2, 7, offsetof(struct order, flags), 0);
        put_call(134);
    } else {
        put(0xb7, 2, 0, 0, RESERVED);
        put(0xb7, 3, 0, 0, 0);
        put_call(131);
        int skip = length;
        put(0x15, 0, 0, 0, 0);
        for (int at = 0; at < RESERVED; at += 8) {
            put(0x79, 1, 7, offsetof(struct order, value) + at % LONGEST, 0);
            put(0x7b, 0, 1, at, 0);
        }
        put_move(1, 0);
        put(0x79, 2, 7, offsetof(struct order, flags), 0);
        put_call(what == SUBMIT ? 132 : 133);
        put(0xb7, 0, 0, 0, 1);
        code[skip].off = length - skip - 1;
    }
}

static int orders(void)
{
    return kind->family == RING ? RING_ORDERS : kind->family >= PILE ? PILE_ORDERS : KEYED_ORDERS;
}

static int is_served(int what) { return !(kind->family == BLOOM && what == POP); }

static void assemble(void)
{
    int to_next[8], count = 0;
    length = 0;
    put_map(7, script, BPF_PSEUDO_MAP_VALUE);
    put_map(8, results, BPF_PSEUDO_MAP_VALUE);
    put(0xb7, 6, 0, 0, SCRIPT);
    int loop = length;
    for (int what = 0; what < orders(); what++) {
        if (!is_served(what))
            continue;
        put(0x61, 1, 7, offsetof(struct order, what), 0);
        int skip = length;
        put(0x55, 1, 0, 0, what); /* if r1 != what */
        kind->family == RING ? put_ring(what) : kind->family >= PILE ? put_pile(what) : put_keyed(what);
        put(0x7b, 8, 0, offsetof(struct outcome, ret), 0);
        to_next[count++] = length;
        put(0x05, 0, 0, 0, 0);
        code[skip].off = length - skip - 1;
    }
    for (int i = 0; i < count; i++)
        code[to_next[i]].off = length - to_next[i] - 1;
    put_add(7, sizeof(struct order));
    put_add(8, sizeof(struct outcome));
    put_add(6, -1);
    put(0x55, 6, 0, loop - length - 1, 0);
    put(0xb7, 0, 0, 0, 0);
    put(0x95, 0, 0, 0, 0);
}

static void load(void)
{
    static char log[1 << 16];
    assemble();
    union bpf_attr attr = {.prog_type = BPF_PROG_TYPE_RAW_TRACEPOINT,
                           .insns = (uintptr_t)code,
                           .insn_cnt = length,
                           .license = (uintptr_t) "GPL"};
    program = bpf(BPF_PROG_LOAD, &attr);
    if (program >= 0)
        return;
    attr.log_buf = (uintptr_t)log;
    attr.log_size = sizeof log;
    attr.log_level = 1;
    bpf(BPF_PROG_LOAD, &attr);
    fputs(log, stderr);
    errno = -program;
    die("no program for the operations");
}
