//! bpftrace scripts print the same under Beeline as on the kernel: their output contains the known
//! facts about the workload's calls, and the outputs agree. See `workloads/counts.c` for the calls
//! of one round.

use beeline_e2e::Compare::{Exact, Shape, Sorted};
use beeline_e2e::{Case, Scratch, Turn, need};
use std::process::Command;

/// Each test reads `name: compare, "script", ["line that must be there", ...];`; options for gcc
/// may come first.
macro_rules! scripts {
    ($($name:ident: $compare:expr, $script:expr, [$($known:expr),*];)*) => {
        scripts! { built with []; $($name: $compare, $script, [$($known),*];)* }
    };
    (built with $options:expr; $($name:ident: $compare:expr, $script:expr, [$($known:expr),*];)*) => {$(
        #[test]
        fn $name() {
            let _turn = Turn::take();
            let case = Case { options: &[], script: $script, compare: $compare, known: &[$($known),*] };
            need!(case.check_built("counts.c", &$options));
        }
    )*};
}

// Aggregations.
scripts! {
    count_counts_every_call: Exact,
        "uprobe:{prog}:wl_add { @ = count(); }", ["@: 1000"];
    sum_adds_arguments: Exact,
        "uprobe:{prog}:wl_add { @ = sum(arg0); }", ["@: 499500"];
    avg_averages_arguments: Exact,
        "uprobe:{prog}:wl_add { @ = avg(arg1); }", ["@: 999"];
    min_and_max_keep_the_extremes: Exact,
        "uprobe:{prog}:wl_add { @low = min(arg0 + 5); @high = max(arg1); }", ["@low: 5", "@high: 1998"];
    stats_gives_count_average_and_total: Exact,
        "uprobe:{prog}:wl_add { @ = stats(arg0); }", ["@: count 1000, average 499, total 499500"];
    hist_sorts_into_powers_of_two: Exact,
        "uprobe:{prog}:wl_add { @ = hist(arg0); }", [];
    lhist_sorts_into_equal_ranges: Exact,
        "uprobe:{prog}:wl_add { @ = lhist(arg0, 100, 800, 50); }", [];
    hist_by_key_keeps_the_keys_apart: Sorted,
        "uprobe:{prog}:wl_add { @[arg0 % 3] = hist(arg1); }", [];
    plain_values_are_overwritten: Exact,
        "uprobe:{prog}:wl_add { @last = arg0; @steps++; @total += arg0; }",
        ["@last: 999", "@steps: 1000", "@total: 499500"];
    many_keys_are_all_kept: Sorted,
        "uprobe:{prog}:wl_add { @[arg0] = sum(arg1); }", ["@[0]: 0", "@[1]: 2", "@[999]: 1998"];
    counts_of_threads_are_not_lost: Sorted,
        "uprobe:{prog}:wl_threaded { @ = count(); @plain[tid] = count(); } END { clear(@plain); }", ["@: 1000"];
}

