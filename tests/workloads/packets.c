/* Test runs of programs for packets, with a transcript.
 *
 *     packets SEED ROUNDS all|few|unserved
 *
 * Runs programs of all types that have packets by BPF_PROG_TEST_RUN: what they see of a packet, each field of their
 * context, loads and stores, what a test run refuses, and ROUNDS random programs of helper calls for each type, all from
 * SEED; with "few", only some of the others. Whoever runs it, the same transcript must come out. With "unserved", it
 * does what Beeline does not serve. */
#include "raw.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <signal.h>
#include <stddef.h>
#include <sys/time.h>

enum { PACKET = 74, SLOTS = 32, MOST = 8192 };

struct type {
    const char *name;
    uint32_t type;
    int has_link_header, has_data, is_xdp;
};
static const struct type TYPES[] = {
    {"xdp", BPF_PROG_TYPE_XDP, 1, 1, 1},
    {"sched_cls", BPF_PROG_TYPE_SCHED_CLS, 1, 1, 0},
    {"sched_act", BPF_PROG_TYPE_SCHED_ACT, 1, 1, 0},
    {"socket_filter", BPF_PROG_TYPE_SOCKET_FILTER, 0, 0, 0},
    {"cgroup_skb", BPF_PROG_TYPE_CGROUP_SKB, 0, 1, 0},
    {"lwt_in", BPF_PROG_TYPE_LWT_IN, 0, 1, 0},
    {"lwt_out", BPF_PROG_TYPE_LWT_OUT, 0, 1, 0},
    {"lwt_xmit", BPF_PROG_TYPE_LWT_XMIT, 0, 1, 0},
};

static uint8_t packet[MOST], out[MOST];
/* Where programs put what they see. */
static int results;
static uint64_t seen[SLOTS];

static uint64_t state;
static uint32_t any(uint32_t below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)((state * 0x2545f4914f6cdd1d) >> 33) % below;
}

static void make_packet(uint16_t protocol)
{
    for (int i = 0; i < MOST; i++)
        packet[i] = (uint8_t)(i * 7 + i / 256);
    memset(packet, 0, 12);
    packet[12] = (uint8_t)(protocol >> 8);
    packet[13] = (uint8_t)protocol;
    packet[14] = protocol == ETH_P_IPV6 ? 0x60 : 0x45;
}

static uint32_t digest(const uint8_t *bytes, size_t len)
{
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < len; i++)
        hash = (hash ^ bytes[i]) * 16777619u;
    return hash;
}

/* A program that is being put together. */
static struct bpf_insn body[512];
static size_t length;
static void put(struct bpf_insn insn) { body[length++] = insn; }
#define PUT(...)                                                                                                       \
    do {                                                                                                               \
        const struct bpf_insn more[] = {__VA_ARGS__};                                                                  \
        for (size_t more_i = 0; more_i < LENGTH(more); more_i++)                                                       \
            put(more[more_i]);                                                                                         \
    } while (0)
static void begin(void)
{
    length = 0;
    PUT(MOVR(6, 1));
}
/* Stores a register other than r1 where the tool can read it. */
static void keep(int reg, int slot) { PUT(LD_VALUE(1, results, slot * 8), STX(BPF_DW, 1, reg, 0)); }

/* One test run of a program, and all that comes out of it, on one line. */
static union bpf_attr run_on(int program, uint32_t size)
{
    union bpf_attr attr;
    memset(&attr, 0, sizeof attr);
    attr.test.prog_fd = (uint32_t)program;
    attr.test.data_in = (uintptr_t)packet;
    attr.test.data_size_in = size;
    attr.test.data_out = (uintptr_t)out;
    attr.test.data_size_out = sizeof out;
    return attr;
}
static int run(union bpf_attr *attr)
{
    uint32_t key = 0;
    memset(seen, 0, sizeof seen);
    memset(out, 0xee, sizeof out);
    good("update", update(results, &key, seen, BPF_ANY));
    attr->test.retval = 0xabababab;
    int result = bpf(BPF_PROG_TEST_RUN, attr);
    good("look-up", lookup(results, &key, seen));
    printf(" %d ret %u size %u out %08x", result, attr->test.retval, attr->test.data_size_out, digest(out, sizeof out));
    return result;
}
static void show_seen(int count)
{
    for (int i = 0; i < count; i++)
        printf(" %llx", (unsigned long long)seen[i]);
}

