//! `bpf(2)` for a host: the policy check, the call, and the new object.

use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd};

use beeline_uapi::fields::{put_u32, u32_at};
use beeline_uapi::info::BtfInfo;
use beeline_uapi::linux::PAGE_SIZE;
use beeline_uapi::{Command, MapType, ProgramType, attr, offset_behind};
use beeline_vm_protocol::info::Kind;
use beeline_vm_protocol::layout::{BUFFER_BYTES, MapFacts, layout};
use beeline_vm_protocol::messages::{Bpf, BpfDone};
use rustix::io::Errno;
use serde_json::json;

use crate::attach_points;
use crate::call::{Call, Returned};
use crate::handles::{Object, info, returned_fd};
use crate::limits::Portion;
use crate::memory;
use crate::ownership;
use crate::refusal::Refusal;
use crate::session::Session;
use crate::sys::{self, Attr};

/// Offsets in the attribute of `BPF_PROG_LOAD`.
const PROG_TYPE: usize = offset_of!(attr::ProgLoad, prog_type);
const INSNS: u32 = offset_of!(attr::ProgLoad, insns) as u32;
const NAME: std::ops::Range<usize> =
    offset_of!(attr::ProgLoad, prog_name)..offset_behind!(attr::ProgLoad, prog_name);
/// In `struct bpf_btf_info`: nonzero if it is the kernel's own.
const KERNEL_BTF: usize = offset_of!(BtfInfo, kernel_btf);
/// The bytes of the attribute of commands that take an id.
pub(crate) const BY_ID: usize = offset_behind!(attr::GetId, open_flags);
/// The most places of a program that are written to the log.
const PLACES: usize = 16;

/// The offsets of `map_ifindex` and `prog_ifindex` in `union bpf_attr`.
const MAP_IFINDEX: usize = offset_of!(attr::MapCreate, map_ifindex);
const PROG_IFINDEX: usize = offset_of!(attr::ProgLoad, prog_ifindex);

/// Carries out a command.
///
/// # Errors
///
/// `EOPNOTSUPP` for a command that is not carried out in guests, or an object of a network device;
/// `EPERM` if the policy forbids it; those of [`info::get`](crate::info::get), [`Call::new`],
/// [`memory::add`], [`attach_points::of_link`], [`Object::new`] and [`Handles::add`](crate::handles::Handles::add).
/// If the command itself fails, the answer has its errno.
pub fn bpf(session: &Session, mut request: Bpf, memory: &mut Portion) -> Result<BpfDone, Refusal> {
    let command = Command(request.command);
    memory::add(memory, rooms(&request))?;
    if command == Command::OBJ_GET_INFO_BY_FD {
        return crate::info::get(request, &session.handles, &session.host.digests);
    }
    let layout = layout(command, &request.attr).ok_or_else(|| {
        let why = format!("bpf command {} is not carried out in guests", command.0);
        Refusal::new(libc::EOPNOTSUPP, why)
    })?;
    if let Some(kind) = listed(command)
        && !session.host.policy.objects.foreign
    {
        return next_own(session, &request, kind);
    }
    let device = match command {
        Command::MAP_CREATE => u32_at(&request.attr, MAP_IFINDEX),
        Command::PROG_LOAD => u32_at(&request.attr, PROG_IFINDEX),
        _ => 0,
    };
    if device != 0 {
        let why = "objects for a network device are not made for hosts";
        return Err(Refusal::new(libc::EOPNOTSUPP, why));
    }
    let loads = command == Command::PROG_LOAD;
    if loads {
        check_program(session, &mut request)?;
    }
    let share = made_map(session, &request)?;
    let loaded = if loads {
        request.attr.clone()
    } else {
        Vec::new()
    };
    let mut call = Call::new(
        request,
        layout,
        &session.handles,
        session.host.facts.possible_cpus,
    )?;
    let place = loads.then(|| attach_points::of_program(&call)).flatten();
    let attaches = matches!(command, Command::LINK_CREATE | Command::RAW_TRACEPOINT_OPEN);
    let mut places = Vec::new();
    if attaches {
        places = attach_points::of_link(command, &mut call)?;
        for place in &places {
            session.host.policy.attach(place)?;
        }
    } else if let Some(place) = &place {
        session.host.policy.attach(place)?;
    }
    let program = attaches.then(|| program_of(command, &call)).flatten();
    let kind = call.kind();
    let outcome = call.make();
    let mut done = BpfDone {
        attr: outcome.attr,
        parts: outcome.parts,
        ..BpfDone::default()
    };
    let mut id = 0;
    match outcome.returned {
        Err(errno) => done.errno = errno.raw_os_error() as u32,
        Ok(Returned::Value(value)) => done.value = value,
        Ok(Returned::Made(fd)) => {
            let object = Object::new(fd, kind, place.clone())?;
            *object.share() = share;
            id = object.id;
            check_foreign(session, command, &object)?;
            done.handle = session.handles.add(object)?;
        }
    }
    if loads {
        let name = loaded.get(NAME).unwrap_or_default();
        let name: Vec<u8> = name.iter().copied().take_while(|byte| *byte != 0).collect();
        session.audit(
            "load",
            json!({
                "type": attach_points::program_type(ProgramType(u32_at(&loaded, PROG_TYPE))),
                "name": String::from_utf8_lossy(&name),
                "place": place,
                "id": id,
                "errno": done.errno,
            }),
        );
    } else if attaches {
        session.audit(
            "attach",
            json!({
                "places": places.iter().take(PLACES).collect::<Vec<_>>(),
                "more": places.len().saturating_sub(PLACES),
                "program": program,
                "errno": done.errno,
            }),
        );
    }
    Ok(done)
}

