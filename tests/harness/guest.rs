//! Virtual machines with Debian's kernels, in which tools run, and which can be inspected from
//! outside.
//!
//! A guest has busybox, Debian's bpftrace and libbpf tools, the files that a test gives it, one CPU
//! unless more are requested, and three connections: vsock, a virtio-serial port and forwarded TCP.
//! Its processor is emulated, as few test machines can run another virtual machine. So it takes
//! seconds to boot, and one boot should serve many tests.

mod control;
mod initramfs;
mod job;
mod kit;
mod machine;
mod qmp;

pub use control::Answer;
pub use job::Job;

use crate::until;
use control::Control;
use kit::Kit;
use machine::Machine;
use qmp::Qmp;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The time limit for a boot, and for any one command in a guest: a guest is slow, and the machine
/// may be busy.
pub const GUEST_PATIENCE: Duration = Duration::from_secs(90);

/// The kernel's message when the emulator lost a change of code between CPUs. It occurs rarely,
/// with more than one CPU, and is unrelated to the tests.
const EMULATORS_FAULT: &str = "Oops: int3";
/// The number of times that a boot is tried if it ends so.
const BOOTS: u32 = 3;

/// The properties of a guest.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    /// The series of its kernel: "6.12" or "6.1".
    pub kernel: &'a str,
    /// Its memory in MiB.
    pub memory: u32,
    /// The backing of that memory on the host.
    pub backing: Backing,
    /// The number of its CPUs.
    pub smp: u32,
    /// More words of the kernel's command line.
    pub parameters: &'a str,
    /// The programs to install: pairs of a file here and a path there.
    ///
    /// Folders are made as needed; `/usr`, `/lib` and `/lib64` cannot be written to. Debian's
    /// libraries for C, C++ and Rust programs are there.
    pub files: Vec<(PathBuf, String)>,
}

/// The backing of a guest's memory on the host, always shared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// A file.
    File,
    /// A memory file without a name, of huge pages of 2 MiB.
    HugePages,
    /// Two files of half of it each, one for each NUMA node; all CPUs are the second's.
    Nodes,
}

impl Default for Options<'_> {
    fn default() -> Self {
        Options {
            kernel: "6.12",
            memory: 256,
            backing: Backing::File,
            smp: 1,
            parameters: "",
            files: Vec::new(),
        }
    }
}

/// A running virtual machine.
///
/// It is killed when dropped, and does not outlive the tests' process either.
pub struct Guest {
    control: Control,
    machine: parking_lot::Mutex<Machine>,
    folder: PathBuf,
    pid: u32,
}

impl Guest {
    /// Checks that there can be a guest here.
    ///
    /// # Errors
    /// The reason why not.
    pub fn available(kernel: &str) -> Result<(), String> {
        Kit::find(kernel).map(drop)
    }

    /// Boots a guest. Panics with the guest's output if it does not come up.
    ///
    /// # Errors
    /// The reason why it cannot be tried here.
    pub fn boot(options: &Options) -> Result<Guest, String> {
        let kit = Kit::find(options.kernel)?;
        let initramfs = initramfs::make(&kit, options.kernel, &options.files);
        for _ in 1..BOOTS {
            match Guest::try_boot(&kit, options, &initramfs) {
                Ok(guest) => return Ok(guest),
                Err(words) if words.contains(EMULATORS_FAULT) => {
                    crate::remark("the guest's boot ended in the emulator's fault; once more");
                }
                Err(words) => panic!("{words}"),
            }
        }
        let last = Guest::try_boot(&kit, options, &initramfs);
        Ok(last.unwrap_or_else(|words| panic!("{words}")))
    }

    /// Boots once; the error holds the output of the guest and QEMU.
    fn try_boot(kit: &Kit, options: &Options, initramfs: &[u8]) -> Result<Guest, String> {
        let machine = Machine::start(kit, options, initramfs);
        let mut stream = None;
        until(crate::PATIENCE, || {
            stream = UnixStream::connect(machine.folder.join("control")).ok();
            stream.is_some() || !machine.runs()
        });
        let Some(stream) = stream else {
            return Err(words(&machine, "QEMU does not start"));
        };
        let control = Control::new(stream);
        let deadline = std::time::Instant::now() + GUEST_PATIENCE;
        while !control.wait_hello(0, Duration::from_millis(250)) {
            let died = machine.console.so_far().iter().any(|line| is_death(line));
            if died || !machine.runs() || std::time::Instant::now() > deadline {
                return Err(words(&machine, "the guest does not come up"));
            }
        }
        Ok(Guest {
            control,
            folder: machine.folder.clone(),
            pid: machine.pid,
            machine: parking_lot::Mutex::new(machine),
        })
    }

    /// Runs a shell script to its end. Panics if that takes longer than [`GUEST_PATIENCE`].
    pub fn run(&self, script: &str) -> Answer {
        self.run_with(script, &[])
    }

    /// Runs a script like [`Guest::run`], with a standard input.
    pub fn run_with(&self, script: &str, input: &[u8]) -> Answer {
        let id = self.control.send(script, input);
        self.answer(id, script, GUEST_PATIENCE)
    }

    /// Runs a script like [`Guest::run`], and returns its standard output.
    ///
    /// Panics if its exit code is not 0.
    pub fn check(&self, script: &str) -> String {
        let answer = self.run(script);
        assert_eq!(answer.code, 0, "in the guest: {script}: {answer:?}");
        answer.stdout
    }

    /// Writes a file in the guest, executable.
    pub fn put(&self, content: &[u8], path: &str) {
        let answer = self.run_with(&format!("cat >'{path}' && chmod 755 '{path}'"), content);
        assert_eq!(answer.code, 0, "in the guest: {path}: {answer:?}");
    }