/* Loads the program that was put together; says so where the verifier does not take it. */
static int load(const struct type *type)
{
    int program = load_program(type->type, type->type == BPF_PROG_TYPE_CGROUP_SKB ? BPF_CGROUP_INET_EGRESS : 0, body, length);
    if (program < 0)
        printf(" not loaded %d", program);
    return program;
}
static int load_and_run(const struct type *type, uint32_t size)
{
    int program = load(type);
    if (program < 0)
        return program;
    union bpf_attr attr = run_on(program, size);
    run(&attr);
    return close(program);
}

/* r2 = data, r3 = data_end; jumps over `over` more instructions unless the packet has `bytes` bytes. */
static void bounds(const struct type *type, int bytes, int over)
{
    int data = type->is_xdp ? (int)offsetof(struct xdp_md, data) : (int)offsetof(struct __sk_buff, data);
    int end = type->is_xdp ? (int)offsetof(struct xdp_md, data_end) : (int)offsetof(struct __sk_buff, data_end);
    PUT(LDX(BPF_W, 2, 6, data), LDX(BPF_W, 3, 6, end), MOVR(4, 2), ADD(4, bytes),
        INSN(BPF_JMP | BPF_JGT | BPF_X, 4, 3, over, 0));
}

static void sees_packets(const struct type *type, uint16_t protocol)
{
    static const uint32_t SIZES[] = {14, 20, 33, 34, 53, 54, 60, 74, 1500, 3520};
    make_packet(protocol);
    for (size_t i = 0; i < LENGTH(SIZES); i++) {
        printf("%s sees %u of %04x:", type->name, SIZES[i], protocol);
        begin();
        /* r7 = the number of bytes, r8 = the first word, r9 = one of its last. */
        PUT(MOV(7, 0), MOV(8, 0), MOV(9, 0));
        bounds(type, 20, 4);
        PUT(LDX(BPF_DW, 8, 2, 0), LDX(BPF_W, 9, 2, 16), MOVR(7, 3), INSN(BPF_ALU64 | BPF_SUB | BPF_X, 7, 2, 0, 0));
        keep(7, 0);
        keep(8, 1);
        keep(9, 2);
        PUT(MOV(0, 1), EXIT);
        load_and_run(type, SIZES[i]);
        show_seen(3);
        printf("\n");
    }
    printf("%s writes:", type->name);
    begin();
    bounds(type, 14, 2);
    PUT(ST(BPF_DW, 2, 2, 0x01020304), ST(BPF_H, 2, 12, 0x0506), MOV(0, 2), EXIT);
    load_and_run(type, PACKET);
    printf("\n%s behind the end:", type->name);
    begin();
    bounds(type, 14, 1);
    PUT(LDX(BPF_B, 0, 2, 14), MOV(0, 2), EXIT);
    load_and_run(type, PACKET);
    printf("\n");
}

static void loads_classically(const struct type *type)
{
    static const int OFFSETS[] = {0, 1, 12, 30, 56, 57, 58, 59, 60, 70, 72, 74, 1 << 20, -0x100000, -0x100000 + 20, -0x200000,
                                  -0x200000 + 12, -0x200000 + 73, -0x200000 + 74, -0x1000 + 0, -1, -0x300000};
    static const int SIZES[] = {BPF_B, BPF_H, BPF_W};
    for (size_t i = 0; i < LENGTH(OFFSETS); i++)
        for (size_t size = 0; size < LENGTH(SIZES); size++)
            for (int indexed = 0; indexed < 2; indexed++) {
                printf("%s loads %x of %d %s:", type->name, OFFSETS[i], 1 << size, indexed ? "indexed" : "absolute");
                begin();
                if (indexed)
                    PUT(MOV(2, 3), INSN(BPF_LD | SIZES[size] | BPF_IND, 0, 2, 0, OFFSETS[i] - 3));
                else
                    PUT(INSN(BPF_LD | SIZES[size] | BPF_ABS, 0, 0, 0, OFFSETS[i]));
                PUT(MOVR(7, 0));
                keep(7, 0);
                PUT(MOV(0, 7), EXIT);
                int unloaded = load_and_run(type, PACKET);
                show_seen(1);
                printf("\n");
                if (unloaded)
                    return;
            }
}