/// Returns the bytes that a request has room for. What the kernel writes without being asked for it
/// is gone when the call is over.
fn rooms(request: &Bpf) -> usize {
    let rooms = request.parts.iter().map(|part| part.room as usize);
    rooms.map(|room| room.min(BUFFER_BYTES)).sum()
}

fn program_of(command: Command, call: &Call) -> Option<u32> {
    let at = if command == Command::LINK_CREATE {
        0
    } else {
        8
    };
    call.object(u32_at(call.attr(), at))
        .map(|program| program.id)
}

fn check_program(session: &Session, request: &mut Bpf) -> Result<(), Refusal> {
    let signature = std::mem::take(&mut request.signature);
    let insns = request.parts.iter().find(|part| part.at == INSNS);
    let insns = insns.map_or(&[][..], |part| &part.data);
    let kind = ProgramType(u32_at(&request.attr, PROG_TYPE));
    session.host.policy.program(kind, insns, &signature)
}

/// Returns the memory that a new map will take, if the request makes one.
fn made_map(session: &Session, request: &Bpf) -> Result<Option<Portion>, Refusal> {
    if Command(request.command) != Command::MAP_CREATE {
        return Ok(None);
    }
    let facts = MapFacts::of_attr(&request.attr);
    let bytes = map_bytes(&facts, session.host.facts.possible_cpus);
    session
        .host
        .policy
        .map(bytes, session.peer(), &session.host.taken)
        .map(Some)
}

/// Returns about how many bytes a map takes when it is full.
pub fn map_bytes(facts: &MapFacts, cpus: u32) -> u64 {
    /// The approximate number of bytes that the kernel keeps for each element beside key and value.
    const ELEMENT: u64 = 48;
    let entries = u64::from(facts.max_entries);
    if facts.is_ring() {
        return entries;
    }
    // ARENA counts pages.
    if facts.map_type == MapType::ARENA {
        return entries.saturating_mul(PAGE_SIZE);
    }
    let value = facts.value_len(cpus) as u64;
    let arrays = facts.map_type == MapType::ARRAY || facts.map_type == MapType::PERCPU_ARRAY;
    let element = if arrays {
        value.next_multiple_of(8)
    } else {
        value + u64::from(facts.key_size) + ELEMENT
    };
    entries.saturating_mul(element)
}

/// Returns the kind of objects with ids that a command lists.
fn listed(command: Command) -> Option<Kind> {
    match command {
        Command::PROG_GET_NEXT_ID => Some(Kind::Program),
        Command::MAP_GET_NEXT_ID => Some(Kind::Map),
        Command::BTF_GET_NEXT_ID => Some(Kind::Btf),
        Command::LINK_GET_NEXT_ID => Some(Kind::Link),
        _ => None,
    }
}

/// Returns the next id of an object that the host may open.
fn next_own(session: &Session, request: &Bpf, kind: Kind) -> Result<BpfDone, Refusal> {
    const START: usize = offset_of!(attr::GetId, start_id);
    const NEXT: usize = offset_of!(attr::GetId, next_id);
    let mut done = BpfDone::default();
    let mut attr = Attr::new(&request.attr);
    let size = request.attr.len().min(BY_ID);
    let own = ownership::ids(&session.handles, kind);
    let mut others = 0_u64;
    loop {
        // SAFETY: these commands take only integers.
        match unsafe { sys::bpf(Command(request.command), &mut attr, size) } {
            Err(errno) => {
                done.errno = errno.raw_os_error() as u32;
                // A tool that has found its own has what it may have. Types are looked through for
                // those of modules, which is no question for others'.
                if u32_at(&request.attr, START) == 0 && others > 0 && kind != Kind::Btf {
                    done.why = format!(
                        "the guest has {others} that are not this tool's; its owner can let the tool see \
                         them with foreign = true in [objects] of the policy"
                    );
                }
                break;
            }
            Ok(_) => {
                others += 1;
                let id = u32_at(attr.bytes(), NEXT);
                if own.contains(&id) || kind == Kind::Btf && is_kernels(id) {
                    break;
                }
                put_u32(attr.bytes_mut(), START, id);
            }
        }
    }
    put_u32(attr.bytes_mut(), START, u32_at(&request.attr, START));
    done.attr = attr.bytes()[..size].to_vec();
    Ok(done)
}

