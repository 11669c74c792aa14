//! The virtual machines that libvirt's directories tell of.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc::Sender;

use beeline_vm_protocol::address::Address;

use super::command_line;
use super::machines::{Machine, NotAsked, Place};

/// The most entries of a directory of libvirt's.
const MOST_ENTRIES: usize = 4096;
/// The directories where libvirt keeps the monitors of its machines (in `domain-NUMBER-NAME`), and
/// the sockets of their serial ports (in `NUMBER-NAME`, of old versions in `domain-NUMBER-NAME`). A
/// user's own are below the user's directories.
const DIRECTORIES: [&str; 3] = [
    "/var/lib/libvirt/qemu",
    "/run/libvirt/qemu/channel",
    "/var/lib/libvirt/qemu/channel/target",
];

/// Stands for what runs a machine that only libvirt's directories tell of.
pub const LIBVIRT: &str = "libvirt";

/// Finds what libvirt does not write on command lines: it hands QEMU the sockets open.
pub fn machines(found: &Sender<Machine>) {
    let of_user = |variable: &str, rest: &str| {
        std::env::var_os(variable).map(|directory| Path::new(&directory).join(rest))
    };
    let users = [
        of_user("XDG_CONFIG_HOME", "libvirt/qemu/lib"),
        of_user("HOME", ".config/libvirt/qemu/lib"),
        of_user("XDG_RUNTIME_DIR", "libvirt/qemu/channel"),
    ];
    // The variables may be another user's, who has become this one by sudo.
    let users = users.into_iter().flatten();
    let users = users.filter(|directory| owner(directory).is_some_and(is_trusted));
    for directory in DIRECTORIES.iter().map(PathBuf::from).chain(users) {
        for entry in entries(&directory) {
            if let Some(machine) = of_directory(&entry)
                && found.send(machine).is_err()
            {
                return;
            }
        }
    }
}

/// Returns the user that a directory belongs to.
fn owner(directory: &Path) -> Option<u32> {
    let facts = fs::metadata(directory).ok()?;
    facts.is_dir().then(|| facts.uid())
}

/// True for root and the caller.
fn is_trusted(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

fn entries(directory: &Path) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.take(MOST_ENTRIES).map(|entry| entry.path())
}

/// Returns the machine with a directory of that name, if there are sockets of use in it. libvirt
/// gives both to the user that the machine runs as.
fn of_directory(directory: &Path) -> Option<Machine> {
    let name = directory.file_name()?.to_str()?;
    let numbered = name.strip_prefix("domain-").unwrap_or(name);
    let (number, name) = numbered.split_once('-')?;
    number.parse::<u32>().ok()?;
    let mut machine = Machine {
        monitor: LIBVIRT,
        name: Some(name.to_owned()),
        user: fs::symlink_metadata(directory)
            .ok()
            .filter(|facts| facts.is_dir())
            .map(|facts| facts.uid()),
        ..Machine::default()
    };
    machine.user?;
    for path in entries(directory) {
        let Ok(facts) = fs::symlink_metadata(&path) else {
            continue;
        };
        let is_socket = facts.file_type().is_socket();
        match path.file_name().and_then(|name| name.to_str()) {
            Some("monitor.sock") if is_socket => machine.qmp.push(path),
            Some(name) if is_socket && command_line::is_ours(name) => {
                let mut place = Place::new(Address::Serial { path }, None);
                let is_own = is_trusted(facts.uid()) || machine.user == Some(facts.uid());
                place.not_asked = (!is_own).then_some(NotAsked::Foreign);
                place.owner = Some(facts.uid());
                machine.places.push(place);
            }
            _ => {}
        }
    }
    (!machine.places.is_empty() || !machine.qmp.is_empty()).then_some(machine)
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
        assert_eq!(machine.user, Some(rustix::process::geteuid().as_raw()));
        assert_eq!(machine.places[0].owner, machine.user);
        assert_eq!(machine.places[0].not_asked, None);
        for other in ["save", "domain-x-y", "12"] {
            assert!(of_directory(&root.join(other)).is_none(), "{other}");
        }
        fs::remove_dir_all(&root).unwrap();
    }
}