/* Each field of the context, as it is at the start, and after it was written. */
static void sees_fields(const struct type *type, uint16_t protocol, int with_context)
{
    static const int POINTERS[] = {offsetof(struct __sk_buff, data), offsetof(struct __sk_buff, data_end),
                                   offsetof(struct __sk_buff, data_meta)};
    int bytes = type->is_xdp ? (int)sizeof(struct xdp_md) : (int)sizeof(struct __sk_buff);
    make_packet(protocol);
    for (int at = type->is_xdp ? 12 : 0; at < bytes; at += 4) {
        int is_pointer = 0, size = BPF_W;
        for (size_t i = 0; i < LENGTH(POINTERS); i++)
            is_pointer |= !type->is_xdp && at == POINTERS[i];
        if (is_pointer)
            continue;
        if (!type->is_xdp && (at == offsetof(struct __sk_buff, flow_keys) || at == offsetof(struct __sk_buff, sk)))
            continue;
        if (!type->is_xdp && (at == offsetof(struct __sk_buff, tstamp) || at == offsetof(struct __sk_buff, hwtstamp)))
            size = BPF_DW;
        if (!type->is_xdp && at == offsetof(struct __sk_buff, tstamp_type))
            size = BPF_B;
        for (int written = 0; written < 4; written++) {
            static const int VALUES[] = {0, 1, 0x7654, 0x12345678};
            printf("%s %04x context %d field %d value %x:", type->name, protocol, with_context, at, VALUES[written]);
            begin();
            if (written)
                PUT(MOV(7, VALUES[written]), STX(size, 6, 7, at));
            PUT(LDX(size, 7, 6, at));
            keep(7, 0);
            PUT(MOV(0, 0), EXIT);
            int program = load(type);
            if (program < 0) {
                printf("\n");
                if (!written)
                    break;
                continue;
            }
            struct __sk_buff skb;
            memset(&skb, 0, sizeof skb);
            skb.mark = 11;
            skb.priority = 12;
            skb.ingress_ifindex = 13;
            skb.ifindex = 1;
            for (int i = 0; i < 5; i++)
                skb.cb[i] = 20u + (uint32_t)i;
            skb.tstamp = 0x123456789abcdef;
            skb.wire_len = 100;
            skb.gso_segs = 3;
            skb.gso_size = 40;
            struct xdp_md xdp = {.data_end = PACKET, .ingress_ifindex = 1};
            union bpf_attr attr = run_on(program, PACKET);
            uint8_t context[sizeof skb];
            memset(context, 0xdd, sizeof context);
            if (with_context) {
                attr.test.ctx_in = type->is_xdp ? (uintptr_t)&xdp : (uintptr_t)&skb;
                attr.test.ctx_size_in = (uint32_t)bytes;
                attr.test.ctx_out = (uintptr_t)context;
                attr.test.ctx_size_out = (uint32_t)bytes;
            }
            run(&attr);
            printf(" context %u %08x", attr.test.ctx_size_out, digest(context, sizeof context));
            show_seen(1);
            printf("\n");
            close(program);
        }
    }
    make_packet(ETH_P_IP);
}

/* The socket that packets have. */
static void sees_socket(const struct type *type)
{
    for (int at = 0; at < 16; at += 4) {
        printf("%s socket %d:", type->name, at);
        begin();
        PUT(LDX(BPF_DW, 2, 6, offsetof(struct __sk_buff, sk)), MOV(7, -1), JEQ(2, 0, 1), LDX(BPF_W, 7, 2, at));
        keep(7, 0);
        PUT(MOV(0, 0), EXIT);
        load_and_run(type, PACKET);
        show_seen(1);
        printf("\n");
    }
}

