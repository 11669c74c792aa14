//! The demonstration of guests: it boots a virtual machine, and runs unmodified tools on this
//! machine with their programs in the other's kernel.
//!
//! Ctrl-C ends the step that runs, and then the demonstration. However it ends, the virtual machine
//! is killed and its files are removed (see [`Guest`]).

use anyhow::{Context, anyhow};
use beeline_e2e::{
    GUEST_PATIENCE, Guest, Job, Lines, Options, Scratch, beeline, find_program, until,
};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The port of the proxy in the guest.
const PORT: u32 = 8790;
/// The program that binds itself to a CPU, and its place in the guest.
const AFFINITY: &str = "/demo/affinity";
/// The work of the guest that the tools show.
const WORK: &str = "sh -c 'while :; do cat /etc/inittab /proc/uptime >/dev/null; sleep 1; done'";
/// A program that sleeps again and again, in functions of its own, and its place in the guest.
const SLEEPS: &str = "/demo/sleeps";
/// The seconds for which each tool runs, as its option says it.
const SECONDS: &str = "5";
/// The time for the pinned state to be seen.
const PINNED: Duration = Duration::from_secs(3);

/// The exit code after Ctrl-C, a shell's.
const INTERRUPTED_CODE: i32 = 128 + libc::SIGINT;
/// True after Ctrl-C.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Runs all steps.
///
/// # Errors
///
/// Fails if there can be no guest here, a tool is missing or fails, or the user ends it.
pub fn run() -> anyhow::Result<()> {
    let proxy = beeline().with_file_name("beeline-guest");
    anyhow::ensure!(
        proxy.is_file(),
        "no {}: run make build, or make demo-guest",
        proxy.display()
    );
    let demo = Demo::boot(&proxy)?;
    // The step that runs has got Ctrl-C too, and ends by itself.
    end_after_this_step();
    let shown = demo.show();
    drop(demo);
    if INTERRUPTED.load(Relaxed) {
        title("Interrupted: the virtual machine is killed, and its files are removed.");
        std::process::exit(INTERRUPTED_CODE);
    }
    shown?;
    title("The end: the virtual machine is killed, and its files are removed.");
    Ok(())
}

/// A guest to show.
struct Demo {
    guest: Guest,
    /// The CPUs that this machine has for the guest's.
    cpus: usize,
    address: String,
}

impl Demo {
    fn boot(proxy: &Path) -> anyhow::Result<Self> {
        title(
            "Booting a virtual machine with Debian's Linux 6.12 (emulated, so it takes a moment).",
        );
        let began = Instant::now();
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let scratch = Scratch::new();
        let options = Options {
            smp: 2,
            files: vec![
                (scratch.build("affinity.c"), AFFINITY.to_owned()),
                (scratch.build("sleeps.c"), SLEEPS.to_owned()),
                (proxy.to_owned(), "/demo/beeline-guest".to_owned()),
            ],
            ..Options::default()
        };
        let guest = Guest::boot(&options).map_err(|why| anyhow!(why))?;
        println!("It is up after {} s.", began.elapsed().as_secs());
        let address = format!("uds:{}:{PORT}", guest.vsock().display());
        Ok(Self {
            guest,
            cpus,
            address,
        })
    }

    /// Carries out the steps.
    fn show(&self) -> anyhow::Result<()> {
        let _work = self.guest.start(WORK);
        let _proxy = self.serve()?;
        self.opensnoop()?;
        self.bpftrace()?;
        self.stacks()?;
        self.vcpu_pin()
    }

