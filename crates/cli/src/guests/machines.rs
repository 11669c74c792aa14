//! The virtual machines of this host: what runs them, and the places where a proxy may listen.

use std::fs;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use anyhow::Context;
use beeline_vm_protocol::address::Address;
use beeline_vm_protocol::held::HeldSocket;
use rustix::fs::{FileType, Mode, OFlags};

use super::command_line::{self, CommandLine};
use super::libvirt::{self, LIBVIRT};

/// The time for everything that is read here: `/proc/PID/cmdline` of a process that holds its memory
/// fast does not end.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most bytes of a command line or a file that are read. A longer one is of no machine.
const LONGEST: u64 = 1 << 20;
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
    /// The user that the process acts for, or that libvirt's directory belongs to.
    pub user: Option<u32>,
    /// The sockets by which it belongs to another process.
    pub vhost: Vec<Joint>,
    pub is_stopped: bool,
}

/// A socket by which a machine and the process that gives it a vsock belong together.
#[derive(Debug)]
pub struct Joint {
    path: PathBuf,
    /// Its device and inode, if it is there.
    node: Option<(u64, u64)>,
}

impl Joint {
    fn at(path: PathBuf) -> Self {
        let node = HeldSocket::at(&path).ok().map(|socket| socket.node());
        Self { path, node }
    }

    /// True for the same socket. Only if it is not there, its name has to do.
    fn is(&self, other: &Joint) -> bool {
        match (self.node, other.node) {
            (Some(one), Some(other)) => one == other,
            _ => self.path == other.path,
        }
    }
}

/// A place where a proxy may listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub address: Address,
    /// The process that names it; `None` if libvirt's directories do.
    pub pid: Option<i32>,
    /// The user that its socket has to belong to; `None` if it has no socket in the file system.
    pub owner: Option<u32>,
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
    /// The machine's process acts for several users, so that it cannot be told whose socket it may
    /// name.
    SeveralUsers,
    /// The machine's process is stopped.
    Stopped,
    /// Nothing is there.
    Missing,
    /// Something else than a socket is there. It might be any file.
    NoSocket,
    /// It cannot be told if the serial port is free.
    Unknown,
    /// There was no time to look if the machine is stopped.
    Incomplete,
    /// Enough other places are asked.
    TooMany,
}

impl Place {
    /// Creates a place that is asked unless something speaks against it.
    pub fn new(address: Address, pid: Option<i32>) -> Self {
        Self {
            address,
            pid,
            owner: None,
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
        libvirt::machines(&sender);
    };
    let thread = Builder::new().name("beeline-machines".into());
    thread.spawn(look).context("starting a thread")?;
    let deadline = Instant::now() + PATIENCE;
    let mut machines = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match found.recv_timeout(left) {
            Ok(machine) => machines.push(machine),
            Err(RecvTimeoutError::Disconnected) => return Ok((merged(machines, true), true)),
            Err(RecvTimeoutError::Timeout) => return Ok((merged(machines, false), false)),
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
    let before = text(&file("status"))?;
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
    // Between them the process may have become another user's, with its own words still.
    let user = user(&status).filter(|is| user(&before) == Some(*is));
    let seen = Seen::by(pid);
    let config = config.and_then(|path| seen.path(path));
    let configured = config.and_then(|path| command_line::of_config(&config_of(&path, user?)?));
    let places = places.into_iter().chain(configured);
    let places = places.filter_map(|mut address| {
        let is_socket = match &mut address {
            Address::Uds { path, .. } | Address::Serial { path } | Address::Unix { path } => {
                *path = seen.path(std::mem::take(path))?;
                true
            }
            Address::Vsock { .. } | Address::Tcp { .. } => false,
        };
        let mut place = Place::new(address, Some(pid));
        if is_socket {
            place.owner = user;
            place.not_asked = user.is_none().then_some(NotAsked::SeveralUsers);
        }
        place.is_delicate = program == command_line::VHOST_DEVICE;
        Some(place)
    });
    let places = places.collect();
    let paths = |paths: Vec<_>| paths.into_iter().filter_map(|path| seen.path(path));
    Some(Machine {
        pid: Some(pid),
        monitor: program,
        name,
        places,
        qmp: paths(qmp).collect(),
        user,
        vhost: paths(vhost).map(Joint::at).collect(),
        is_stopped: is_stopped(&status),
    })
}

/// Reads a regular file of a user's.
fn config_of(path: &Path, user: u32) -> Option<String> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let held = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&held).ok()?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let path = format!("/proc/self/fd/{}", held.as_raw_fd());
    (is_file && stat.st_uid == user).then(|| text(Path::new(&path)))?
}