    /// Starts a program with its arguments, in a shell's syntax, and does not wait for it.
    pub fn start(&self, command: &str) -> Job<'_> {
        Job::new(self, command)
    }

    fn answer(&self, id: u64, script: &str, patience: Duration) -> Answer {
        self.control.answer(id, patience).unwrap_or_else(|| {
            let machine = self.machine.lock();
            let words = words(&machine, "no answer from the guest");
            // A dead guest must not hide the reason from the next test.
            drop(machine);
            panic!("{words}\n--- script\n{script}")
        })
    }

    /// Returns the Unix socket of its vsock.
    ///
    /// A client that connects to it and sends "CONNECT PORT\n" is connected to that port of the
    /// guest, after a line "OK ...\n". Data that the guest sends to port P of CID 2 arrives at this
    /// path with the suffix "_P".
    pub fn vsock(&self) -> PathBuf {
        self.folder.join("vsock")
    }

    /// Returns the Unix socket of a serial port that is `/dev/virtio-ports/beeline` in the guest.
    pub fn virtio_serial(&self) -> PathBuf {
        self.folder.join("beeline")
    }

    /// Returns the file that is its memory, with [`Backing::File`]: guest-physical addresses are
    /// offsets, below 2 GiB.
    pub fn memory_file(&self) -> PathBuf {
        self.folder.join("memory")
    }

    /// Returns the file that is its second node's memory, with [`Backing::Nodes`].
    pub fn second_memory_file(&self) -> PathBuf {
        self.folder.join("memory-1")
    }

    /// Returns the Unix socket of QEMU's monitor, for one connection at a time.
    pub fn qmp(&self) -> PathBuf {
        self.folder.join("qmp")
    }

    /// Returns a folder that is removed with the guest, for sockets with other name prefixes than
    /// its own.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the id of QEMU's process.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Returns the lines of its console so far.
    pub fn console(&self) -> Vec<String> {
        let machine = self.machine.lock();
        machine.console.so_far()
    }

    /// Forwards connections to an address on this machine's loopback to a TCP port of the guest;
    /// returns that address.
    pub fn forward_tcp(&self, port: u16) -> SocketAddr {
        const TRIES: u32 = 8;
        let mut said = String::new();
        for _ in 0..TRIES {
            // The port is free now; if another process takes it before QEMU does, a further one is
            // tried.
            let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|s| s.local_addr());
            let address = free.expect("no free port");
            let rule = format!("hostfwd_add tcp:127.0.0.1:{}-:{port}", address.port());
            said = self.monitor("human-monitor-command", &json!({ "command-line": rule }));
            if said == "\"\"" {
                return address;
            }
        }
        panic!("QEMU does not forward a port: {said}");
    }

    fn monitor(&self, command: &str, arguments: &Value) -> String {
        let path = self.folder.join("qmp-tests");
        let mut qmp = None;
        // QEMU takes one connection at a time, and needs a moment to be free for the next.
        until(crate::PATIENCE, || {
            qmp = Qmp::connect(&path).ok();
            qmp.is_some()
        });
        let mut qmp = qmp.expect("QEMU's monitor does not answer");
        let answer = qmp.execute(command, arguments);
        answer
            .unwrap_or_else(|error| panic!("QEMU: {error}"))
            .to_string()
    }

    /// Connects to a vsock port of the guest.
    ///
    /// # Errors
    /// Fails if nothing listens there.
    pub fn connect_vsock(&self, port: u32) -> std::io::Result<UnixStream> {
        self.vsock_connector(port)()
    }

    /// Returns a function that makes connections to a vsock port of the guest, as long as there is
    /// one.
    pub fn vsock_connector(
        &self,
        port: u32,
    ) -> impl Fn() -> std::io::Result<UnixStream> + Send + 'static {
        let path = self.vsock();
        move || connect_vsock(&path, port)
    }

    /// Resets it, like the reset button.
    pub fn reset(&self) {
        self.monitor("system_reset", &json!({}));
    }

    /// Resets it, and waits until it is up again.
    pub fn reboot(&self) {
        let before = self.control.hellos();
        self.reset();
        let up = self.control.wait_hello(before, GUEST_PATIENCE);
        let machine = self.machine.lock();
        assert!(
            up,
            "{}",
            words(&machine, "the guest does not come up again")
        );
    }

    /// Ends it like a power cut.
    pub fn kill(&self) {
        self.machine.lock().kill();
    }
}

/// Connects with the messages of Firecracker and vhost-device-vsock: "OK ...\n" answers "CONNECT
/// PORT\n".
fn connect_vsock(path: &Path, port: u32) -> std::io::Result<UnixStream> {
    let mut stream = UnixStream::connect(path)?;
    stream.set_read_timeout(Some(crate::PATIENCE))?;
    stream.write_all(format!("CONNECT {port}\n").as_bytes())?;
    let mut line = Vec::new();
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        line.extend(byte);
    }
    if !line.starts_with(b"OK ") {
        let words = String::from_utf8_lossy(&line).into_owned();
        return Err(std::io::Error::other(words));
    }
    stream.set_read_timeout(None)?;
    Ok(stream)
}

/// Returns whether a boot is dead after this line of the console.
fn is_death(line: &str) -> bool {
    line.contains("Kernel panic") || line.contains(EMULATORS_FAULT)
}

fn words(machine: &Machine, what: &str) -> String {
    let (console, errors) = (machine.console.so_far(), machine.errors.so_far());
    let (console, errors) = (console.join("\n"), errors.join("\n"));
    format!("{what}\n--- console\n{console}\n--- QEMU\n{errors}")
}
