//! What is not carried out in a guest, and why: the tool gets an errno, the user a line.

use beeline_runtime::backend::Errno;
use beeline_wire::layout::{command, number_at};

use super::Guest;
use crate::call::{Answer, Call};

const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);

/// Commands that the wire does not know.
const PROG_ATTACH: u32 = 8;
const PROG_DETACH: u32 = 9;
const PROG_QUERY: u32 = 16;
/// Offsets of attach types: of `BPF_LINK_CREATE`, of `BPF_PROG_ATTACH` and `BPF_PROG_DETACH`, and of `BPF_PROG_QUERY`.
const OF_LINK: usize = 8;
const OF_PROGRAM: usize = 8;
const OF_QUERY: usize = 4;
/// Where `BPF_MAP_CREATE` and `BPF_PROG_LOAD` name the network device that is to carry the object.
const MAP_IFINDEX: usize = 44;
const PROG_IFINDEX: usize = 64;

/// What a program is attached to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    Cgroup,
    Device,
    Other,
}

/// Of `enum bpf_attach_type`.
fn target(attach_type: u32) -> Target {
    match attach_type {
        // BPF_CGROUP_*, BPF_LSM_CGROUP.
        0..=3 | 6 | 8..=15 | 18..=22 | 29..=32 | 34 | 43 | 49..=53 => Target::Cgroup,
        // BPF_XDP, BPF_TCX_*, BPF_NETKIT_*.
        37 | 46 | 47 | 54 | 55 => Target::Device,
        _ => Target::Other,
    }
}

impl Call<'_, Guest> {
    /// A command, or a link of an attach type, that the wire has no table for. The kernel says EINVAL to what it does not know; it
    /// does know what is attached to a cgroup or a device of this machine's, which the guest has none of.
    pub(super) fn not_carried_out(&self, number: u32, attr: &[u8]) -> Answer {
        let connection = &self.door.connection;
        let (what, at) = match number {
            command::LINK_CREATE => ("a link to", OF_LINK),
            PROG_ATTACH => ("attaching a program to", OF_PROGRAM),
            PROG_DETACH => ("detaching a program from", OF_PROGRAM),
            PROG_QUERY => ("asking for the programs of", OF_QUERY),
            _ => {
                connection.say_once(&format!("bpf command {number}: not carried out in guests"));
                return Err(Errno(libc::EINVAL));
            }
        };
        let attach_type = number_at(attr, at);
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

    /// EOPNOTSUPP for an object that is to be carried by a network device, which is named by its number on this machine.
    pub(super) fn names_nothing_of_this_machine(
        &self,
        number: u32,
        attr: &[u8],
    ) -> Result<(), Errno> {
        let device = match number {
            command::MAP_CREATE => number_at(attr, MAP_IFINDEX),
            command::PROG_LOAD => number_at(attr, PROG_IFINDEX),
            _ => 0,
        };
        if device == 0 {
            return Ok(());
        }
        let connection = &self.door.connection;
        connection.say_once(
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
        let all = |target| (0..64).filter(move |&kind| super::target(kind) == target);
        assert_eq!(
            all(Target::Device).collect::<Vec<_>>(),
            [37, 46, 47, 54, 55]
        );
        assert_eq!(all(Target::Cgroup).count(), 29);
        // BPF_TRACE_ITER, BPF_PERF_EVENT, BPF_SK_LOOKUP, BPF_NETFILTER.
        for other in [28, 41, 36, 45] {
            assert_eq!(target(other), Target::Other);
        }
    }
}
