//! `beeline run --guest`: a session with programs that run in a virtual machine.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::Builder;
use std::time::Duration;

use anyhow::Context;
use beeline_supervisor::{ClockError, Clocks, Options, Tool};
use beeline_vm_frontend::{Connection, Difference, Guest, Sharing};
use beeline_vm_memory::{GuestMemory, Part, wait_for_the_end};
use beeline_vm_protocol::address::Address;
use beeline_vm_protocol::channel::Channel;
use beeline_vm_qmp::Monitor;
use clap::Args;
use rustix::process::{Pid, Signal};

use crate::fallback;
use crate::proxy::{Certificates, Silence, connected_to};
use crate::run::{self, exit_code};
use crate::{guest_commands, say, signals};

/// Options of `beeline run` that have no effect in a guest, and are refused. Nor has `--engine`, but
/// clap takes BEELINE_ENGINE for that option.
const LOCAL: [&str; 9] = [
    "all",
    "pid",
    "destructive",
    "no_isolation",
    "programs",
    "stacks",
    "aot",
    "verbose",
    "memory_limit",
];

/// The exit code for a command line that cannot be carried out.
const USAGE: u8 = 2;

/// Options for a session in a guest.
#[derive(Debug, Args)]
pub struct Where {
    /// Run the tool's programs in a virtual machine, where `beeline guest` runs: vsock:CID[:PORT],
    /// uds:PATH[:PORT] (Firecracker, Cloud Hypervisor, vhost-device-vsock), unix:PATH,
    /// tcp:ADDRESS:PORT, serial:PATH. The guest's kernel compiles the programs and limits their memory
    #[arg(long, value_name = "ADDRESS", conflicts_with_all = LOCAL)]
    #[allow(
        rustdoc::broken_intra_doc_links,
        reason = "clap prints the text as it stands"
    )]
    pub guest: Option<Address>,
    #[command(flatten)]
    pub silence: Silence,
    #[command(flatten)]
    pub tls: Certificates,
    #[command(flatten)]
    pub memory: Memory,
}

/// Options for access to the guest's memory on this machine.
#[derive(Debug, Args)]
pub struct Memory {
    /// QEMU's monitor, with no other client (-qmp unix:PATH,server=on,wait=off): it names the
    /// guest's memory, and the tool then reads rings and arrays in it. The memory has to be shared
    /// (-object memory-backend-file,share=on or memory-backend-memfd)
    #[arg(long, value_name = "SOCKET", requires = "guest")]
    pub qmp: Option<PathBuf>,
    /// The same for other machines: the file that is the guest's memory from address 0 on; or a
    /// part of it (may be repeated): PATH@ADDRESS,LENGTH,OFFSET, in bytes
    #[arg(long, value_name = "PATH", requires = "guest", conflicts_with = "qmp")]
    pub memory: Vec<Part>,
}

/// Runs the tool to its end. Its exit code is ours, unless the guest is lost before.
///
/// # Errors
///
/// Fails if the guest or its memory cannot be reached, or the tool cannot be served.
pub fn run(tool: &[OsString], address: &Address, place: &Where) -> anyhow::Result<ExitCode> {
    let mut inherited_actions = signals::take_over();
    inherited_actions.extend(signals::outlive_file_limit());
    let tls = place.tls.tls();
    let tls = tls.as_ref();
    let (memory, monitor) = place.memory.find()?;
    let channel = Channel::connect(address, tls)?;
    channel.set_patience(place.silence.patience())?;
    let words: Vec<_> = tool.iter().map(|word| word.to_string_lossy()).collect();
    let connection = Connection::greet(channel, &words.join(" "), Box::new(say), Box::new(end))?;
    say(&connected_to(connection.welcome(), address));
    if !connection.is_this_machine()
        && let Some(why) = guest_commands::refusal(tool)
    {
        say(&why);
        connection.close();
        return Ok(ExitCode::from(USAGE));
    }
    let sharing = memory.and_then(|memory| share(&connection, memory));
    if let Some(monitor) = monitor.filter(|_| sharing.is_some()) {
        tell_of_the_end(monitor, &connection)?;
    }
    let clocks = connection.compare_clocks()?;
    let mut tools_clocks = clocks.tools_clocks();
    if let Some(Err(error)) = tools_clocks.map(Clocks::try_out) {
        say(&without_clocks(&clocks, &error));
        tools_clocks = None;
    }
    let options = Options {
        pretend_root: run::lacks_rights(),
        is_for_guest: true,
        interception: run::interception(|| run::prepare_alone(Arc::new(say)))?,
        inherited_actions,
        clocks: tools_clocks,
    };
    let started = match Tool::spawn(tool, &options) {
        Ok(started) => started,
        Err(error) => {
            say(&error.to_string());
            return Ok(ExitCode::from(error.exit_code()));
        }
    };
    connection.watch_clocks(clocks)?;
    if let Some(line) = clocks.of_dates() {
        say(&line);
    }
    let mut guest = Guest::new(connection, sharing).context("the tool cannot be served")?;
    match started.clocks() {
        Ok(()) if options.clocks.is_some() => {
            guest = guest.with_clocks(started.pid(), clocks.ahead())?;
        }
        Ok(()) => {}
        Err(error) => say(&without_clocks(&clocks, error)),
    }
    let pid = Pid::from_raw(started.pid()).context("the tool has no process")?;
    signals::hand_on_to(pid, started.stopper()?)?;
    if LOST.load(Relaxed) {
        // It was lost before the tool could be told.
        end_tool();
    }
    let status = fallback::with_fallback(started)?.serve(guest)?;
    signals::end();
    match LOST.load(Relaxed) {
        true => Ok(ExitCode::FAILURE),
        false => Ok(exit_code(status)),
    }
}

