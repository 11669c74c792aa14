//! Every kind of program on calls sees the kernel's arguments and results; alone, together, and
//! beside uprobes.

use beeline_e2e::{Engine, Scratch, Turn, engines};

use crate::trace::{Traced, plain};

/// Compares the output of a script on scenes of kinds.c, the same on each engine: maps, and lines
/// that begin with "E ". `kernel` is the script for the kernel, where that cannot be the same.
fn same_output(scenes: &[&str], script: &str, kernel: &str) -> Vec<String> {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let target = plain(&scratch.build("calls/kinds.c"));
    let mut all = Vec::new();
    let engines = match engines() {
        Ok(engines) => engines,
        Err(why) => {
            beeline_e2e::skipped(&why);
            return Vec::new();
        }
    };
    for engine in engines {
        let script = match engine {
            Engine::Kernel => kernel,
            Engine::Beeline => script,
        };
        let mut traced =
            Traced::start(engine, target(), script).unwrap_or_else(|why| panic!("{why}"));
        for scene in scenes {
            assert_eq!(traced.workload.tell(scene), format!("done {scene}"));
        }
        let mut lines = traced.finish();
        lines.retain(|line| line.starts_with("E ") || line.starts_with('@'));
        lines.sort();
        all.push(lines);
    }
    if let [kernel, beeline] = all.as_slice() {
        assert_eq!(beeline, kernel, "beeline (left), the kernel (right)");
    }
    all.pop().unwrap_or_default()
}

fn same(scenes: &[&str], script: &str) -> Vec<String> {
    same_output(scenes, script, script)
}

#[test]
fn tracepoints_show_arguments_and_results() {
    let script = r#"tracepoint:syscalls:sys_enter_openat /{ours}/ { printf("E open %d %s %x\n", args->dfd, str(args->filename), args->flags); }
        tracepoint:syscalls:sys_exit_openat /{ours}/ { printf("E opened %lld\n", args->ret); }
        tracepoint:syscalls:sys_enter_read /{ours}/ { @read[args->fd, args->count] = count(); }
        tracepoint:syscalls:sys_exit_read /{ours}/ { @got[args->ret] = count(); }
        tracepoint:syscalls:sys_enter_pread64 /{ours}/ { @pread[args->fd, args->count, args->pos] = count(); }
        tracepoint:syscalls:sys_enter_readv /{ours}/ { @readv[args->fd, args->vlen] = count(); }
        tracepoint:syscalls:sys_exit_readv /{ours}/ { @vector = sum(args->ret); }
        tracepoint:syscalls:sys_enter_close /{ours}/ { @close[(int32)args->fd] = count(); }
        tracepoint:syscalls:sys_exit_close /{ours}/ { @closed[args->ret] = count(); }
        tracepoint:syscalls:sys_enter_lseek /{ours}/ { @seek[args->fd, args->offset, args->whence] = count(); }
        tracepoint:syscalls:sys_exit_access /{ours}/ { @access[args->ret] = count(); }"#;
    let lines = same(&["files", "odd", "files"], script);
    let failed = lines.iter().filter(|line| *line == "E opened -2").count();
    assert!(lines.is_empty() || failed == 2, "{lines:?}");
}

#[test]
fn raw_tracepoints_show_every_number_and_argument() {
    let script = r#"tracepoint:raw_syscalls:sys_enter /{ours} && (args->id == 310 || args->id == 1023)/ {
            printf("E %d %lx %lx %lx %lx %lx %lx\n", args->id, args->args[0], args->args[1], args->args[2], args->args[3], args->args[4], args->args[5]); }
        tracepoint:raw_syscalls:sys_exit /{ours}/ { @results[args->id, args->ret < 0 ? args->ret : 0] = count(); }"#;
    same(&["odd", "files", "ids"], script);
}

/// The kernels under test need not have kprobes, so their tracepoints are compared.
#[test]
fn probes_on_functions_of_calls_see_what_tracepoints_see() {
    let script = r#"kprobe:__x64_sys_getppid /{ours}/ { @in = count(); } kretprobe:__x64_sys_getppid /{ours}/ { @out = count(); }
        kprobe:__x64_sys_openat /{ours}/ { @open = count(); } kretprobe:__x64_sys_openat /{ours}/ { @opened[retval] = count(); }"#;
    let kernel = r#"tracepoint:syscalls:sys_enter_getppid /{ours}/ { @in = count(); } tracepoint:syscalls:sys_exit_getppid /{ours}/ { @out = count(); }
        tracepoint:syscalls:sys_enter_openat /{ours}/ { @open = count(); } tracepoint:syscalls:sys_exit_openat /{ours}/ { @opened[args->ret] = count(); }"#;
    same_output(&["ids", "files"], script, kernel);
}