/// True if a process stands still because of a signal or a debugger.
fn is_stopped(status: &str) -> bool {
    let mut lines = status.lines();
    let state = lines.find_map(|line| line.strip_prefix("State:"));
    state.is_some_and(|state| matches!(state.trim_start().get(..1), Some("T" | "t")))
}

/// Returns the user that a process acts for; `None` unless its real, effective and saved ones, and
/// the one for files, are the same.
fn user(status: &str) -> Option<u32> {
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("Uid:"))?;
    let numbers: Vec<u32> = line
        .split_whitespace()
        .map(|number| number.parse().ok())
        .collect::<Option<_>>()?;
    match numbers[..] {
        [real, effective, saved, files] if [effective, saved, files] == [real; 3] => Some(real),
        _ => None,
    }
}

/// The view that a process has of the file system.
struct Seen {
    /// `None` if it cannot be read.
    directory: Option<PathBuf>,
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
            directory: link(&of, "cwd"),
            root,
        }
    }

    /// Returns the path by which this process finds the same; `None` if that cannot be told.
    fn path(&self, path: PathBuf) -> Option<PathBuf> {
        let whole = match path.is_absolute() {
            true => path,
            false => self.directory.as_ref()?.join(path),
        };
        Some(match &self.root {
            Some(root) => root.join(whole.strip_prefix("/").unwrap_or(&whole)),
            None => whole,
        })
    }
}