/* What a test run refuses, and what it cuts. */
static void is_refused(const struct type *type)
{
    begin();
    PUT(MOV(0, 3), EXIT);
    int program = loaded(load(type));
    static const uint32_t SIZES[] = {0, 1, 13, 14, 18, 3519, 3520, 3521, 3712, 3713, 4096, 4097, 5000, 8192};
    for (size_t i = 0; i < LENGTH(SIZES); i++) {
        printf("%s of %u:", type->name, SIZES[i]);
        union bpf_attr attr = run_on(program, SIZES[i]);
        run(&attr);
        printf("\n");
    }
    static const uint32_t ROOMS[] = {0, 1, 14, 73, 74, 75};
    for (size_t i = 0; i < LENGTH(ROOMS); i++)
        for (int address = 0; address < 3; address++) {
            static void *const ADDRESSES[] = {0, out, (void *)8};
            printf("%s room %u at %d:", type->name, ROOMS[i], address);
            union bpf_attr attr = run_on(program, PACKET);
            attr.test.data_out = (uintptr_t)ADDRESSES[address];
            attr.test.data_size_out = ROOMS[i];
            run(&attr);
            printf("\n");
        }
#define CASE(what, ...)                                                                                                \
    do {                                                                                                               \
        printf("%s %s:", type->name, what);                                                                            \
        union bpf_attr attr = run_on(program, PACKET);                                                                 \
        __VA_ARGS__;                                                                                                   \
        run(&attr);                                                                                                    \
        printf(" context %u %08x\n", attr.test.ctx_size_out, digest(context, sizeof context));                         \
    } while (0)
    static uint8_t context[8192], other[8192];
    uint32_t known = type->is_xdp ? sizeof(struct xdp_md) : sizeof(struct __sk_buff);
    CASE("unreadable", attr.test.data_in = 8);
    CASE("no data", attr.test.data_in = 0);
    CASE("cpu", attr.test.cpu = 1);
    CASE("flag 1", attr.test.flags = 1);
    CASE("flag 8", attr.test.flags = 8);
    CASE("batch", attr.test.batch_size = 2);
    CASE("repeat 1", attr.test.repeat = 1);
    CASE("repeat 100", attr.test.repeat = 100);
    CASE("duration", attr.test.duration = 7);
    CASE("context without size", attr.test.ctx_in = (uintptr_t)context);
    CASE("size without context", attr.test.ctx_size_in = 4);
    CASE("context out without size", attr.test.ctx_out = (uintptr_t)context);
    CASE("context out", attr.test.ctx_out = (uintptr_t)context, attr.test.ctx_size_out = sizeof context);
    CASE("context out of 12", attr.test.ctx_out = (uintptr_t)context, attr.test.ctx_size_out = 12);
    CASE("context out unwritable", attr.test.ctx_out = 8, attr.test.ctx_size_out = 64);
    CASE("context unreadable", attr.test.ctx_in = 8, attr.test.ctx_size_in = 4);
    memset(other, 0, sizeof other);
    CASE("context of 8", attr.test.ctx_in = (uintptr_t)other, attr.test.ctx_size_in = 8);
    CASE("context of 4096", attr.test.ctx_in = (uintptr_t)other, attr.test.ctx_size_in = 4096);
    CASE("context of 4097", attr.test.ctx_in = (uintptr_t)other, attr.test.ctx_size_in = 4097);
    other[known] = 1;
    CASE("context with more", attr.test.ctx_in = (uintptr_t)other, attr.test.ctx_size_in = known + 1);
    for (uint32_t at = 0; at < known; at += 4) {
        static const uint32_t VALUES[] = {1, 4, 70, 75, 256, 70000, 0xffffffff};
        for (size_t i = 0; i < LENGTH(VALUES); i++) {
            memset(other, 0, sizeof other);
            if (type->is_xdp)
                ((struct xdp_md *)other)->data_end = PACKET;
            memcpy(other + at, VALUES + i, 4);
            char what[64];
            snprintf(what, sizeof what, "with %u at %u", VALUES[i], at);
            CASE(what, attr.test.ctx_in = (uintptr_t)other, attr.test.ctx_size_in = known,
                 attr.test.ctx_out = (uintptr_t)context, attr.test.ctx_size_out = known);
        }
    }
    for (uint32_t data = 0; type->is_xdp && data < 300; data += 4)
        for (uint32_t end = 0; end <= PACKET; end += end == 0 || end >= 36 ? 18 : 6) {
            struct xdp_md xdp = {.data = data, .data_end = end};
            char what[64];
            snprintf(what, sizeof what, "from %u to %u", data, end);
            CASE(what, attr.test.ctx_in = (uintptr_t)&xdp, attr.test.ctx_size_in = sizeof xdp,
                 attr.test.ctx_out = (uintptr_t)context, attr.test.ctx_size_out = sizeof xdp);
        }
    close(program);
}