// Filters.
scripts! {
    filters_by_arguments: Exact,
        "uprobe:{prog}:wl_add /arg0 == 7 || arg1 > 1800/ { @ = count(); }", ["@: 100"];
    filters_by_ids: Exact,
        "uprobe:{prog}:wl_add /pid == {pid} && tid == pid/ { @own = count(); }
         uprobe:{prog}:wl_eight /pid != {pid}/ { @other = count(); } END { printf(\"end\\n\"); }",
        ["@own: 1000", "end"];
    filters_at_one_place: Exact,
        "uprobe:{prog}:wl_add /arg0 < 10/ { @few = count(); }
         uprobe:{prog}:wl_add /arg0 >= 10/ { @many = sum(arg0); }
         uretprobe:{prog}:wl_add { @returns = count(); }",
        ["@few: 10", "@many: 499455", "@returns: 1000"];
    filters_of_returns: Exact,
        "uretprobe:{prog}:wl_add /retval == 0/ { @zero = count(); }
         uretprobe:{prog}:wl_add /retval != 0/ { @other = count(); }",
        [];
}

// The data that a probe can read.
scripts! {
    arguments_0_to_5_are_the_callers: Sorted,
        "uprobe:{prog}:wl_eight { printf(\"%d %d %d %d %d %d\\n\", arg0, arg1, arg2, arg3, arg4, arg5); }",
        ["1 2 3 4 5 6", "10 20 30 40 50 60"];
    sarg_reads_stack_arguments: Exact,
        "uprobe:{prog}:wl_eight { @seventh = sum(sarg0); @eighth = sum(sarg1); }",
        ["@seventh: 385", "@eighth: 440"];
    reg_reads_registers: Exact,
        "uprobe:{prog}:wl_add { @di = sum(reg(\"di\")); @si = sum(reg(\"si\")); }",
        ["@di: 499500", "@si: 999000"];
    instruction_pointer_is_the_probed_one: Exact,
        "uprobe:{prog}:wl_add { @[usym(reg(\"ip\"))] = count(); }", [];
    retval_is_what_the_function_returned: Exact,
        "uretprobe:{prog}:wl_square { @ = sum(retval); @calls = count(); }", ["@: 328350", "@calls: 100"];
    every_level_of_a_recursion_returns: Sorted,
        "uprobe:{prog}:wl_depth { @in[arg0] = count(); } uretprobe:{prog}:wl_depth { @out[retval] = count(); }",
        ["@in[1]: 10", "@in[10]: 1", "@out[1]: 10", "@out[10]: 1"];
    str_reads_strings: Exact,
        "uprobe:{prog}:wl_name { @[str(arg0)] = count(); }", ["@[alpha]: 10", "@[beta]: 20", "@[gamma]: 30"];
    str_with_a_length_cuts: Exact,
        "uprobe:{prog}:wl_name { @[str(arg0, 3)] = count(); }", ["@[alp]: 10", "@[bet]: 20"];
    str_of_a_bad_address_is_empty: Exact,
        "uprobe:{prog}:wl_add { @[str(arg0)] = count(); }", ["@[]: 1000"];
    buf_reads_bytes: Sorted,
        "uprobe:{prog}:wl_bytes { printf(\"%r\\n\", buf(arg0, arg1)); }",
        ["\\x00\\x01\\x02\\x03\\x04\\x05\\x06\\x07", "\\x04\\x01\\x02\\x03\\x04\\x05\\x06\\x07"];
    pointers_are_followed: Sorted,
        "uprobe:{prog}:wl_name { @[*(uint8 *)arg0] = count(); }", ["@[97]: 10", "@[98]: 20", "@[103]: 30"];
    structures_are_read_by_field: Exact,
        "struct pair { char one; char two; } uprobe:{prog}:wl_name { @[((struct pair *)arg0)->two] = count(); }",
        ["@[108]: 10", "@[101]: 20", "@[97]: 30"];
    comm_is_the_threads_name: Sorted,
        "uprobe:{prog}:wl_threaded { @[comm] = count(); } uprobe:{prog}:wl_add { @[comm] = count(); }",
        ["@[worker-0]: 250", "@[worker-3]: 250", "@[counts]: 1000"];
    pid_tid_and_uid_are_the_targets: Exact,
        "uprobe:{prog}:wl_add { @[pid, tid, uid, gid] = count(); }", ["@[PID, PID, 0, 0]: 1000"];
    tid_tells_threads_apart: Sorted,
        "uprobe:{prog}:wl_threaded { if (@seen[tid] == 0) { @threads = count(); } @seen[tid] = 1; \
         if (pid == tid) { @wrong = count(); } } END { clear(@seen); }", ["@threads: 4"];
    nsecs_and_elapsed_do_not_go_backwards: Exact,
        "uprobe:{prog}:wl_add { if (nsecs < @n) { @backwards++; } if (elapsed < @e) { @backwards++; } \
         @n = nsecs; @e = elapsed; @ = count(); } END { clear(@n); clear(@e); }", ["@: 1000"];
    cpu_is_a_real_one: Exact,
        "uprobe:{prog}:wl_add /cpu < 1024/ { @ = count(); }", ["@: 1000"];
    rand_is_32_bits_and_varies: Exact,
        "uprobe:{prog}:wl_add { if (rand < 4294967296) { @in = count(); } $bit = rand % 2; if ($bit == 1) { @odd++; } } \
         END { if (@odd > 350 && @odd < 650) { printf(\"fair\\n\"); } clear(@odd); }", ["@in: 1000", "fair"];
    probe_names_the_probe: Exact,
        "uprobe:{prog}:wl_wild_one, uprobe:{prog}:wl_wild_two { @[probe] = count(); }", [];
    an_address_of_a_function_is_symbolised: Exact,
        "uprobe:{prog}:wl_inner { @[usym(reg(\"ip\"))] = count(); }", ["@[wl_inner]: 12"];
}

// Stacks, in functions that begin with "push %rbp": at that instruction every kernel finds the
// caller.
scripts! {
    built with ["-fcf-protection=none"];
    ustack_names_the_callers: Exact,
        "uprobe:{prog}:wl_middle { @[ustack(3)] = count(); }", ["]: 12"];
    ustack_in_perf_form: Exact,
        "uprobe:{prog}:wl_middle { @[ustack(perf, 2)] = count(); }", ["]: 12"];
    ustack_can_be_printed: Sorted,
        "uprobe:{prog}:wl_outer { printf(\"%s\", ustack(1)); }", ["wl_outer+0"];
}

/// At an `endbr64` the frame is not set up yet. A kernel built without CONFIG_X86_KERNEL_IBT
/// assumes that it is and leaves the caller out; Beeline names the caller on any kernel.
#[test]
fn ustack_names_the_caller_at_an_endbr64_too() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build_with("counts.c", &["-fcf-protection=branch"]);
    let case = Case {
        options: &[],
        script: "uprobe:{prog}:wl_inner { @[ustack(3)] = count(); }",
        compare: Exact,
        known: &["wl_inner+0", "wl_middle+13", "wl_outer+13", "]: 12"],
    };
    need!(case.check_beeline(&program, || Command::new(&program)));
}

// Probes, several at once, and the probes that belong to no function.
scripts! {
    wildcards_attach_to_every_match: Exact,
        "uprobe:{prog}:wl_wild_* { @[probe] = count(); @all = count(); }", ["@all: 6"];
    several_probes_share_maps: Exact,
        "uprobe:{prog}:wl_wild_one { @ = count(); } uprobe:{prog}:wl_wild_three { @ = count(); } \
         uretprobe:{prog}:wl_wild_two { @ = count(); }", ["@: 6"];
    two_probes_at_one_place_both_fire: Exact,
        "uprobe:{prog}:wl_add { @one = count(); } uprobe:{prog}:wl_add { @two = count(); } \
         uretprobe:{prog}:wl_add { @three = count(); }", ["@one: 1000", "@two: 1000", "@three: 1000"];
    begin_runs_before_and_end_after: Exact,
        "BEGIN { printf(\"first\\n\"); @n = 40; } uprobe:{prog}:wl_wild_two { @n = @n + 1; } END { printf(\"last %d\\n\", @n); }",
        ["first", "last 42"];
    interval_fires_and_sees_the_maps: Exact,
        "uprobe:{prog}:wl_wild_three { @ = count(); } interval:ms:20 { @beats++; } \
         END { if (@beats > 1) { printf(\"beating\\n\"); } clear(@beats); }", ["beating", "@: 3"];
    libc_is_probed_like_the_program: Exact,
        "uprobe:{libc}:nanosleep /pid == {pid}/ { @in = count(); } uretprobe:{libc}:nanosleep /pid == {pid}/ { @out = count(); }",
        ["@in: 20", "@out: 20"];
    latency_from_entry_to_return: Shape,
        "uprobe:{prog}:wl_pause { @start[tid] = nsecs; } uretprobe:{prog}:wl_pause /@start[tid]/ { \
         @us = hist((nsecs - @start[tid]) / 1000); if (nsecs - @start[tid] >= 1000000) { @slow = count(); } \
         @calls = count(); delete(@start[tid]); }", ["@calls: 20", "@slow: 20"];
    latency_of_threads_is_kept_apart: Exact,
        "uprobe:{prog}:wl_threaded { @start[tid] = nsecs; } uretprobe:{prog}:wl_threaded /@start[tid]/ { \
         if (nsecs - @start[tid] < 10000000000) { @ = count(); } delete(@start[tid]); }", ["@: 1000"];
}

// The language.
scripts! {
    filters_drop_events: Exact,
        "uprobe:{prog}:wl_add /arg0 >= 900/ { @ = count(); }", ["@: 100"];
    strncmp_compares: Exact,
        "uprobe:{prog}:wl_name /strncmp(str(arg0), \"beta\", 4) == 0/ { @ = count(); }", ["@: 20"];
    strings_compare_for_equality: Exact,
        "uprobe:{prog}:wl_name { if (str(arg0) == \"gamma\") { @ = count(); } else { @other = count(); } }",
        ["@: 30", "@other: 30"];
    if_and_else_choose: Exact,
        "uprobe:{prog}:wl_add { if (arg0 % 2 == 0) { @even = count(); } else { @odd = count(); } }",
        ["@even: 500", "@odd: 500"];
    unroll_repeats: Exact,
        "uprobe:{prog}:wl_wild_one { $i = 0; unroll (5) { $i = $i + 2; } @ = $i; }", ["@: 10"];
    while_loops_to_its_end: Exact,
        "uprobe:{prog}:wl_add { $i = 0; $s = 0; while ($i < 20) { $s = $s + $i; $i++; } @ = sum($s); }", ["@: 190000"];
    while_breaks_and_continues: Exact,
        "uprobe:{prog}:wl_wild_one { $i = 0; $n = 0; while ($i < 50) { $i++; if ($i % 2) { continue; } \
         if ($i > 20) { break; } $n++; } @ = $n; }", ["@: 10"];
    ternaries_and_operators: Exact,
        "uprobe:{prog}:wl_add { @ = sum(arg0 > 499 ? 1 : 0); @bits = max((arg0 << 3) ^ (arg0 & 0xf0) | 1); }",
        ["@: 500"];
    signed_numbers_stay_signed: Exact,
        "uprobe:{prog}:wl_wild_one { @ = -5; @quotient = (int64)-17; $x = (int32)-7; @narrow = $x; }",
        ["@: -5", "@quotient: -17", "@narrow: -7"];
    tuples_hold_their_parts: Exact,
        "uprobe:{prog}:wl_add { @ = (arg0, arg1, \"text\"); } uprobe:{prog}:wl_wild_one { $t = (1, \"two\"); \
         printf(\"%d %s\\n\", $t.0, $t.1); }", ["@: (999, 1998, text)", "1 two"];
    delete_removes_a_key: Sorted,
        "uprobe:{prog}:wl_add { @[arg0] = 1; if (arg0 > 2) { delete(@[arg0]); } }", ["@[0]: 1", "@[1]: 1", "@[2]: 1"];
    clear_removes_all_keys: Exact,
        "uprobe:{prog}:wl_add { @gone[arg0] = count(); @stays = count(); } END { clear(@gone); }", ["@stays: 1000"];
    zero_keeps_keys_and_resets_values: Sorted,
        "uprobe:{prog}:wl_add { @[arg0 % 2] = count(); } END { zero(@); }", ["@[0]: 0", "@[1]: 0"];
    print_with_a_limit_prints_the_top: Exact,
        "uprobe:{prog}:wl_name { @[str(arg0)] = count(); } END { print(@, 2); clear(@); }",
        ["@[beta]: 20", "@[gamma]: 30"];
    printf_formats: Sorted,
        "uprobe:{prog}:wl_wild_one { printf(\"%d|%5d|%-5d|%x|%llu|%s|%10s|%-6s|%c\\n\", -1, 42, 42, 255, \
         18446744073709551615, \"s\", comm, \"l\", 65); }", [];
    every_event_is_printed: Sorted,
        "uprobe:{prog}:wl_add { printf(\"%d %d\\n\", arg0, arg1); }", ["0 0", "500 1000", "999 1998"];
    strings_are_values_and_keys: Sorted,
        "uprobe:{prog}:wl_name { @name[tid] = str(arg0); } uretprobe:{prog}:wl_name { @[@name[tid], retval] = count(); } \
         END { clear(@name); }", ["@[alpha, 97]: 10", "@[beta, 98]: 20", "@[gamma, 103]: 30"];
    time_is_printed: Shape,
        "BEGIN { time(\"%H:%M:%S\\n\"); } uprobe:{prog}:wl_wild_one { printf(\"%s\\n\", strftime(\"%Y\", nsecs)); }", [];
}

/// Debian's bpftrace cannot tell where an instruction begins, so it treats a place inside a
/// function as an address without a symbol, and requires `--unsafe` for it.
#[test]
fn probe_at_an_offset_sees_that_instruction() {
    let _turn = Turn::take();
    let case = Case {
        options: &["--unsafe"],
        script: "uprobe:{prog}:{at wl_offset+4} { @before = sum(reg(\"di\")); } \
                 uprobe:{prog}:{at wl_offset+7} { @after = sum(reg(\"ax\")); } \
                 uprobe:{prog}:{at wl_offset+11} { @end = sum(reg(\"ax\")); }",
        compare: Exact,
        known: &["@before: 28", "@after: 28", "@end: 36"],
    };
    need!(case.check("counts.c"));
}
