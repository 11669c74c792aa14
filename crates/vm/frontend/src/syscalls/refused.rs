//! Calls that are not carried out in a guest, with the reasons: the tool gets an errno, the user a
//! line.

use std::mem::offset_of;

use beeline_supervisor::Answer;
use beeline_uapi::attr;
use beeline_uapi::fields::u32_at;
use beeline_uapi::{AttachType, Command, Errno};

use crate::Guest;
use crate::connection::Connection;

const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);

/// Offsets of attach types: in `BPF_LINK_CREATE`, in `BPF_PROG_ATTACH` and `BPF_PROG_DETACH`, and
/// in `BPF_PROG_QUERY`.
const OF_LINK: usize = offset_of!(attr::LinkCreate, attach_type);
const OF_PROGRAM: usize = offset_of!(attr::ProgAttach, attach_type);
const OF_QUERY: usize = offset_of!(attr::Query, attach_type);

/// The kind of thing that a program is attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Cgroup,
    Device,
    Other,
}

fn target(attach_type: AttachType) -> Target {
    let name = attach_type.name().unwrap_or_default();
    let begins = |with: &[&str]| with.iter().any(|with| name.starts_with(with));
    if begins(&["BPF_CGROUP_"]) || attach_type == AttachType::LSM_CGROUP {
        Target::Cgroup
    } else if begins(&["BPF_TCX_", "BPF_NETKIT_"]) || attach_type == AttachType::XDP {
        Target::Device
    } else {
        Target::Other
    }
}

/// Refuses what is not carried out in guests, and tells the user why.
pub(super) struct Refusals<'a> {
    connection: &'a Connection,
}

impl<'a> Refusals<'a> {
    pub(super) fn new(guest: &'a Guest) -> Self {
        Self {
            connection: &guest.connection,
        }
    }

    /// Refuses a command, or a link of an attach type, that the wire has no table for. The kernel
    /// returns EINVAL for those it does not know. It does know the ones for a cgroup or a device of
    /// this machine's, which the guest does not have.
    pub(super) fn command(&self, command: Command, attr: &[u8]) -> Answer {
        let connection = self.connection;
        let (what, at) = match command {
            Command::LINK_CREATE => ("a link to", OF_LINK),
            Command::PROG_ATTACH => ("attaching a program to", OF_PROGRAM),
            Command::PROG_DETACH => ("detaching a program from", OF_PROGRAM),
            Command::PROG_QUERY => ("asking for the programs of", OF_QUERY),
            _ => {
                connection.say_once(&format!(
                    "bpf command {}: not carried out in guests",
                    command.0
                ));
                return Err(Errno(libc::EINVAL));
            }
        };
        let attach_type = AttachType(u32_at(attr, at));
        match target(attach_type) {
            Target::Cgroup => connection.say_once(&format!(
                "{what} a cgroup: its descriptor is of this machine's, which the guest knows nothing of; not carried out in guests"
            )),
            Target::Device => connection.say_once(&format!(
                "{what} a network device: its number is of this machine's, another's in the guest; not carried out in guests"
            )),
            Target::Other => {
                connection.say_once(&format!(
                    "{what} what attach type {attach_type} is for: not carried out in guests"
                ));
                return Err(Errno(libc::EINVAL));
            }
        }
        Err(EOPNOTSUPP)
    }

    /// Refuses an object that is to be carried by a network device, which is named by its number on
    /// this machine; 0 is none.
    pub(super) fn object_of_device(&self, device: u32) -> Result<(), Errno> {
        if device == 0 {
            return Ok(());
        }
        self.connection.say_once(
            "an object for a network device: its number is of this machine's, another's in the guest; not carried out in guests",
        );
        Err(EOPNOTSUPP)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attach_types_are_the_kernels() {
        let all = |target| {
            let all = (0..64).map(AttachType);
            all.filter(move |&kind| super::target(kind) == target)
        };
        assert_eq!(
            all(Target::Device).collect::<Vec<_>>(),
            [
                AttachType::XDP,
                AttachType::TCX_INGRESS,
                AttachType::TCX_EGRESS,
                AttachType::NETKIT_PRIMARY,
                AttachType::NETKIT_PEER,
            ]
        );
        assert_eq!(all(Target::Cgroup).count(), 29);
        for other in [
            AttachType::TRACE_ITER,
            AttachType::PERF_EVENT,
            AttachType::SK_LOOKUP,
            AttachType::NETFILTER,
        ] {
            assert_eq!(target(other), Target::Other);
        }
    }
}
