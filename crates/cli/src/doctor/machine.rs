//! The kernel, the processor, and what else a machine or a container gives.

use std::path::Path;

use beeline_codegen::Worker;
use beeline_codegen::worker::LLVM;
use beeline_isa::Insn;
use beeline_isa::opcode::{ALU64, EXIT, IMM, JMP, K, MOV};
use beeline_kernel::{ProgramSpec, load_program};
use beeline_runtime::{check_machine, proc};
use beeline_uapi::ProgramType;
use rustix::process::{Resource, getrlimit};

use super::calls::{Answer, BPF, errno_name};
use super::finding::Finding;

/// The first kernel that has what Beeline needs.
const NEEDED: (u32, u32) = (5, 14);

/// The open files that a session needs to begin.
const FEWEST_FILES: u64 = 64;
/// The open files with which most tools have enough: each object of a tool is one.
const ENOUGH_FILES: u64 = 1024;

/// The kernel's types, by which tools describe its structures.
const TYPES: &str = "/sys/kernel/btf/vmlinux";

/// Checks that the kernel is new enough.
pub fn kernel() -> Finding {
    let name = rustix::system::uname();
    let text = name.release().to_string_lossy().into_owned();
    let (major, minor) = NEEDED;
    match release() {
        Some(release) if release >= NEEDED => Finding::ok(format!("Linux {text}")),
        Some(_) => Finding::no(format!("Linux {text} lacks what Beeline needs"))
            .fix(format!("run Linux {major}.{minor} or later; under gVisor, its kernel counts: use another runtime")),
        None => Finding::warn(format!("the release {text} has no numbers; {major}.{minor} or later is needed")),
    }
}

/// Returns the kernel's version.
pub fn release() -> Option<(u32, u32)> {
    parse_release(&rustix::system::uname().release().to_string_lossy())
}