/// True if these types are the kernel's own, or a module's.
fn is_kernels(id: u32) -> bool {
    let mut attr = Attr::of(&attr::GetId {
        start_id: id,
        ..attr::GetId::default()
    });
    // SAFETY: the command takes only integers, and returns a descriptor.
    let opened = unsafe {
        sys::bpf(Command::BTF_GET_FD_BY_ID, &mut attr, BY_ID).map(|value| returned_fd(value))
    };
    let info = opened.and_then(|fd| info(fd.as_fd()));
    info.is_ok_and(|info| u32_at(&info, KERNEL_BTF) != 0)
}

/// Fails unless the host may have the object that it has named by an id. Types of the kernel are in
/// a file as well.
fn check_foreign(session: &Session, command: Command, object: &Object) -> Result<(), Refusal> {
    let by_id = matches!(
        command,
        Command::PROG_GET_FD_BY_ID
            | Command::MAP_GET_FD_BY_ID
            | Command::BTF_GET_FD_BY_ID
            | Command::LINK_GET_FD_BY_ID
    );
    let policy = &session.host.policy;
    if !by_id || policy.objects.foreign {
        return Ok(());
    }
    if ownership::ids(&session.handles, object.kind).contains(&object.id) {
        return Ok(());
    }
    let info = info(object.fd.as_fd())?;
    if object.kind == Kind::Btf && u32_at(&info, KERNEL_BTF) != 0 {
        return Ok(());
    }
    let why = format!(
        "the {:?} with id {} is not this tool's; the guest's owner can allow that with foreign = true in [objects]",
        object.kind, object.id
    );
    Err(Refusal::forbidden("objects.foreign", why))
}

/// Runs a command on an element of a map. `key` and `value` must be as long as the map's.
///
/// # Errors
///
/// The kernel's, such as `ENOENT`.
pub fn element(
    command: Command,
    map: &Object,
    key: Option<&mut [u8]>,
    value: &mut [u8],
) -> Result<(), Errno> {
    let mut attr = Attr::of(&attr::Element {
        map_fd: map.fd.as_raw_fd(),
        ..attr::Element::default()
    });
    if let Some(key) = key {
        attr.point(offset_of!(attr::Element, key), key);
    }
    attr.point(offset_of!(attr::Element, value), value);
    // SAFETY: the pointers are null or buffers that the caller has made as long as the map's keys
    // and values.
    unsafe { sys::bpf(command, &mut attr, size_of::<attr::Element>()) }.map(drop)
}

/// Room for elements of a hash table.
#[derive(Debug)]
pub struct Batch<'a> {
    /// The place where the kernel begins; `None` for the first element.
    pub from: Option<&'a mut [u8; 8]>,
    /// The place where it has ended.
    pub to: &'a mut [u8; 8],
    /// Room for `count` keys.
    pub keys: &'a mut [u8],
    /// Room for as many values.
    pub values: &'a mut [u8],
    /// The most elements.
    pub count: u32,
}

/// `BPF_MAP_LOOKUP_BATCH`. Returns the number of elements, even if it fails with `ENOENT`, which is
/// the map's end.
///
/// # Errors
///
/// The kernel's.
pub fn batch(map: &Object, batch: Batch<'_>) -> (u32, Result<(), Errno>) {
    const SIZE: usize = size_of::<attr::Batch>();
    const COUNT: usize = offset_of!(attr::Batch, count);
    let mut attr = Attr::of(&attr::Batch {
        count: batch.count,
        map_fd: map.fd.as_raw_fd(),
        ..attr::Batch::default()
    });
    if let Some(from) = batch.from {
        attr.point(offset_of!(attr::Batch, in_batch), from);
    }
    attr.point(offset_of!(attr::Batch, out_batch), batch.to);
    attr.point(offset_of!(attr::Batch, keys), batch.keys);
    attr.point(offset_of!(attr::Batch, values), batch.values);
    // SAFETY: the pointers are null or buffers of the caller's: a place in a hash table has 4
    // bytes, and there is room for as many keys and values.
    let done = unsafe { sys::bpf(Command::MAP_LOOKUP_BATCH, &mut attr, SIZE) }.map(drop);
    let given = match done {
        Ok(()) | Err(Errno::NOENT) => u32_at(attr.bytes(), COUNT),
        Err(_) => 0,
    };
    (given.min(batch.count), done)
}
