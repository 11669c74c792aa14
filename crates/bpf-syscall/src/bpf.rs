//! Dispatches `bpf(command, attribute, size)`, and answers the small commands.

use std::sync::Arc;

use beeline_supervisor::attr::{ATTR_LIMIT, BpfAttr};
use beeline_supervisor::{Answer, Mode, Reply};
use beeline_uapi::{Command, Errno};

use crate::attr::BtfLoad;
use crate::local::Handler;
use crate::objects::{Btf, Object};

const EINVAL: Errno = Errno(libc::EINVAL);
const ENOENT: Errno = Errno(libc::ENOENT);
const EOPNOTSUPP: Errno = Errno(libc::EOPNOTSUPP);

/// The bytes of an object without memory for the tool, and of its anchor, here and in the kernel.
const ANCHORED: u64 = 8 << 10;
/// The longest BTF that the kernel takes.
const BTF_LIMIT: u32 = 16 << 20;

impl Handler<'_> {
    pub(crate) fn bpf(&self) -> Answer {
        let [command, address, size, ..] = self.args;
        let size = size as u32 as usize;
        if size > ATTR_LIMIT {
            return Err(Errno(libc::E2BIG));
        }
        let attr = &BpfAttr::parse(&self.memory.bytes(address, size)?)?;
        let command = Command(command as u32);
        let answer = self.carry_out(command, attr);
        tracing::trace!(tid = self.tid, %command, failed = ?answer.as_ref().err(), "bpf");
        answer
    }

    fn carry_out(&self, command: Command, attr: &BpfAttr) -> Answer {
        match command {
            Command::MAP_CREATE => self.with_room(|| self.map_create(attr)),
            Command::MAP_LOOKUP_ELEM => self.map_lookup(attr),
            Command::MAP_LOOKUP_AND_DELETE_ELEM => self.map_lookup_and_delete(attr),
            Command::MAP_UPDATE_ELEM => self.map_update(attr),
            Command::MAP_DELETE_ELEM => self.map_delete(attr),
            Command::MAP_GET_NEXT_KEY => self.map_next_key(attr),
            Command::MAP_FREEZE => self.map_freeze(attr),
            Command::MAP_LOOKUP_BATCH => self.lookup_batch(attr, false),
            Command::MAP_LOOKUP_AND_DELETE_BATCH => self.lookup_batch(attr, true),
            Command::MAP_UPDATE_BATCH => self.update_batch(attr),
            Command::MAP_DELETE_BATCH => self.delete_batch(attr),
            Command::PROG_LOAD => self.with_room(|| self.prog_load(attr)),
            Command::PROG_BIND_MAP => self.prog_bind_map(attr),
            Command::PROG_TEST_RUN => self.prog_test_run(attr),
            Command::BTF_LOAD => self.with_room(|| self.btf_load(attr)),
            Command::LINK_CREATE => self.with_room(|| self.link_create(attr)),
            Command::RAW_TRACEPOINT_OPEN => self.with_room(|| self.raw_tracepoint_open(attr)),
            Command::OBJ_GET_INFO_BY_FD => self.info_by_fd(attr),
            Command::MAP_GET_NEXT_ID => self.next_id(attr, map_id),
            Command::PROG_GET_NEXT_ID => self.next_id(attr, program_id),
            Command::LINK_GET_NEXT_ID => self.next_id(attr, link_id),
            Command::BTF_GET_NEXT_ID => self.next_id(attr, btf_id),
            Command::MAP_GET_FD_BY_ID => self.fd_by_id(attr, map_id, 12),
            Command::PROG_GET_FD_BY_ID => self.fd_by_id(attr, program_id, 4),
            Command::LINK_GET_FD_BY_ID => self.fd_by_id(attr, link_id, 4),
            Command::BTF_GET_FD_BY_ID => self.fd_by_id(attr, btf_id, 4),
            Command::OBJ_PIN => self.bpffs().obj_pin(attr),
            Command::OBJ_GET => self.obj_get(attr),
            Command::TASK_FD_QUERY => Err(ENOENT),
            Command::ENABLE_STATS => Err(Errno(libc::EPERM)),
            Command::TOKEN_CREATE => Err(EOPNOTSUPP),
            // Attaching to cgroups, iterators, and commands of newer kernels.
            _ => Err(EINVAL),
        }
    }

    fn btf_load(&self, attr: &BpfAttr) -> Answer {
        let wanted = BtfLoad::parse(attr)?;
        if wanted.size > BTF_LIMIT {
            return Err(Errno(libc::E2BIG));
        }
        // The data is copied once.
        let mut charge = self.local.backend.charge(2 * u64::from(wanted.size))?;
        let data = self.memory.bytes(wanted.data, wanted.size as usize)?;
        check_btf(&data)?;
        let mut btf = Btf::of_tool(self.local.fds.new_number(), data);
        charge.resize(wanted.size.into())?;
        btf.charge = charge;
        self.descriptor(Object::Btf(Arc::new(btf)))
    }

    /// Returns the smallest id greater than the one given.
    fn next_id(&self, attr: &BpfAttr, number: fn(&Object) -> Option<u32>) -> Answer {
        attr.ends_at(8)?;
        if attr.u32(0) >= i32::MAX as u32 {
            return Err(EINVAL);
        }
        let (next, _) = self.next_object(attr.u32(0), number)?;
        self.write_back(4, next)?;
        Ok(Reply::Value(0))
    }

    /// Returns a new descriptor of the object with an id. Maps' descriptors have a mode, in the
    /// attribute's third field.
    fn fd_by_id(&self, attr: &BpfAttr, number: fn(&Object) -> Option<u32>, end: usize) -> Answer {
        attr.ends_at(end)?;
        let mode = Mode::of_flags(attr.u32(8))?;
        let wanted = attr.u32(0);
        let before = wanted.checked_sub(1).ok_or(ENOENT)?;
        let (found, object) = self.next_object(before, number)?;
        if found != wanted {
            return Err(ENOENT);
        }
        self.another_descriptor(object, mode)
    }

    /// Returns the next object that the tool can reach by a descriptor, by a pinned name or as an
    /// element of a map.
    fn next_object(
        &self,
        after: u32,
        number: fn(&Object) -> Option<u32>,
    ) -> Result<(u32, Object), Errno> {
        let pinned = self.local.bpffs.pinned().into_iter();
        let mut others: Vec<_> = pinned.map(|pin| pin.object).collect();
        others.extend(self.local.members.alive());
        self.local.fds.next(after, &others, number).ok_or(ENOENT)
    }

    /// Writes a result into the tool's attribute.
    pub(crate) fn write_back(&self, offset: u64, value: u32) -> Result<(), Errno> {
        let field = self.args[1]
            .checked_add(offset)
            .ok_or(Errno(libc::EFAULT))?;
        self.memory.write_u32(field, value)
    }

    /// Returns the descriptor of a new object.
    pub(crate) fn descriptor(&self, object: Object) -> Answer {
        self.given_descriptor(object, Mode::BOTH, true)
    }

    /// Returns another descriptor of an object; the mode is the access that it gives to a map.
    pub(crate) fn another_descriptor(&self, object: Object, mode: Mode) -> Answer {
        self.with_room(|| self.given_descriptor(object.clone(), mode, false))
    }

    /// Returns a descriptor, the object's first or another.
    pub(crate) fn given_descriptor(&self, object: Object, mode: Mode, is_first: bool) -> Answer {
        let memory = match &object {
            Object::Map(map) if map.is_file() => Some(map.held.id),
            Object::Ring(ring) => Some(ring.held.id),
            _ => None,
        };
        let file = match memory {
            Some(id) => {
                self.local.count_memory_file();
                let memory = mode.open(self.local.backend.memory(id)?)?;
                self.local.fds.add_memory(object, memory)?
            }
            None => {
                let charge = self.local.backend.charge(ANCHORED)?;
                self.local.fds.add_anchored(object, is_first, charge)?
            }
        };
        Ok(Reply::Descriptor {
            file,
            cloexec: true,
        })
    }
}