/// Their records are assembled from the call's arguments. The kernel adds `O_LARGEFILE` on the way
/// there.
#[test]
fn probes_on_functions_that_stand_for_calls_see_their_arguments() {
    let script = r#"kprobe:do_sys_openat2 /{ours}/ {
            printf("E open %d %s %x %x\n", (int32)arg0, str(arg1), ((struct open_how *)arg2)->flags, ((struct open_how *)arg2)->mode); }
        kretprobe:do_sys_openat2 /{ours}/ { @opened[(int32)retval] = count(); }
        kprobe:do_sys_open /{ours}/ { @flags[arg2, str(arg1)] = count(); }
        kprobe:ksys_read /{ours}/ { @read[arg0, arg2] = count(); } kretprobe:ksys_read /{ours}/ { @got[retval] = count(); }
        kprobe:ksys_pread64 /{ours}/ { @pread[arg0, arg2, arg3] = count(); }"#;
    let kernel = r#"tracepoint:syscalls:sys_enter_openat /{ours}/ {
            printf("E open %d %s %x %x\n", args->dfd, str(args->filename), args->flags | 0x8000, 0);
            @flags[args->flags | 0x8000, str(args->filename)] = count(); }
        tracepoint:syscalls:sys_exit_openat /{ours}/ { @opened[(int32)args->ret] = count(); }
        tracepoint:syscalls:sys_enter_read /{ours}/ { @read[args->fd, args->count] = count(); }
        tracepoint:syscalls:sys_exit_read /{ours}/ { @got[args->ret] = count(); }
        tracepoint:syscalls:sys_enter_pread64 /{ours}/ { @pread[args->fd, args->count, args->pos] = count(); }"#;
    let lines = same_output(&["files", "files"], script, kernel);
    let opened = lines
        .iter()
        .filter(|line| line.starts_with("E open -100 "))
        .count();
    assert!(lines.is_empty() || opened == 12, "{lines:?}");
}

/// Three calls lead to one function, which is traced in both ways.
#[test]
fn probes_on_functions_see_all_calls_that_lead_there() {
    let script = r#"kprobe:do_sys_openat2 /{ours}/ {
            printf("E open %d %x %x\n", (int32)arg0, ((struct open_how *)arg2)->flags, ((struct open_how *)arg2)->mode); }
        kretprobe:do_sys_openat2 /{ours}/ { @opened[(int32)retval] = count(); }
        kfunc:do_sys_openat2 /{ours}/ { @flags[args->how->flags, str(uptr(args->filename))] = count(); }
        kretfunc:do_sys_openat2 /{ours}/ { @named[retval, str(uptr(args->filename))] = count(); }"#;
    let enter = r#"@flags[args->flags | 0x8000, str(args->filename)] = count(); @name = str(args->filename)"#;
    let kernel = format!(
        r#"tracepoint:syscalls:sys_enter_open /{{ours}}/ {{ printf("E open -100 %x %x\n", args->flags | 0x8000, args->mode); {enter}; }}
        tracepoint:syscalls:sys_enter_creat /{{ours}}/ {{ printf("E open -100 8241 %x\n", args->mode);
            @flags[0x8241, str(args->pathname)] = count(); @name = str(args->pathname); }}
        tracepoint:syscalls:sys_enter_openat2 /{{ours}}/ {{ printf("E open %d 80000 0\n", args->dfd);
            @flags[0x80000, str(args->filename)] = count(); @name = str(args->filename); }}
        tracepoint:syscalls:sys_exit_open,tracepoint:syscalls:sys_exit_creat,tracepoint:syscalls:sys_exit_openat2 /{{ours}}/ {{
            @opened[(int32)args->ret] = count(); @named[args->ret, @name] = count(); delete(@name); }}"#
    );
    let lines = same_output(&["opens"], script, &kernel);
    let opened = lines.iter().filter(|line| line.starts_with("E open "));
    assert!(lines.is_empty() || opened.count() == 4, "{lines:?}");
}

/// The wrappers are so short that the hook of their call overwrites the instructions that the
/// uprobe displaces.
#[test]
fn uprobes_on_wrappers_and_their_calls_do_not_hide_each_other() {
    let script = r#"uprobe:/lib/x86_64-linux-gnu/libc.so.6:getppid /{ours}/ { @wrapper = count(); }
        uretprobe:/lib/x86_64-linux-gnu/libc.so.6:getpid /{ours}/ { @returned = count(); }
        tracepoint:syscalls:sys_enter_getppid /{ours}/ { @in = count(); } tracepoint:syscalls:sys_exit_getppid /{ours}/ { @out = count(); }
        tracepoint:syscalls:sys_enter_getpid /{ours}/ { @own = count(); } tracepoint:syscalls:sys_exit_getpid /{ours}/ { @got = count(); }"#;
    let lines = same(&["ids", "ids"], script);
    for known in [
        "@wrapper: 202",
        "@returned: 202",
        "@in: 402",
        "@out: 402",
        "@own: 202",
        "@got: 202",
    ] {
        assert!(
            lines.is_empty() || lines.iter().any(|line| line == known),
            "no {known}: {lines:?}"
        );
    }
}

/// The same, where the calls are hooked before the functions.
#[test]
fn uprobes_come_after_calls_too() {
    let script = r#"tracepoint:syscalls:sys_enter_getppid /{ours}/ { @in = count(); } tracepoint:syscalls:sys_exit_getppid /{ours}/ { @out = count(); }
        uprobe:/lib/x86_64-linux-gnu/libc.so.6:getppid /{ours}/ { @wrapper = count(); }
        uretprobe:/lib/x86_64-linux-gnu/libc.so.6:getppid /{ours}/ { @returned = count(); }"#;
    let lines = same(&["ids"], script);
    for known in ["@wrapper: 101", "@returned: 101", "@in: 201", "@out: 201"] {
        assert!(
            lines.is_empty() || lines.iter().any(|line| line == known),
            "no {known}: {lines:?}"
        );
    }
}
