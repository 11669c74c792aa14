//! Beeline refuses requests that it cannot fulfil with a nonzero exit code and a message that says
//! why, and the target does not notice.

use beeline_e2e::{
    Ended, Engine, Footprint, PATIENCE, Scratch, Tool, Turn, Workload, altered_text, as_user,
    beeline, beeline_wanted, engines, file_offset, find_program, is_alive, kernel_function, need,
    until, with_kernel_headers,
};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Asserts a refusal whose message, the tool's or Beeline's, contains one of `reasons`, in any
/// case.
fn assert_refused(ended: &Ended, reasons: &[&str]) {
    assert!(!ended.status.success(), "not refused: {ended:?}");
    let words = [ended.stderr.join("\n"), ended.stdout.join("\n")]
        .join("\n")
        .to_lowercase();
    assert!(!words.contains("panicked at"), "{ended:?}");
    let said = reasons
        .iter()
        .any(|reason| words.contains(&reason.to_lowercase()));
    assert!(said, "none of {reasons:?} is in what it says: {ended:?}");
}

/// bpftrace under Beeline, with one probe on `place`.
fn trace(pid: u32, place: &str) -> Ended {
    trace_by(Engine::Beeline.command("bpftrace"), pid, place)
}

/// bpftrace by a command, for a process and one probe.
fn trace_by(mut command: Command, pid: u32, place: &str) -> Ended {
    command.args([
        "-p",
        &pid.to_string(),
        "-e",
        &format!("{place} {{ @ = count(); }}"),
    ]);
    Tool::start(command).wait()
}

/// The smallest tool under Beeline, at file offsets.
fn attach(scratch: &Scratch, pid: u32, program: &Path, places: &[String]) -> Ended {
    let mut command = Engine::Beeline.command(scratch.build("attach.c"));
    command
        .arg(pid.to_string())
        .arg(program)
        .arg("1")
        .args(places);
    Tool::start(command).wait()
}

/// Runs `refusal` on a counting target and asserts that the target did not notice.
fn unharmed(refusal: impl FnOnce(&Scratch, &Path, u32)) {
    let scratch = Scratch::new();
    let program = scratch.build("counts.c");
    let mut workload = Workload::start(&program);
    let honest = workload.go();
    let before = Footprint::of(workload.pid());
    refusal(&scratch, &program, workload.pid());
    assert_eq!(altered_text(workload.pid()), [""; 0]);
    assert_eq!(Footprint::of(workload.pid()), before);
    assert_eq!(workload.go(), honest);
    workload.finish();
}

#[test]
fn a_process_that_is_not_there() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let program = scratch.build("counts.c");
    let mut child = Command::new("true").spawn().expect("there is a true");
    child.wait().expect("it ends");
    let ended = trace(child.id(), &format!("uprobe:{}:wl_add", program.display()));
    assert_refused(&ended, &[&child.id().to_string(), "no such process"]);
}

#[test]
fn another_users_process() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    unharmed(|scratch, program, pid| {
        let copy = scratch.path().join("beeline");
        std::fs::copy(beeline(), &copy).expect("cannot copy beeline");
        let mut command = as_user(65534, &copy);
        command.args(["run", "--", "bpftrace", "-p", &pid.to_string(), "-e"]);
        command.arg(format!(
            "uprobe:{}:wl_add {{ @ = count(); }}",
            program.display()
        ));
        let ended = Tool::start(command).wait();
        assert_refused(
            &ended,
            &["permission", "not permitted", "another user", "belongs to"],
        );
    });
}

#[test]
fn a_32_bit_process() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let program = scratch.build_32_bit("alone32.s");
    let mut child = Command::new(&program)
        .spawn()
        .expect("the kernel runs 32-bit programs");
    let ended = trace(child.id(), &format!("uprobe:{}:_start", program.display()));
    assert_refused(
        &ended,
        &["32-bit", "i386", "64-bit", "x86-64", "architecture"],
    );
    assert!(is_alive(child.id()));
    assert_eq!(altered_text(child.id()), [""; 0]);
    child
        .kill()
        .and_then(|()| child.wait())
        .expect("ours to kill");
}

