//! The proxy in a guest, and tools that reach the guest through it.

use beeline_e2e::{Guest, Job, PATIENCE, beeline, beeline_wanted, until};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The port where the proxy listens by default.
pub const PORT: u32 = 8790;
/// The time to try to reach a proxy that listens.
const SOON: Duration = Duration::from_secs(5);
/// The proxy's path in the guest.
pub const PLACE: &str = "/test/beeline-guest";
/// The proxy's connection by default.
const VSOCK: &str = "vsock:any:8790";

/// Returns the static proxy built beside Beeline, if Beeline is asked for.
pub fn built() -> Option<PathBuf> {
    beeline_wanted().ok()?;
    let proxy = beeline().with_file_name("beeline-guest");
    proxy.is_file().then_some(proxy)
}

/// A proxy that runs in a guest. Ends when dropped.
pub struct Proxy<'a> {
    guest: &'a Guest,
    job: Option<Job<'a>>,
    /// The process in the guest. Processes of that name that hold memory that hosts may have mapped
    /// outlive their proxy.
    pid: u32,
    address: String,
}

impl<'a> Proxy<'a> {
    /// Starts a proxy that listens at a vsock port, and waits until it does.
    pub fn start(guest: &'a Guest) -> Proxy<'a> {
        let address = format!("uds:{}:{PORT}", guest.vsock().display());
        Proxy::listen(guest, VSOCK, address, &[])
    }

    /// Starts a proxy with further options, which listens at an address in the guest that is
    /// reached from here by another; waits until it says so.
    pub fn listen(
        guest: &'a Guest,
        inside: &str,
        address: String,
        options: &[String],
    ) -> Proxy<'a> {
        assert!(
            built().is_some(),
            "no beeline-guest beside beeline: run make build first"
        );
        let options = options.join(" ");
        let command = format!("{PLACE} --listen {inside} --audit /tmp/audit {options}");
        let job = guest.start(&command);
        let listens = until(PATIENCE, || {
            job.stderr().iter().any(|line| line.contains("listening"))
        });
        assert!(listens, "the proxy does not listen: {:?}", job.stderr());
        Proxy {
            guest,
            pid: job.pid(),
            job: Some(job),
            address,
        }
    }

    /// Returns the command that runs a tool on the guest's kernel; add the tool's arguments to it.
    pub fn command(&self, tool: &Path) -> Command {
        command(&self.address, tool)
    }

    /// Returns the same command, which asks QEMU for the guest's memory.
    pub fn sharing_command(&self, tool: &Path) -> Command {
        sharing_command(&self.address, &self.guest.qmp(), tool)
    }

    /// Returns the address for `beeline run --guest`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Connects to the proxy without Beeline. The guest refuses a connection if too many wait to be
    /// accepted; tries again then.
    pub fn connect(&self) -> impl Fn() -> std::io::Result<UnixStream> + Send + 'static {
        let connect = self.guest.vsock_connector(PORT);
        move || {
            let mut result = connect();
            until(SOON, || {
                if result.is_err() {
                    result = connect();
                }
                result.is_ok()
            });
            result
        }
    }

    /// It went with its guest.
    pub fn forget(mut self) {
        self.job = None;
    }

    /// Kills the proxy, as a guest's kernel does that is out of memory.
    pub fn kill(mut self) {
        let job = self.job.take().expect("it runs until it is dropped");
        job.signal("KILL");
        job.wait();
    }

    /// Sends the proxy a signal.
    pub fn signal(&self, name: &str) {
        self.job
            .as_ref()
            .expect("it runs until it is dropped")
            .signal(name);
    }

    /// Returns the number of the proxy's descriptors except files and directories: it opens some of
    /// those when they are first asked for, and keeps them.
    pub fn descriptors(&self) -> u32 {
        let pid = self.pid;
        let count = format!("ls -l /proc/{pid}/fd | grep -c -- '-> [^/]'");
        self.guest.check(&count).trim().parse().expect("a number")
    }
}

impl Drop for Proxy<'_> {
    fn drop(&mut self) {
        // A guest that is gone has ended it, and a failed test has other things to report.
        if let Some(job) = self.job.take()
            && !std::thread::panicking()
        {
            job.signal("TERM");
            job.wait();
        }
    }
}

/// Returns the command that runs a tool on the kernel of the guest at an address.
pub fn command(address: &str, tool: &Path) -> Command {
    let mut command = Command::new(beeline());
    command.args(["run", "--guest", address, "--"]).arg(tool);
    command
}

/// Returns the same command, with QEMU's monitor.
pub fn sharing_command(address: &str, monitor: &Path, tool: &Path) -> Command {
    let mut command = Command::new(beeline());
    command.args(["run", "--guest", address, "--qmp"]);
    command.arg(monitor).arg("--").arg(tool);
    command
}