fn map_id(object: &Object) -> Option<u32> {
    if let Object::Map(map) = object {
        Some(map.held.id.0)
    } else {
        None
    }
}

fn program_id(object: &Object) -> Option<u32> {
    if let Object::Program(program) = object {
        Some(program.held.id.0)
    } else {
        None
    }
}

fn link_id(object: &Object) -> Option<u32> {
    if let Object::Link(link) = object {
        Some(link.id)
    } else {
        None
    }
}

fn btf_id(object: &Object) -> Option<u32> {
    if let Object::Btf(btf) = object {
        Some(btf.id)
    } else {
        None
    }
}

/// Checks the header, `struct btf_header`, and that both sections are within the data. The content
/// of the types is between the tool and the programs that show them; the supervisor only keeps
/// them.
fn check_btf(data: &[u8]) -> Result<(), Errno> {
    const MAGIC_AND_VERSION: [u8; 4] = [0x9f, 0xeb, 1, 0];
    const HEADER: u32 = 24;
    let field = |offset| beeline_supervisor::attr::u32_at(data, offset);
    let (header, types, types_len, strings, strings_len) =
        (field(4), field(8), field(12), field(16), field(20));
    if !data.starts_with(&MAGIC_AND_VERSION) || header < HEADER || !types.is_multiple_of(4) {
        return Err(EINVAL);
    }
    let section = |offset: u32, len: u32| {
        let start = (header as usize).checked_add(offset as usize)?;
        data.get(start..start.checked_add(len as usize)?)
    };
    section(types, types_len).ok_or(EINVAL)?;
    let strings = section(strings, strings_len).ok_or(EINVAL)?;
    if strings.first() != Some(&0) || strings.last() != Some(&0) {
        return Err(EINVAL);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns an empty type section and a string section with one empty string.
    fn smallest_btf() -> Vec<u8> {
        let mut btf = vec![0x9f, 0xeb, 1, 0];
        for field in [24u32, 0, 0, 0, 1] {
            btf.extend(field.to_ne_bytes());
        }
        btf.push(0);
        btf
    }

    #[test]
    fn btf_headers_are_checked() {
        let good = smallest_btf();
        assert_eq!(check_btf(&good), Ok(()));
        for (at, byte) in [(0, 0), (2, 2), (4, 200), (8, 3), (12, 9), (20, 9)] {
            let mut bad = good.clone();
            bad[at] = byte;
            assert_eq!(check_btf(&bad), Err(EINVAL), "byte {at}");
        }
        assert_eq!(check_btf(&[]), Err(EINVAL));
    }

    proptest! {
        #[test]
        fn no_btf_makes_the_check_panic(mut data in proptest::collection::vec(any::<u8>(), 0..64), good_start: bool) {
            if good_start {
                data.splice(0..data.len().min(4), [0x9f, 0xeb, 1, 0]);
            }
            let _ = check_btf(&data);
        }
    }
}