#[test]
fn a_zombie_cannot_be_traced() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let program = scratch.build("counts.c");
    let mut workload = Workload::start(&program);
    workload.kill();
    assert!(until(PATIENCE, || !is_alive(workload.pid())));
    let place = format!("uprobe:{}:wl_add", program.display());
    let ended = trace(workload.pid(), &place);
    // bpftrace looks at the process first, and ends with an exception that names it.
    let pid = workload.pid().to_string();
    assert_refused(&ended, &["zombie", "exited", "no such process", &pid]);
}

#[test]
fn a_process_that_dies_meanwhile() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let scratch = Scratch::new();
    let program = scratch.build("counts.c");
    for round in 0..10 {
        let mut workload = Workload::start(&program);
        let mut command = Engine::Beeline.command("bpftrace");
        command.args(["-p", &workload.pid().to_string(), "-e"]);
        command.arg(format!(
            "uprobe:{}:wl_* {{ @ = count(); }}",
            program.display()
        ));
        let tool = Tool::start(command);
        // Before it is attached, while it attaches, or after.
        std::thread::sleep(std::time::Duration::from_millis(round * 60));
        workload.kill();
        drop(workload);
        let ended = tool.wait();
        assert!(
            ended.status.code().is_some(),
            "Beeline or the tool crashed: {ended:?}"
        );
        assert!(!ended.stderr.join(" ").contains("panicked at"), "{ended:?}");
    }
}

#[test]
fn a_process_under_another_tracer() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    unharmed(|_, program, pid| {
        let tracer = pid as libc::pid_t;
        // SAFETY: PTRACE_SEIZE reads no memory of ours; the target is our child.
        let seized = unsafe { libc::ptrace(libc::PTRACE_SEIZE, tracer, 0, 0) };
        assert_eq!(seized, 0, "{}", std::io::Error::last_os_error());
        let ended = trace(pid, &format!("uprobe:{}:wl_add", program.display()));
        assert_refused(&ended, &["traced by", "tracer", "being traced", "debugger"]);
        release(tracer);
    });
}

/// Stops a process that this thread has seized and lets it go: only a stopped one can be detached
/// from.
fn release(pid: libc::pid_t) {
    let mut status = 0;
    // SAFETY: PTRACE_INTERRUPT and PTRACE_DETACH read no memory of ours; `status` is live and
    // writable.
    let detached = unsafe {
        libc::ptrace(libc::PTRACE_INTERRUPT, pid, 0, 0);
        libc::waitpid(pid, &mut status, libc::__WALL);
        libc::ptrace(libc::PTRACE_DETACH, pid, 0, 0)
    };
    assert_eq!(detached, 0, "{}", std::io::Error::last_os_error());
}

/// A frozen control group of our own. Thawed and removed when dropped.
struct Frozen(PathBuf);

impl Frozen {
    fn with(pid: u32) -> Result<Self, String> {
        let path = Path::new("/sys/fs/cgroup/freezer").join(format!("beeline-e2e-{pid}"));
        std::fs::create_dir(&path).map_err(|error| format!("no freezer here: {error}"))?;
        let this = Self(path);
        this.write("cgroup.procs", &pid.to_string())?;
        this.write("freezer.state", "FROZEN")?;
        let state = || std::fs::read_to_string(this.0.join("freezer.state")).unwrap_or_default();
        match until(PATIENCE, || state().trim() == "FROZEN") {
            true => Ok(this),
            false => Err(format!("does not freeze: {}", state())),
        }
    }

    fn write(&self, file: &str, text: &str) -> Result<(), String> {
        let written = std::fs::write(self.0.join(file), text);
        written.map_err(|error| format!("cannot write {file}: {error}"))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = self.write("freezer.state", "THAWED");
        let members = std::fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
        for pid in members.lines() {
            let _ = std::fs::write("/sys/fs/cgroup/freezer/cgroup.procs", pid);
        }
        until(PATIENCE, || std::fs::remove_dir(&self.0).is_ok());
    }
}

#[test]
fn a_frozen_process() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    unharmed(|_, program, pid| {
        let frozen = match Frozen::with(pid) {
            Ok(frozen) => frozen,
            Err(why) => return eprintln!("skipped: {why}"),
        };
        let ended = trace(pid, &format!("uprobe:{}:wl_add", program.display()));
        drop(frozen);
        assert_refused(&ended, &["is frozen by its control group"]);
        let is_busy = |line: &String| line.ends_with("Device or resource busy");
        assert!(ended.stderr.iter().any(is_busy), "{ended:?}");
    });
}

