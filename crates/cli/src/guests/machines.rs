//! The virtual machines of this host: what runs them, and the places where a proxy may listen.

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use anyhow::Context;
use beeline_vm_protocol::address::Address;

use super::command_line::{self, CommandLine};

/// The time for everything that is read here: `/proc/PID/cmdline` of a process that holds its memory
/// fast does not end.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most bytes of a command line or a file that are read. A longer one is of no machine.
const LONGEST: u64 = 1 << 20;
/// The most entries of a directory of libvirt's.
const MOST_ENTRIES: usize = 4096;
/// The directories where libvirt keeps the monitors of its machines (in `domain-NUMBER-NAME`), and
/// the sockets of their serial ports (in `NUMBER-NAME`, of old versions in `domain-NUMBER-NAME`). A
/// user's own are below the user's directories.
const LIBVIRT: [&str; 3] = [
    "/var/lib/libvirt/qemu",
    "/run/libvirt/qemu/channel",
    "/var/lib/libvirt/qemu/channel/target",
];

/// Stands for what runs a machine that only libvirt's directories tell of.
const LIBVIRTS: &str = "libvirt";

/// A virtual machine.
#[derive(Debug, Default)]
pub struct Machine {
    /// The process; `None` if only its sockets are known.
    pub pid: Option<i32>,
    /// The program that runs it.
    pub monitor: &'static str,
    pub name: Option<String>,
    pub places: Vec<Place>,
    pub qmp: Vec<PathBuf>,
    vhost: Vec<PathBuf>,
    is_stopped: bool,
}

/// A place where a proxy may listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub address: Address,
    /// The reason for not asking there.
    pub not_asked: Option<NotAsked>,
    /// True for a vhost-device-vsock. If a client gives up before the guest has taken its connection,
    /// version 0.3.0 serves nobody any more.
    pub is_delicate: bool,
}

/// The reason for not asking at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotAsked {
    /// The socket belongs to another user than the machine's process. Anyone can give a process any
    /// command line; so no socket of another user's is connected to because of one.
    Foreign,
    /// The machine's process is stopped.
    Stopped,
}

impl Place {
    fn new(address: Address) -> Self {
        Self {
            address,
            not_asked: None,
            is_delicate: false,
        }
    }
}

/// Returns the machines, and true if everything could be looked at in time.
///
/// # Errors
///
/// Fails if no thread can be started.
pub fn find() -> anyhow::Result<(Vec<Machine>, bool)> {
    let (sender, found) = channel();
    let look = move || {
        of_processes(&sender);
        of_libvirt(&sender);
    };
    let thread = Builder::new().name("beeline-machines".into());
    thread.spawn(look).context("starting a thread")?;
    let deadline = Instant::now() + PATIENCE;
    let mut machines = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match found.recv_timeout(left) {
            Ok(machine) => machines.push(machine),
            Err(RecvTimeoutError::Disconnected) => return Ok((merged(machines), true)),
            Err(RecvTimeoutError::Timeout) => return Ok((merged(machines), false)),
        }
    }
}

fn of_processes(found: &Sender<Machine>) {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    for entry in processes {
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        // If nobody listens any more, there was no time for the rest.
        if let Some(machine) = pid.and_then(of_process)
            && found.send(machine).is_err()
        {
            return;
        }
    }
}

fn of_process(pid: i32) -> Option<Machine> {
    let file = |name: &str| PathBuf::from(format!("/proc/{pid}/{name}"));
    let words = text(&file("cmdline"))?;
    let words: Vec<_> = words.split('\0').map(str::to_owned).collect();
    let CommandLine {
        program,
        name,
        places,
        qmp,
        vhost,
        config,
    } = command_line::read(&words)?;
    let status = text(&file("status"))?;
    let users = users(&status);
    let is_own = |file: Metadata| users.contains(&file.uid());
    let seen = Seen::by(pid);
    let config = config.map(|path| seen.path(path));
    let config =
        config.filter(|path| fs::metadata(path).is_ok_and(|file| file.is_file() && is_own(file)));
    let configured = config.and_then(|path| command_line::of_config(&text(&path)?));
    let places = places.into_iter().chain(configured).map(|address| {
        let mut place = Place::new(address);
        if let Address::Uds { path, .. } | Address::Serial { path } = &mut place.address {
            *path = seen.path(std::mem::take(path));
            // Of one that is not there the connection will say so.
            let is_foreign = path.exists() && !fs::metadata(&*path).is_ok_and(is_own);
            place.not_asked = is_foreign.then_some(NotAsked::Foreign);
        }
        place.is_delicate = program == command_line::VHOST_DEVICE;
        place
    });
    Some(Machine {
        pid: Some(pid),
        monitor: program,
        name,
        places: places.collect(),
        qmp: qmp.into_iter().map(|path| seen.path(path)).collect(),
        vhost: vhost.into_iter().map(|path| seen.path(path)).collect(),
        is_stopped: is_stopped(&status),
    })
}