fn parse_release(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Checks that the processor has what compiled programs need.
pub fn processor() -> Finding {
    match check_machine() {
        Ok(()) => Finding::ok("x86-64 with FSGSBASE"),
        Err(error) => Finding::no(error.to_string())
            .fix("run on a processor since 2012, with a hypervisor that passes FSGSBASE on"),
    }
}

/// Checks that this process may have enough files open.
pub fn open_files() -> Finding {
    let limit = getrlimit(Resource::Nofile);
    let (soft, hard) = (
        limit.current.unwrap_or(u64::MAX),
        limit.maximum.unwrap_or(u64::MAX),
    );
    let fix = format!(
        "raise the limit: `ulimit -n {ENOUGH_FILES}`, `docker run --ulimit nofile={ENOUGH_FILES}`"
    );
    if soft < FEWEST_FILES {
        return Finding::no(format!(
            "{soft} files may be open, and a session needs {FEWEST_FILES} to begin"
        ))
        .fix(fix);
    }
    // A session raises its limit to the hard one.
    if hard < ENOUGH_FILES {
        let detail =
            format!("{hard} files may be open: a tool with many programs and maps needs more");
        return Finding::warn(detail).fix(fix);
    }
    Finding::ok(match hard {
        u64::MAX => "as many as wanted".to_owned(),
        hard => format!("{hard} may be open"),
    })
}

/// Checks that `/proc` shows this process and others.
pub fn proc_files() -> Finding {
    let own = std::fs::read_link("/proc/self");
    let own: Option<u32> = own.ok().and_then(|link| link.to_str()?.parse().ok());
    let fix =
        "mount /proc for this PID namespace: `mount -t proc proc /proc`, `bwrap --proc /proc`";
    match own {
        Some(own) if own == std::process::id() => {}
        Some(_) => return Finding::no("/proc is that of another PID namespace").fix(fix),
        None => return Finding::no("/proc is not mounted").fix(fix),
    }
    let mounts = proc::text("/proc/self/mountinfo").unwrap_or_default();
    let options = proc_options(&mounts);
    let hides = options.iter().filter(|option| {
        option.starts_with("hidepid=") && !matches!(**option, "hidepid=0" | "hidepid=off")
    });
    let hides: Vec<_> = hides.copied().collect();
    if options.contains(&"subset=pid") {
        return Finding::warn("mounted with subset=pid: settings of the kernel are not seen, and live sessions are taken for dead ones")
            .fix("mount /proc without subset=pid");
    }
    match hides.as_slice() {
        [] => Finding::ok("shows all processes"),
        hides => Finding::ok(format!(
            "mounted with {}: other users' processes are not seen",
            hides.join(", ")
        )),
    }
}

/// Returns the options of the last file system at `/proc`, from `mountinfo`.
fn proc_options(mounts: &str) -> Vec<&str> {
    let is_proc =
        |line: &&str| line.split(' ').nth(4) == Some("/proc") && line.contains(" - proc ");
    let last = mounts.lines().rfind(is_proc).unwrap_or_default();
    let options = last.rsplit(' ').next().unwrap_or_default();
    options
        .split(',')
        .filter(|option| !option.is_empty())
        .collect()
}

/// Checks that the kernel's types are there.
pub fn types() -> Finding {
    match std::fs::File::open(TYPES) {
        Ok(_) => Finding::ok(TYPES),
        Err(error) => Finding::warn(format!(
            "{TYPES}: {error}; tools that use the kernel's types (CO-RE, fentry) do not start"
        ))
        .fix("run a kernel with CONFIG_DEBUG_INFO_BTF, and with /sys mounted"),
    }
}

/// Finds out if this user may load programs into the kernel, which no local session needs.
pub fn kernel_programs() -> Finding {
    let insns = [
        Insn {
            code: ALU64 | MOV | K,
            ..Insn::default()
        },
        Insn {
            code: JMP | EXIT | IMM,
            ..Insn::default()
        },
    ];
    let program = ProgramSpec {
        prog_type: ProgramType::KPROBE,
        license: "GPL",
        insns: &insns,
        ..ProgramSpec::default()
    };
    if let answer @ Answer::Killed(_) = BPF.answer() {
        return no_kernel_programs(&answer.in_words());
    }
    match load_program(&program) {
        Ok(_) => Finding::ok("this user may load programs into the kernel"),
        Err(refusal) => no_kernel_programs(&errno_name(refusal.errno)),
    }
}

fn no_kernel_programs(why: &str) -> Finding {
    Finding::ok(format!(
        "no ({why}): only `--verifier kernel` and `beeline guest` need it"
    ))
}

/// Checks that the optimizing compiler is there.
pub fn llvm() -> Finding {
    match Worker::beside_this() {
        Some(worker) => Finding::ok(shown(worker.path())),
        None => Finding::warn(format!(
            "there is no {LLVM} beside beeline: programs run the baseline compiler's code"
        ))
        .fix(format!("install {LLVM} beside beeline")),
    }
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_begin_with_two_numbers() {
        assert_eq!(parse_release("6.18.44-fc"), Some((6, 18)));
        assert_eq!(parse_release("5.14-rc1"), Some((5, 14)));
        assert_eq!(parse_release("5"), None);
        assert_eq!(parse_release("next"), None);
        assert!(parse_release("4.19.0") < Some(NEEDED) && parse_release("10.0") > Some(NEEDED));
    }

    #[test]
    fn the_last_proc_counts() {
        let mounts = "21 1 0:20 / /proc rw,relatime shared:5 - proc proc rw,hidepid=2\n\
             22 1 0:21 / /proc/fs rw - proc proc rw\n\
             23 21 0:22 / /proc rw,nosuid - proc proc rw,hidepid=invisible,subset=pid\n";
        assert_eq!(
            proc_options(mounts),
            ["rw", "hidepid=invisible", "subset=pid"]
        );
        assert!(proc_options("").is_empty());
    }
}