#[test]
fn a_symbol_that_is_not_there() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    unharmed(|_, program, pid| {
        let ended = trace(
            pid,
            &format!("uprobe:{}:no_such_function", program.display()),
        );
        // Some bpftraces check by themselves, and print only this.
        assert_refused(&ended, &["no_such_function", "no probes to attach"]);
    });
}

#[test]
fn an_offset_beyond_the_file() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    unharmed(|scratch, program, pid| {
        let ended = attach(scratch, pid, program, &["p:0xfffffff0".to_owned()]);
        assert_refused(&ended, &["offset", "0xfffffff0", "invalid argument"]);
    });
}

#[test]
fn an_offset_in_the_middle_of_an_instruction() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    unharmed(|scratch, program, pid| {
        let offset = file_offset(program, "wl_offset").expect("a symbol of the workload");
        let ended = attach(scratch, pid, program, &[format!("p:{:#x}", offset + 5)]);
        assert_refused(&ended, &["instruction", "boundary", "middle"]);
    });
}

#[test]
fn a_place_that_is_data() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    unharmed(|scratch, program, pid| {
        let ended = attach(scratch, pid, program, &["p:0x8".to_owned()]);
        assert_refused(
            &ended,
            &["executable", "code", "text", "mapped", "invalid argument"],
        );
    });
}

#[test]
fn a_process_in_a_seccomp_jail_is_traced_or_left_alone() {
    let _turn = Turn::take();
    let scratch = Scratch::new();
    let program = scratch.build("jailed.c");
    for engine in need!(engines()) {
        let mut workload = Workload::start(&program);
        let mut command = engine.command("bpftrace");
        command.args(["-p", &workload.pid().to_string()]);
        let script = format!(
            "uprobe:{0}:jail_work {{ @in = count(); }} uretprobe:{0}:jail_work {{ @out = count(); }}",
            program.display()
        );
        let tool = Tool::bpftrace(command, &script);
        let attached = tool
            .stdout
            .wait_for(0, PATIENCE, |line| line == beeline_e2e::TICK)
            .is_some();
        assert_eq!(workload.go(), "done 5250", "{engine}");
        let ended = if attached {
            tool.interrupt()
        } else {
            tool.wait()
        };
        if attached {
            assert!(
                ended.stdout.iter().any(|line| line == "@in: 100"),
                "{engine}: {ended:?}"
            );
            assert!(
                ended.stdout.iter().any(|line| line == "@out: 100"),
                "{engine}: {ended:?}"
            );
        } else {
            assert_refused(&ended, &["seccomp"]);
        }
        assert_eq!(altered_text(workload.pid()), [""; 0], "{engine}");
        assert_eq!(workload.go(), "done 5250", "{engine}");
        workload.finish();
    }
}

#[test]
fn a_tool_that_is_not_there() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let ended = Tool::start(Engine::Beeline.command("no-such-tool")).wait();
    assert_refused(&ended, &["no-such-tool"]);
}

#[test]
fn probes_that_only_a_kernel_can_serve() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    unharmed(|_, _, pid| {
        for (place, named) in [
            ("kprobe:do_nanosleep", "kprobe:do_nanosleep"),
            ("profile:hz:99", "profile probes"),
            ("software:faults:1", "software event page-faults"),
            ("kfunc:tcp_connect", "fentry:tcp_connect"),
        ] {
            let mut command = Command::new(beeline());
            command.args(["run", "--where", "user", "--", "bpftrace"]);
            let ended = trace_by(command, pid, place);
            assert!(!ended.status.success(), "{ended:?}");
            // One sentence: what was asked for, that it is the kernel's, and what serves it.
            let told: Vec<_> = ended
                .stderr
                .iter()
                .filter(|line| line.starts_with("beeline: "))
                .collect();
            let [told] = told.as_slice() else {
                panic!("{place}: {told:?}");
            };
            for words in [named, "only a kernel has this", "beeline run --guest"] {
                assert!(told.contains(words), "{place}: no {words:?} in {told:?}");
            }
        }
    });
}