/// True if a process stands still because of a signal or a debugger.
fn is_stopped(status: &str) -> bool {
    let mut lines = status.lines();
    let state = lines.find_map(|line| line.strip_prefix("State:"));
    state.is_some_and(|state| matches!(state.trim_start().get(..1), Some("T" | "t")))
}

/// Returns the users that a process acts for: real, effective, saved, and for files.
fn users(status: &str) -> Vec<u32> {
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("Uid:"));
    let numbers = line.unwrap_or_default().split_whitespace();
    numbers.filter_map(|number| number.parse().ok()).collect()
}

/// The view that a process has of the file system.
struct Seen {
    directory: PathBuf,
    /// Put before its paths, if it has a mount namespace or a root directory of its own.
    root: Option<PathBuf>,
}

impl Seen {
    fn by(pid: i32) -> Self {
        let link = |of: &str, name: &str| fs::read_link(format!("/proc/{of}/{name}")).ok();
        let of = pid.to_string();
        // Of another user's process it cannot be told.
        let differs = |name| match (link(&of, name), link("self", name)) {
            (Some(its), Some(own)) => its != own,
            _ => false,
        };
        let root =
            (differs("ns/mnt") || differs("root")).then(|| format!("/proc/{pid}/root").into());
        Self {
            directory: link(&of, "cwd").unwrap_or_else(|| "/".into()),
            root,
        }
    }

    /// Returns the path by which this process finds the same.
    fn path(&self, path: PathBuf) -> PathBuf {
        let whole = self.directory.join(path);
        match &self.root {
            Some(root) => root.join(whole.strip_prefix("/").unwrap_or(&whole)),
            None => whole,
        }
    }
}