/* Runs that follow each other work on the same packet. */
static void repeats(const struct type *type)
{
    begin();
    bounds(type, 14, 3);
    PUT(LDX(BPF_B, 0, 2, 5), ADD(0, 1), STX(BPF_B, 2, 0, 5));
    PUT(MOV(0, 0), EXIT);
    int program = load(type);
    for (uint32_t repeat = 0; program >= 0 && repeat < 300; repeat += 99) {
        printf("%s repeats %u:", type->name, repeat);
        union bpf_attr attr = run_on(program, PACKET);
        attr.test.repeat = repeat;
        run(&attr);
        printf("\n");
    }
    if (program < 0)
        printf("\n");
    close(program);
}

/* A helper with the meanings of its arguments from r2 on: a number, or memory that is followed by its size. */
enum argument { NONE, OFFSET, SIZE, FLAGS, READ, WRITE, LEN, CHANGE, MODE, BITS };
struct helper {
    int id;
    enum argument arguments[4];
};
static const struct helper XDP_HELPERS[] = {
    {BPF_FUNC_xdp_adjust_head, {CHANGE}},
    {BPF_FUNC_xdp_adjust_tail, {CHANGE}},
    {BPF_FUNC_xdp_adjust_meta, {CHANGE}},
    {BPF_FUNC_xdp_get_buff_len, {NONE}},
    {BPF_FUNC_xdp_load_bytes, {OFFSET, WRITE, LEN}},
    {BPF_FUNC_xdp_store_bytes, {OFFSET, READ, LEN}},
};
static const struct helper SKB_HELPERS[] = {
    {BPF_FUNC_skb_load_bytes, {OFFSET, WRITE, LEN}},
    {BPF_FUNC_skb_load_bytes_relative, {OFFSET, WRITE, LEN, FLAGS}},
    {BPF_FUNC_skb_store_bytes, {OFFSET, READ, LEN, FLAGS}},
    {BPF_FUNC_skb_pull_data, {SIZE}},
    {BPF_FUNC_skb_change_tail, {SIZE, FLAGS}},
    {BPF_FUNC_skb_change_head, {SIZE, FLAGS}},
    {BPF_FUNC_skb_adjust_room, {CHANGE, MODE, BITS}},
    {BPF_FUNC_skb_adjust_room, {CHANGE, MODE, BITS}},
    {BPF_FUNC_skb_change_type, {FLAGS}},
    {BPF_FUNC_l3_csum_replace, {OFFSET, OFFSET, SIZE, FLAGS}},
    {BPF_FUNC_l4_csum_replace, {OFFSET, OFFSET, SIZE, FLAGS}},
    {BPF_FUNC_csum_update, {SIZE}},
    {BPF_FUNC_csum_level, {FLAGS}},
    {BPF_FUNC_set_hash, {SIZE}},
    {BPF_FUNC_set_hash_invalid, {NONE}},
};

/* Numbers of 64 bits, for flags. */
static uint64_t flags(void)
{
    uint64_t chosen = 0;
    for (uint32_t bits = any(4); bits > 0; bits--)
        chosen |= 1ull << any(10);
    return any(8) ? chosen : chosen | (uint64_t)any(64) << 56;
}