    /// Starts the proxy in the guest.
    fn serve(&self) -> anyhow::Result<Job<'_>> {
        let command = "/demo/beeline-guest --policy observe";
        println!("In it a shell runs `cat` once a second. There runs also the proxy:");
        println!(
            "  guest# {}",
            command.replace("/demo/beeline-guest", "beeline guest")
        );
        let job = self.guest.start(command);
        let listens = until(GUEST_PATIENCE, || {
            job.stderr().iter().any(|line| line.contains("listening"))
        });
        anyhow::ensure!(listens, "the proxy does not listen: {:?}", job.stderr());
        Ok(job)
    }

    fn opensnoop(&self) -> anyhow::Result<()> {
        title(&format!(
            "1. opensnoop runs on this machine for {SECONDS} s. It shows files that processes of the guest open."
        ));
        self.run(&["opensnoop", "-d", SECONDS])
    }

    fn bpftrace(&self) -> anyhow::Result<()> {
        title(&format!(
            "2. A bpftrace one-liner counts the guest's calls of the kernel's vfs_open, by program, for {SECONDS} s."
        ));
        let script =
            format!("kprobe:vfs_open {{ @[comm] = count(); }} interval:s:{SECONDS} {{ exit(); }}");
        self.run(&["bpftrace", "-e", &script])
    }

    fn stacks(&self) -> anyhow::Result<()> {
        title(&format!(
            "3. bpftrace counts stacks of the guest's program {SLEEPS}, with names from the guest's own file."
        ));
        let _job = self.guest.start(SLEEPS);
        let script = format!(
            "tracepoint:syscalls:sys_enter_nanosleep /comm == \"sleeps\"/ {{ @[ustack] = count(); }} \
             interval:s:{SECONDS} {{ exit(); }}"
        );
        self.run(&["bpftrace", "-e", &script])
    }

    /// Runs a tool of this machine on the guest's kernel.
    fn run(&self, tool: &[&str]) -> anyhow::Result<()> {
        let program = find_program(tool[0]).map_err(|why| anyhow!(why))?;
        let mut command = Command::new(beeline());
        command.args(["run", "--guest", &self.address, "--"]);
        command.arg(program).args(&tool[1..]);
        let shown: Vec<String> = tool.iter().map(|word| quoted(word)).collect();
        println!(
            "  host# beeline run --guest {} -- {}",
            self.address,
            shown.join(" ")
        );
        let status = command.stdin(Stdio::null()).status();
        let status = status.context("Beeline cannot be started")?;
        go_on()?;
        anyhow::ensure!(status.success(), "{} has failed: {status}", tool[0]);
        Ok(())
    }

    fn vcpu_pin(&self) -> anyhow::Result<()> {
        title(
            "4. vcpu-pin runs on this machine. A thread in the guest binds itself to the guest's CPU 1.",
        );
        if self.cpus < 2 {
            println!("left out: this machine has one CPU, and every virtual CPU runs there anyway");
            return Ok(());
        }
        let qmp = self.guest.qmp();
        let mut command = Command::new(beeline());
        command.args(["vcpu-pin", "--guest", &self.address, "--qmp"]);
        command
            .arg(&qmp)
            .stdin(Stdio::null())
            .stderr(Stdio::piped());
        println!(
            "  host# beeline vcpu-pin --guest {} --qmp {}",
            self.address,
            qmp.display()
        );
        let mut tool = Ended(command.spawn().context("Beeline cannot be started")?);
        let said = Lines::collect(tool.0.stderr.take().context("stderr is piped")?);
        let ready = said.wait_for(0, GUEST_PATIENCE, |line| line.contains("ready to pin"));
        anyhow::ensure!(ready.is_some(), "it is not ready: {:?}", said.so_far());
        go_on()?;
        println!("  guest# taskset 2 PROGRAM");
        let bound = self.guest.start(&format!("{AFFINITY} 1"));
        let pinned = said.wait_for(0, PINNED, |line| line.contains("is pinned"));
        let thread = pinned.and_then(|(_, line)| {
            let number = line.split_once("(thread ")?.1;
            Some(number.split_once(')')?.0.to_owned())
        });
        let thread = thread.with_context(|| format!("nothing is pinned: {:?}", said.so_far()))?;
        self.allowed(&thread, "While it is bound")?;
        drop(bound);
        said.wait_for(0, PINNED, |line| line.contains("is free"));
        self.allowed(&thread, "After it has ended")?;
        drop(tool);
        println!("vcpu-pin has said:");
        for line in said.so_far() {
            println!("  {line}");
        }
        go_on()
    }

    /// Prints the CPUs that a thread of QEMU's may run on.
    fn allowed(&self, thread: &str, when: &str) -> anyhow::Result<()> {
        go_on()?;
        let status = format!("/proc/{}/task/{thread}/status", self.guest.pid());
        let status = std::fs::read_to_string(status).context("QEMU has ended")?;
        let mut lines = status.lines();
        let allowed = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        println!(
            "{when}, QEMU's thread {thread} may run on this machine's CPU {}.",
            allowed.unwrap_or_default().trim()
        );
        Ok(())
    }
}

/// A process that is ended when dropped, as Ctrl-C would end it.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // SAFETY: signals a child that has not been waited for yet.
        unsafe { libc::kill(self.0.id() as i32, libc::SIGINT) };
        let _ = self.0.wait();
    }
}

fn title(text: &str) {
    println!("\n== {text}");
    // A tool prints to the same place next.
    let _ = std::io::stdout().flush();
}

/// Returns a word as a user would type it.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_/.:".contains(letter);
    match word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// Has Ctrl-C noted from now on, instead of ending this process.
fn end_after_this_step() {
    extern "C" fn note(_: i32) {
        INTERRUPTED.store(true, Relaxed);
    }
    let note: extern "C" fn(i32) = note;
    // SAFETY: the handler only stores to an atomic.
    unsafe { libc::signal(libc::SIGINT, note as libc::sighandler_t) };
}

/// Fails if the user has ended it.
fn go_on() -> anyhow::Result<()> {
    anyhow::ensure!(!INTERRUPTED.load(Relaxed), "interrupted");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_shown_as_they_are_typed() {
        assert_eq!(quoted("/usr/bin/bpftrace"), "/usr/bin/bpftrace");
        assert_eq!(quoted("@ = 'x'"), "'@ = '\\''x'\\'''");
        assert_eq!(quoted("@[comm]"), "'@[comm]'");
    }
}