/// Reads a file of no more than [`LONGEST`] bytes. What is not UTF-8 in it is replaced.
fn text(path: &Path) -> Option<String> {
    let bytes = beeline_trusted_dir::read_bounded(path, LONGEST).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Finds what libvirt does not write on command lines: it hands QEMU the sockets open.
fn of_libvirt(found: &Sender<Machine>) {
    let of_user = |variable: &str, rest: &str| {
        std::env::var_os(variable).map(|directory| Path::new(&directory).join(rest))
    };
    let users = [
        of_user("XDG_CONFIG_HOME", "libvirt/qemu/lib"),
        of_user("HOME", ".config/libvirt/qemu/lib"),
        of_user("XDG_RUNTIME_DIR", "libvirt/qemu/channel"),
    ];
    let directories = LIBVIRT.iter().map(PathBuf::from);
    for directory in directories.chain(users.into_iter().flatten()) {
        for entry in entries(&directory) {
            if let Some(machine) = of_directory(&entry)
                && found.send(machine).is_err()
            {
                return;
            }
        }
    }
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.take(MOST_ENTRIES).map(|entry| entry.path())
}

/// Returns the machine with a directory of that name, if there are sockets of use in it.
fn of_directory(directory: &Path) -> Option<Machine> {
    let name = directory.file_name()?.to_str()?;
    let numbered = name.strip_prefix("domain-").unwrap_or(name);
    let (number, name) = numbered.split_once('-')?;
    number.parse::<u32>().ok()?;
    let mut machine = Machine {
        monitor: LIBVIRTS,
        name: Some(name.to_owned()),
        ..Machine::default()
    };
    for path in entries(directory) {
        let is_socket = fs::symlink_metadata(&path).is_ok_and(|file| file.file_type().is_socket());
        match path.file_name().and_then(|name| name.to_str()) {
            Some("monitor.sock") if is_socket => machine.qmp.push(path),
            Some(name) if is_socket && command_line::is_ours(name) => {
                machine.places.push(Place::new(Address::Serial { path }));
            }
            _ => {}
        }
    }
    (!machine.places.is_empty() || !machine.qmp.is_empty()).then_some(machine)
}

/// Puts together what belongs to one machine: the process that has its vsock, and what libvirt
/// knows.
fn merged(found: Vec<Machine>) -> Vec<Machine> {
    let is_part =
        |machine: &Machine| matches!(machine.monitor, command_line::VHOST_DEVICE | LIBVIRTS);
    let (parts, mut machines): (Vec<_>, Vec<_>) = found.into_iter().partition(is_part);
    for part in parts {
        let is_of = |machine: &&mut Machine| match part.pid {
            Some(_) => machine.vhost.iter().any(|path| part.vhost.contains(path)),
            None => machine.name == part.name,
        };
        match machines.iter_mut().find(is_of) {
            Some(machine) => {
                machine.places.extend(part.places);
                machine.qmp.extend(part.qmp);
                machine.is_stopped |= part.is_stopped;
            }
            None => machines.push(part),
        }
    }
    for machine in &mut machines {
        if machine.is_stopped {
            for place in &mut machine.places {
                place.not_asked.get_or_insert(NotAsked::Stopped);
            }
        }
        let mut known = Vec::new();
        machine.places.retain(|place| {
            let is_new = !known.contains(place);
            known.push(place.clone());
            is_new
        });
        machine.qmp.sort();
        machine.qmp.dedup();
    }
    machines
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn libvirts_sockets_are_found_by_their_names() {
        let root = std::env::temp_dir().join(format!("beeline-libvirt-{}", std::process::id()));
        let directory = root.join("domain-12-web-3");
        fs::create_dir_all(&directory).unwrap();
        let names = ["monitor.sock", "org.qemu.guest_agent.0", "beeline.0"];
        let _sockets = names.map(|name| UnixListener::bind(directory.join(name)).unwrap());
        fs::write(directory.join("beeline.log"), "").unwrap();
        let machine = of_directory(&directory).unwrap();
        assert_eq!(machine.name.as_deref(), Some("web-3"));
        assert_eq!(machine.qmp, [directory.join("monitor.sock")]);
        let path = directory.join("beeline.0");
        assert_eq!(machine.places[0].address, Address::Serial { path });
        assert_eq!(machine.places.len(), 1);
        for other in ["save", "domain-x-y", "12"] {
            assert!(of_directory(&root.join(other)).is_none(), "{other}");
        }
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn what_belongs_to_a_machine_is_put_together() {
        let uds = |path: &str| Place::new(format!("uds:{path}").parse().unwrap());
        let of = |monitor, pid| Machine {
            monitor,
            pid,
            ..Machine::default()
        };
        let mut qemu = of("QEMU", Some(1));
        qemu.name = Some("a".into());
        qemu.vhost = vec!["/vhost".into()];
        let mut device = of("vhost-device-vsock", Some(2));
        device.vhost = vec!["/vhost".into()];
        device.places = vec![uds("/x"), uds("/x")];
        let mut other = of("vhost-device-vsock", Some(3));
        other.places = vec![uds("/y")];
        let mut libvirt = of(LIBVIRTS, None);
        libvirt.name = Some("a".into());
        libvirt.qmp = vec!["/monitor".into()];
        let machines = merged(vec![device, libvirt, qemu, other]);
        let pids: Vec<_> = machines.iter().map(|machine| machine.pid).collect();
        assert_eq!(pids, [Some(1), Some(3)]);
        assert_eq!(machines[0].places, [uds("/x")]);
        assert_eq!(machines[0].qmp, [PathBuf::from("/monitor")]);

        let mut still = of("QEMU", Some(1));
        still.places = vec![uds("/x")];
        still.is_stopped = true;
        let found = merged(vec![still]);
        assert_eq!(found[0].places[0].not_asked, Some(NotAsked::Stopped));
    }

    #[test]
    fn a_processs_users_are_read() {
        assert_eq!(users("Name:\tx\nUid:\t1\t2\t3\t4\nGid:\t5\n"), [1, 2, 3, 4]);
        assert_eq!(users("Name:\tx\n"), [0; 0]);
        assert!(is_stopped("Name:\tx\nState:\tT (stopped)\n"));
        assert!(!is_stopped("Name:\tT\nState:\tS (sleeping)\n"));
    }

    #[test]
    fn paths_are_those_of_the_process() {
        let seen = Seen::by(std::process::id() as i32);
        let here = std::env::current_dir().unwrap();
        assert_eq!(seen.path("a/b".into()), here.join("a/b"));
        assert_eq!(seen.path("/a".into()), Path::new("/a"));
        let other = Seen {
            directory: "/x".into(),
            root: Some("/proc/7/root".into()),
        };
        assert_eq!(other.path("a".into()), Path::new("/proc/7/root/x/a"));
    }
}