static int number(enum argument argument)
{
    static const int OFFSETS[] = {0, 1, 2, 12, 14, 24, 40, 60, 66, 70, 72, 73, 74, 75, 0xffff, 0x10000, -1};
    static const int SIZES[] = {0, 1, 13, 14, 15, 33, 60, 74, 75, 80, 200, 1500, 3000, 16064, 16065, 70000, -1};
    static const int CHANGES[] = {0, 1, 4, -1, -4, 8, -8, -14, 20, -20, 60, -60, -61, 100, -100, 216, -216, 252, 300, -300,
                                  3446, 3702, 3703, 4095, -4096};
    static const int FEW[] = {0, 0, 0, 0, 1, 1, 2, 3, 4, 5, 18, 20, 32, 36, 52, 100, 256, -1};
    switch (argument) {
    case OFFSET: return OFFSETS[any(LENGTH(OFFSETS))];
    case SIZE: return SIZES[any(LENGTH(SIZES))];
    case MODE: return (int)any(any(8) ? 2 : 4);
    case CHANGE: return CHANGES[any(LENGTH(CHANGES))];
    default: return FEW[any(LENGTH(FEW))];
    }
}

/* A random program of helper calls: what each returns, what it reads, and the packet's bounds in between. */
static void calls_helpers(const struct type *type, int round)
{
    const struct helper *helpers = type->is_xdp ? XDP_HELPERS : SKB_HELPERS;
    uint32_t count = type->is_xdp ? LENGTH(XDP_HELPERS) : LENGTH(SKB_HELPERS);
    int slot = 0;
    make_packet(round % 3 == 0 ? ETH_P_IPV6 : round % 7 == 0 ? ETH_P_ARP : ETH_P_IP);
    printf("%s round %d:", type->name, round);
    begin();
    for (int at = 8; at <= 64; at += 8)
        PUT(ST(BPF_DW, 10, -at, 0x1111 * at));
    for (uint32_t step = 0, steps = 1 + any(5); step < steps; step++) {
        const struct helper *helper = &helpers[any(count)];
        printf(" %d(", helper->id);
        for (int at = 0; at < 4; at++) {
            int reg = 2 + at, chosen = 0;
            switch (helper->arguments[at]) {
            case NONE:
                break;
            case READ:
            case WRITE:
                PUT(MOVR(reg, 10), ADD(reg, -64));
                break;
            case LEN:
                chosen = 1 + (int)any(64);
                PUT(MOV(reg, chosen));
                break;
            case BITS: {
                uint64_t bits = flags();
                PUT(LD_64(reg, bits));
                printf(" %llx", (unsigned long long)bits);
                break;
            }
            default:
                chosen = number(helper->arguments[at]);
                PUT(MOV(reg, chosen));
            }
            printf(" %d", chosen);
        }
        printf(")");
        PUT(MOVR(1, 6), CALL(helper->id), MOVR(7, 0));
        keep(7, slot++);
        PUT(LDX(BPF_DW, 7, 10, -64));
        keep(7, slot++);
        if (type->has_data) {
            PUT(MOV(7, 0), MOV(8, 0));
            bounds(type, 14, 3);
            PUT(MOVR(7, 3), INSN(BPF_ALU64 | BPF_SUB | BPF_X, 7, 2, 0, 0), LDX(BPF_DW, 8, 2, 0));
            keep(7, slot++);
            keep(8, slot++);
        }
        if (!type->is_xdp) {
            PUT(LDX(BPF_W, 7, 6, offsetof(struct __sk_buff, len)));
            keep(7, slot++);
        }
    }
    PUT(MOV(0, 2), EXIT);
    load_and_run(type, PACKET);
    show_seen(slot);
    printf("\n");
}