impl Memory {
    /// Returns the memory that was named, and the monitor if that was the way.
    fn find(&self) -> anyhow::Result<(Option<GuestMemory>, Option<Monitor>)> {
        if let Some(path) = &self.qmp {
            let mut monitor = Monitor::connect(path)?;
            let memory = GuestMemory::of_qemu(&mut monitor)?;
            return Ok((Some(memory), Some(monitor)));
        }
        if self.memory.is_empty() {
            return Ok((None, None));
        }
        Ok((Some(GuestMemory::of_parts(&self.memory)?), None))
    }
}

/// Says that the tool has the wrong clocks.
fn without_clocks(clocks: &Difference, error: &ClockError) -> String {
    format!(
        "the guest's clock is {} the tool's, and the tool cannot have clocks of its own: {error}; what it computes from \
         programs' times and its own is that far off. Run it as root (CAP_SYS_ADMIN and CAP_SYS_TIME), or where \
         ordinary users may make user namespaces",
        clocks.of_clocks()
    )
}

/// Shares the guest's memory with the tool, if it is this guest's, and reports the way that is in
/// use.
fn share(connection: &Connection, memory: GuestMemory) -> Option<Arc<Sharing>> {
    let bytes = memory.len();
    match Sharing::new(connection, memory) {
        Ok(sharing) => {
            let mebibytes = bytes >> 20;
            say(&format!(
                "rings and arrays are read in the guest's memory ({mebibytes} MiB shared)"
            ));
            Some(sharing)
        }
        Err(error) => {
            say(&format!("{error}; records are sent instead"));
            None
        }
    }
}

/// Ends the session at once on a reset, and on anything else that ends the content of the guest's
/// memory.
fn tell_of_the_end(monitor: Monitor, connection: &Arc<Connection>) -> anyhow::Result<()> {
    let connection = Arc::clone(connection);
    let watch = move || {
        // If only the monitor is gone, the guest may be well.
        if let Some(event) = wait_for_the_end(monitor) {
            connection.lose(&format!("QEMU says {event}"));
        }
    };
    let thread = Builder::new().name("beeline-monitor".into());
    thread.spawn(watch).context("starting a thread")?;
    Ok(())
}

/// True if the tool did not end by itself.
static LOST: AtomicBool = AtomicBool::new(false);

/// The time that a tool has to end by itself when its guest is lost.
const GRACE: Duration = Duration::from_secs(3);

/// Ends the tool because the guest is lost. All its calls fail, and some tools would wait for
/// events forever; some ignore what they are told.
fn end(why: &str) {
    LOST.store(true, Relaxed);
    say(&format!(
        "the guest is lost: {why}; the tool is told to end"
    ));
    end_tool();
}

/// Tells the tool to end, and sees to it that it does.
fn end_tool() {
    signals::signal_tool(Signal::TERM);
    let kill = || {
        if !signals::wait_for_tool(GRACE) {
            let seconds = GRACE.as_secs();
            say(&format!(
                "the tool has not ended within {seconds} s, and is killed"
            ));
            signals::signal_tool(Signal::KILL);
            signals::wait_for_tool(GRACE);
        }
        // Nothing of the session is left that its children could use.
        signals::stop_serving();
    };
    // The connection's threads wait for this one.
    let thread = Builder::new().name("beeline-end".into());
    if thread.spawn(kill).is_err() {
        signals::signal_tool(Signal::KILL);
    }
}