/// bcc compiles a program from the format of its tracepoint, and says only that it cannot compile
/// where there is none.
#[test]
fn a_tracepoint_without_a_format_is_named() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let hardirqs = need!(find_program("hardirqs-bpfcc"));
    let command = Engine::Beeline.command(hardirqs);
    let ended = Tool::start(need!(with_kernel_headers(command))).wait();
    assert!(!ended.status.success(), "{ended:?}");
    let told = ended.stderr.iter().find(|line| {
        line.starts_with("beeline: ") && line.contains("irq_handler_entry: only a kernel has this")
    });
    assert!(told.is_some(), "{ended:?}");
}

/// A program that looks for a function of the kernel's first does without it, as on a kernel that is
/// too old to have it.
#[test]
fn functions_that_a_program_can_do_without() {
    let _turn = Turn::take();
    let numbers = ["bpf_task_from_pid", "bpf_task_release"].map(kernel_function);
    let [acquire, release] = numbers;
    let numbers = [need!(acquire), need!(release)].map(|number| number.to_string());
    let scratch = Scratch::new();
    let optional = scratch.build("optional.c");
    for engine in need!(engines()) {
        let mut command = engine.command(&optional);
        command.args(&numbers);
        let ended = Tool::start(command).wait();
        assert_eq!(ended.stdout, ["loaded"], "{engine}: {ended:?}");
    }
}

#[test]
fn programs_that_change_what_calls_return() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let id = need!(kernel_function("__x64_sys_sethostname"));
    let attach = |scratch: &Scratch, pid: u32, options: &[&str]| {
        let mut command = Command::new(beeline());
        command.arg("run").args(options);
        command.args(["--pid", &pid.to_string(), "--"]);
        command.arg(scratch.build("modifies.c")).arg(id.to_string());
        Tool::start(command).wait()
    };
    unharmed(|scratch, _, pid| {
        let ended = attach(scratch, pid, &[]);
        assert_refused(&ended, &["fmod_ret"]);
        assert_eq!(ended.status.code(), Some(libc::EPERM), "{ended:?}");
        let told = ended.stderr.iter().filter(|line| line.contains("--unsafe"));
        assert_eq!(told.count(), 1, "{ended:?}");
    });
    unharmed(|scratch, _, pid| {
        let ended = attach(scratch, pid, &["--unsafe"]);
        assert!(ended.status.success(), "{ended:?}");
        assert_eq!(ended.stdout, ["attached"]);
    });
}

#[test]
fn commands_that_make_no_sense() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    let commands: [&[&str]; 6] = [
        &[],
        &["run"],
        &["run", "--"],
        &["detach"],
        &["detach", "nobody"],
        &["no-such-command"],
    ];
    for arguments in commands {
        let mut command = Command::new(beeline());
        command.args(arguments);
        let ended = Tool::start(command).wait();
        assert_refused(&ended, &["usage", "error", "help", "invalid"]);
    }
}

#[test]
fn detach_from_a_process_that_nobody_traces() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    unharmed(|_, _, pid| {
        let mut command = Command::new(beeline());
        command.args(["detach", &pid.to_string()]);
        let ended = Tool::start(command).wait();
        assert_refused(&ended, &[&pid.to_string(), "not traced", "nothing"]);
    });
}

#[test]
fn the_rest_of_the_machine_is_left_alone() {
    let _turn = Turn::take();
    need!(beeline_wanted());
    need!(find_program("bpftrace"));
    // Another process of the same program, which no tool asked to trace.
    unharmed(|_, program, pid| {
        let mut other: Child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("the workload runs");
        let mut command = Engine::Beeline.command("bpftrace");
        command.args(["-p", &pid.to_string()]);
        let script = format!("uprobe:{}:wl_add {{ @ = count(); }}", program.display());
        let tool = Tool::bpftrace(command, &script);
        tool.wait_attached();
        assert_eq!(
            altered_text(other.id()),
            [""; 0],
            "a process that was not asked for is patched"
        );
        assert!(tool.interrupt().status.success());
        drop(other.stdin.take());
        assert_eq!(
            other.wait().expect("it ends").code(),
            Some(beeline_e2e::EXIT_CODE)
        );
    });
}