static void sums(const struct type *type)
{
    for (int round = 0; round < 40; round++) {
        printf("%s sum %d:", type->name, round);
        static const int SIZES[] = {0, 4, 8, 12, 20, 64};
        begin();
        for (int at = 8; at <= 64; at += 8)
            PUT(ST(BPF_DW, 10, -at, round % 5 == 0 ? 0 : round % 7 == 0 ? -1 : (int)any(1u << 30)));
        PUT(MOVR(1, 10), ADD(1, -64), MOV(2, SIZES[any(LENGTH(SIZES))]), MOVR(3, 10), ADD(3, -64),
            MOV(4, SIZES[any(LENGTH(SIZES))]), MOV(5, round % 2 ? 0 : (int)any(1u << 30)), CALL(BPF_FUNC_csum_diff), MOVR(7, 0));
        keep(7, 0);
        PUT(MOV(0, 0), EXIT);
        int unloaded = load_and_run(type, PACKET);
        show_seen(1);
        printf("\n");
        if (unloaded)
            return;
    }
}

/* Fragments: packets of several pages. */
static void has_fragments(void)
{
    static const struct type *type = &TYPES[0];
    static const int CHANGES[] = {0, 1, -1, 100, -100, 2000, -2000, -3000, -6000, 4000};
    for (uint32_t size = 3000; size <= MOST; size += 577)
        for (size_t i = 0; i < LENGTH(CHANGES); i++) {
            printf("xdp fragments of %u changed by %d:", size, CHANGES[i]);
            begin();
            PUT(MOVR(1, 6), CALL(BPF_FUNC_xdp_get_buff_len), MOVR(7, 0));
            keep(7, 0);
            PUT(ST(BPF_DW, 10, -8, 0), ST(BPF_DW, 10, -16, 0x77777777));
            PUT(MOVR(1, 6), MOV(2, CHANGES[i]), CALL(BPF_FUNC_xdp_adjust_tail), MOVR(7, 0));
            keep(7, 1);
            PUT(MOVR(1, 6), MOV(2, 3516), MOVR(3, 10), ADD(3, -8), MOV(4, 8), CALL(BPF_FUNC_xdp_load_bytes), MOVR(7, 0));
            keep(7, 2);
            PUT(LDX(BPF_DW, 7, 10, -8));
            keep(7, 3);
            PUT(MOVR(1, 6), MOV(2, 3518), MOVR(3, 10), ADD(3, -16), MOV(4, 4), CALL(BPF_FUNC_xdp_store_bytes), MOVR(7, 0));
            keep(7, 4);
            bounds(type, 14, 2);
            PUT(MOVR(7, 3), INSN(BPF_ALU64 | BPF_SUB | BPF_X, 7, 2, 0, 0), MOVR(0, 7));
            PUT(MOV(0, 2), EXIT);
            union bpf_attr program = program_attr(type->type, body, length);
            program.prog_flags = 1 << 5; /* BPF_F_XDP_HAS_FRAGS */
            int fd = loaded(bpf(BPF_PROG_LOAD, &program));
            for (uint32_t room = sizeof out; room > 100; room = room * 2 / 3) {
                union bpf_attr attr = run_on(fd, size);
                attr.test.data_size_out = room;
                run(&attr);
                show_seen(5);
            }
            printf("\n");
            close(fd);
        }
}

static void dissects_flows(void)
{
    static const struct type type = {"flow_dissector", BPF_PROG_TYPE_FLOW_DISSECTOR, 1, 1, 0};
    for (int round = 0; round < 6; round++) {
        printf("flow_dissector %d:", round);
        begin();
        PUT(LDX(BPF_DW, 7, 6, offsetof(struct __sk_buff, flow_keys)), LDX(BPF_DW, 8, 7, 0));
        keep(8, 0);
        PUT(LDX(BPF_H, 8, 7, offsetof(struct bpf_flow_keys, n_proto)));
        keep(8, 1);
        PUT(LDX(BPF_W, 8, 7, offsetof(struct bpf_flow_keys, flags)));
        keep(8, 2);
        PUT(ST(BPF_H, 7, offsetof(struct bpf_flow_keys, thoff), round * 20), ST(BPF_H, 7, 0, 20 * round), ST(BPF_H, 7, offsetof(struct bpf_flow_keys, sport), 9));
        bounds(&type, 20, 1);
        PUT(LDX(BPF_DW, 8, 2, 12));
        if (round % 2)
            PUT(MOVR(1, 6), MOV(2, 12), MOVR(3, 10), ADD(3, -8), MOV(4, 8), CALL(BPF_FUNC_skb_load_bytes), MOVR(8, 0));
        keep(8, 3);
        PUT(MOV(0, 0), EXIT);
        int program = load(&type);
        for (uint32_t size = 13; program >= 0 && size < 100; size += 19) {
            struct bpf_flow_keys context;
            memset(&context, 0, sizeof context);
            context.flags = (uint32_t)round;
            union bpf_attr attr = run_on(program, size);
            attr.test.repeat = (uint32_t)round;
            attr.test.ctx_in = round > 2 ? (uintptr_t)&context : 0;
            attr.test.ctx_size_in = round > 2 ? sizeof context : 0;
            run(&attr);
            show_seen(4);
        }
        printf("\n");
        close(program);
    }
}