/// Reads a file of no more than [`LONGEST`] bytes. What is not UTF-8 in it is replaced.
fn text(path: &Path) -> Option<String> {
    let bytes = beeline_trusted_dir::read_bounded(path, LONGEST).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Puts together what belongs to one machine: the process that has its vsock, and what libvirt
/// knows. Only what is the same user's belongs together: anyone can name a process as they like.
fn merged(found: Vec<Machine>, is_whole: bool) -> Vec<Machine> {
    let is_part =
        |machine: &Machine| matches!(machine.monitor, command_line::VHOST_DEVICE | LIBVIRT);
    let (mut parts, mut machines): (Vec<_>, Vec<_>) = found.into_iter().partition(is_part);
    machines.iter_mut().chain(&mut parts).for_each(leave_alone);
    for part in parts {
        let is_of = |machine: &&mut Machine| {
            let is_joined = || {
                let mut sockets = machine.vhost.iter();
                sockets.any(|socket| part.vhost.iter().any(|other| socket.is(other)))
            };
            let belongs = match part.pid {
                Some(_) => is_joined(),
                None => machine.name == part.name,
            };
            belongs && machine.user.is_some() && machine.user == part.user
        };
        match machines.iter_mut().find(is_of) {
            Some(machine) => {
                machine.places.extend(part.places);
                machine.qmp.extend(part.qmp);
                // Without the machine nothing behind its devices answers.
                leave_alone(machine);
            }
            None => machines.push(part),
        }
    }
    for machine in &mut machines {
        let mut known = Vec::new();
        machine.places.retain_mut(|place| {
            if place.is_delicate && !is_whole {
                place.not_asked.get_or_insert(NotAsked::Incomplete);
            }
            let is_new = !known.contains(&place.address);
            known.push(place.address.clone());
            is_new
        });
        machine.qmp.sort();
        machine.qmp.dedup();
    }
    machines
}

/// Has nobody ask at the places of a process that is stopped.
fn leave_alone(machine: &mut Machine) {
    if machine.is_stopped {
        for place in &mut machine.places {
            place.not_asked.get_or_insert(NotAsked::Stopped);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USER: u32 = 7;

    fn uds(path: &str) -> Place {
        Place::new(format!("uds:{path}").parse().unwrap(), Some(2))
    }

    fn machine(monitor: &'static str, pid: Option<i32>) -> Machine {
        Machine {
            monitor,
            pid,
            user: Some(USER),
            ..Machine::default()
        }
    }

    fn vhost(path: &str, node: Option<u64>) -> Vec<Joint> {
        let (path, node) = (path.into(), node.map(|inode| (1, inode)));
        vec![Joint { path, node }]
    }

    fn pids(machines: &[Machine]) -> Vec<Option<i32>> {
        machines.iter().map(|machine| machine.pid).collect()
    }

    #[test]
    fn what_belongs_to_a_machine_is_put_together() {
        let mut qemu = machine("QEMU", Some(1));
        qemu.name = Some("a".into());
        qemu.vhost = vhost("/vhost", None);
        let mut device = machine("vhost-device-vsock", Some(2));
        device.vhost = vhost("/vhost", None);
        device.places = vec![uds("/x"), uds("/x")];
        let mut other = machine("vhost-device-vsock", Some(3));
        other.places = vec![uds("/y")];
        let mut libvirt = machine(LIBVIRT, None);
        libvirt.name = Some("a".into());
        libvirt.qmp = vec!["/monitor".into()];
        let machines = merged(vec![device, libvirt, qemu, other], true);
        assert_eq!(pids(&machines), [Some(1), Some(3)]);
        assert_eq!(machines[0].places, [uds("/x")]);
        assert_eq!(machines[0].qmp, [PathBuf::from("/monitor")]);
    }

    #[test]
    fn sockets_join_by_what_they_are_and_only_of_one_user() {
        let joined = |own: &str, node, its: &str, its_node, user| {
            let mut qemu = machine("QEMU", Some(1));
            qemu.vhost = vhost(own, node);
            let mut device = machine("vhost-device-vsock", Some(2));
            device.vhost = vhost(its, its_node);
            device.user = user;
            merged(vec![qemu, device], true).len() == 1
        };
        let user = Some(USER);
        assert!(joined("/a", Some(1), "/proc/2/root/a", Some(1), user));
        assert!(!joined("/a", Some(1), "/a", Some(2), user));
        assert!(joined("/a", None, "/a", Some(2), user));
        assert!(!joined("/a", Some(1), "/a", Some(1), Some(USER + 1)));
        assert!(!joined("/a", Some(1), "/a", Some(1), None));
        let mut qemu = machine("QEMU", Some(1));
        qemu.name = Some("a".into());
        let mut libvirt = machine(LIBVIRT, None);
        libvirt.name = Some("a".into());
        libvirt.user = Some(0);
        assert_eq!(pids(&merged(vec![qemu, libvirt], true)), [Some(1), None]);
    }

    #[test]
    fn what_stands_still_is_not_asked() {
        let pair = |machine_stands: bool, device_stands: bool| {
            let mut qemu = machine("QEMU", Some(1));
            qemu.places = vec![uds("/own")];
            qemu.vhost = vhost("/vhost", None);
            qemu.is_stopped = machine_stands;
            let mut device = machine("vhost-device-vsock", Some(2));
            device.places = vec![uds("/device")];
            device.vhost = vhost("/vhost", None);
            device.is_stopped = device_stands;
            let found = merged(vec![qemu, device], true);
            let places = found[0].places.iter();
            places.map(|place| place.not_asked).collect::<Vec<_>>()
        };
        let stopped = Some(NotAsked::Stopped);
        assert_eq!(pair(false, false), [None, None]);
        assert_eq!(pair(true, false), [stopped, stopped]);
        assert_eq!(pair(false, true), [None, stopped]);

        let mut device = machine("vhost-device-vsock", Some(2));
        device.places = vec![uds("/device"), uds("/other")];
        device.places[0].is_delicate = true;
        let found = merged(vec![device], false);
        assert_eq!(found[0].places[0].not_asked, Some(NotAsked::Incomplete));
        assert_eq!(found[0].places[1].not_asked, None);
    }

    #[test]
    fn a_processs_user_is_read() {
        assert_eq!(user("Name:\tx\nUid:\t4\t4\t4\t4\nGid:\t5\n"), Some(4));
        for status in [
            "Name:\tx\n",
            "Uid:\t4\t4\t4\n",
            "Uid:\t0\t4\t4\t4\n",
            "Uid:\t4\t4\t0\t4\n",
            "Uid:\t4\t4\t4\tx\n",
        ] {
            assert_eq!(user(status), None, "{status}");
        }
        assert!(is_stopped("Name:\tx\nState:\tT (stopped)\n"));
        assert!(!is_stopped("Name:\tT\nState:\tS (sleeping)\n"));
    }

    #[test]
    fn paths_are_those_of_the_process() {
        let seen = Seen::by(std::process::id() as i32);
        let here = std::env::current_dir().unwrap();
        assert_eq!(seen.path("a/b".into()), Some(here.join("a/b")));
        assert_eq!(seen.path("/a".into()), Some("/a".into()));
        let mut other = Seen {
            directory: Some("/x".into()),
            root: Some("/proc/7/root".into()),
        };
        assert_eq!(other.path("a".into()), Some("/proc/7/root/x/a".into()));
        other.directory = None;
        assert_eq!(other.path("a".into()), None);
        assert_eq!(other.path("/a".into()), Some("/proc/7/root/a".into()));
    }
}