/* A signal ends runs without end. */
static void on_alarm(int signal) { (void)signal; }
static void is_interrupted(void)
{
    struct sigaction action;
    struct itimerval soon = {.it_value = {.tv_usec = 50000}};
    memset(&action, 0, sizeof action);
    action.sa_handler = on_alarm;
    sigaction(SIGALRM, &action, 0);
    begin();
    PUT(MOV(0, 1), EXIT);
    int program = loaded(load(&TYPES[0]));
    union bpf_attr attr = run_on(program, PACKET);
    attr.test.repeat = 0xffffffff;
    setitimer(ITIMER_REAL, &soon, 0);
    printf("interrupted:");
    run(&attr);
    printf("\n");
    close(program);
}

/* Runs that Beeline does not serve. */
static void is_not_served(void)
{
    static const struct type xdp = {"xdp", BPF_PROG_TYPE_XDP, 1, 1, 1};
    begin();
    PUT(ST(BPF_DW, 10, -8, 0));
    for (int at = 16; at <= 64; at += 8)
        PUT(ST(BPF_DW, 10, -at, 0));
    PUT(MOVR(2, 10), ADD(2, -64), MOV(3, 64), MOV(4, 0), CALL(BPF_FUNC_fib_lookup), MOV(0, 2), EXIT);
    printf("fib_lookup:");
    load_and_run(&xdp, PACKET);
    begin();
    PUT(MOV(0, 2), EXIT);
    printf("\nlive:");
    int program = loaded(load(&xdp));
    union bpf_attr attr = run_on(program, PACKET);
    attr.test.flags = BPF_F_TEST_XDP_LIVE_FRAMES;
    run(&attr);
    close(program);
    begin();
    PUT(MOV(0, 1), EXIT);
    printf("\nsk_lookup:");
    program = loaded(load_program(BPF_PROG_TYPE_SK_LOOKUP, BPF_SK_LOOKUP, body, length));
    attr = run_on(program, 0);
    run(&attr);
    printf("\n");
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    int all = strcmp(argv[3], "all") == 0;
    results = good("results", create_map(BPF_MAP_TYPE_ARRAY, 4, sizeof seen, 1, 0, 0));
    if (strcmp(argv[3], "unserved") == 0) {
        is_not_served();
        return 0;
    }
    for (size_t i = 0; i < LENGTH(TYPES); i++) {
        const struct type *type = &TYPES[i];
        sees_packets(type, ETH_P_IPV6);
        sees_packets(type, ETH_P_ARP);
        sees_packets(type, ETH_P_IP);
        if (all && !type->is_xdp)
            loads_classically(type);
        for (int with_context = 0; all && with_context < 2; with_context++) {
            sees_fields(type, ETH_P_IP, with_context);
            sees_fields(type, ETH_P_IPV6, with_context);
            sees_fields(type, 0x0123, with_context);
        }
        if (!type->is_xdp)
            sees_socket(type);
        is_refused(type);
        repeats(type);
        if (all)
            sums(type);
        state = strtoull(argv[1], 0, 0) * 2654435761u + 88172645463325252u + i;
        for (int round = 0; round < atoi(argv[2]); round++)
            calls_helpers(type, round);
    }
    make_packet(ETH_P_IP);
    if (all)
        has_fragments();
    dissects_flows();
    is_interrupted();
    return 0;
}
