//! Answers `bpf(2)`.

use std::sync::Arc;

use beeline_supervisor::attr::{ATTR_LIMIT, BpfAttr};
use beeline_supervisor::{Answer, Mode, Reply};
use beeline_uapi::{Command, Errno};
use beeline_vm_protocol::info::{Kind, link_types};
use beeline_vm_protocol::layout::{
    Layout, MapFacts, is_batch, is_for_elements, layout, long_at, number_at, put_number,
};
use beeline_vm_protocol::messages::guest_message::Body as Said;
use beeline_vm_protocol::messages::host_message::Body as Asked;
use beeline_vm_protocol::messages::{Bpf, BpfDone, Part};

use crate::Handler;
use crate::attr::Taken;
use crate::objects::Object;

/// The error for an answer that breaks the protocol.
pub(super) const EPROTO: Errno = Errno(libc::EPROTO);

impl Handler<'_> {
    /// Answers `bpf(command, attr, size)`.
    pub(super) fn bpf(&self) -> Answer {
        let [command, address, size, ..] = self.args;
        let command = Command(command as u32);
        let size = size as u32 as usize;
        if size > ATTR_LIMIT {
            return Err(Errno(libc::E2BIG));
        }
        let attr = self.memory.bytes(address, size)?;
        match command {
            Command::OBJ_PIN => return self.bpffs().obj_pin(&BpfAttr::parse(&attr)?),
            Command::OBJ_GET => return self.obj_get(&BpfAttr::parse(&attr)?),
            _ => {}
        }
        let Some(layout) = layout(command, &attr) else {
            return self.not_carried_out(command, &attr);
        };
        self.names_nothing_of_this_machine(command, &attr)?;
        let first = match layout.objects.first() {
            _ if command == Command::TASK_FD_QUERY => Some(self.queried(&attr)?),
            Some(object) if object.at == FIRST || is_batch(command) => {
                let fd = number_at(&attr, object.at) as i32;
                Some(self.object(fd).map_err(|error| as_of(command, error))?)
            }
            _ => None,
        };
        let answer = self.bpf_about(first.as_ref(), command, layout, attr);
        // If the tool has closed the object meanwhile, this is its last use. Dropping it tells the
        // guest, which may wait.
        if let Some(last) = first.and_then(Arc::into_inner) {
            self.let_others_lead();
            drop(last);
        }
        answer
    }

    /// Makes a command, about an object if it has one.
    fn bpf_about(
        &self,
        first: Option<&Arc<Object>>,
        command: Command,
        layout: Layout,
        attr: Vec<u8>,
    ) -> Answer {
        if let Some(map) = first
            && is_for_elements(command)
        {
            return self.on_elements(map, command, layout, attr);
        }
        let run = (command == Command::PROG_TEST_RUN).then(|| self.begin_run());
        let (taken, done) = self.carry_out(command, layout, attr.clone(), first)?;
        drop(run);
        taken.give_back(&self.memory, self.args[1], &done)?;
        let value = value_of(&done, layout, |line| self.guest.connection.say(&line))?;
        if !layout.makes {
            return Ok(Reply::Value(value));
        }
        let object = self.made(command, done.handle, &attr)?;
        let file = match command {
            Command::ITER_CREATE => self.stream(object)?,
            _ => self.guest.objects.add(Arc::new(object))?,
        };
        Ok(Reply::Descriptor {
            file,
            cloexec: true,
        })
    }

    fn carry_out(
        &self,
        command: Command,
        layout: Layout,
        mut attr: Vec<u8>,
        first: Option<&Arc<Object>>,
    ) -> Result<(Taken, BpfDone), Errno> {
        // The pointers in a link's information depend on the link.
        let is_link = first.is_some_and(|object| object.kind == Kind::Link);
        if command == Command::OBJ_GET_INFO_BY_FD && is_link {
            self.tell_links_type(&mut attr, first)?;
        }
        let taken = Taken::new(self, command, layout, attr, first)?;
        let types = first.and_then(|object| object.types);
        let done = match types.filter(|_| command == Command::OBJ_GET_INFO_BY_FD) {
            Some(id) => self.ask_types(id, taken.message.clone())?,
            None => self.ask_bpf(taken.message.clone())?,
        };
        Ok((taken, done))
    }

    /// Writes a link's type into the structure that the tool wants filled.
    fn tell_links_type(&self, attr: &mut [u8], link: Option<&Arc<Object>>) -> Result<(), Errno> {
        const TYPES: usize = 20;
        let address = long_at(attr, 8);
        let info = self.info(link.map_or(0, |link| link.handle), TYPES)?;
        let room = number_at(attr, 4) as usize;
        if room >= TYPES && info.len() == TYPES {
            for &at in link_types(&info) {
                let field = address.checked_add(at as u64);
                let field = field.ok_or(Errno(libc::EFAULT))?;
                self.memory.write_u32(field, number_at(&info, at))?;
            }
        }
        Ok(())
    }

    /// Asks the guest without sending anything first.
    pub(super) fn ask_at_once(&self, request: Asked) -> Result<Said, Errno> {
        self.let_others_lead();
        self.guest.connection.ask(request)
    }

    pub(super) fn ask_bpf(&self, message: Bpf) -> Result<BpfDone, Errno> {
        if Command(message.command) == Command::MAP_GET_FD_BY_ID {
            self.guest.changes.name();
        }
        let done = match is_for_elements(Command(message.command)) {
            true => self.ask_at_once(Asked::Bpf(message)),
            false => self.guest.ask(Asked::Bpf(message)),
        };
        match done? {
            Said::BpfDone(done) => Ok(done),
            _ => Err(EPROTO),
        }
    }

    /// Returns the object that a command has made.
    fn made(&self, command: Command, handle: u32, attr: &[u8]) -> Result<Object, Errno> {
        let kind = match command {
            Command::MAP_CREATE | Command::MAP_GET_FD_BY_ID => Kind::Map,
            Command::PROG_LOAD | Command::PROG_GET_FD_BY_ID => Kind::Program,
            Command::BTF_LOAD | Command::BTF_GET_FD_BY_ID => Kind::Btf,
            Command::LINK_CREATE | Command::LINK_GET_FD_BY_ID | Command::RAW_TRACEPOINT_OPEN => {
                Kind::Link
            }
            _ => Kind::Other,
        };
        if handle == 0 {
            return Err(EPROTO);
        }
        let mut object = Object::new(&self.guest.connection, handle, kind);
        object.facts = match command {
            Command::MAP_CREATE => Some(MapFacts::of_attr(attr)),
            Command::MAP_GET_FD_BY_ID => Some(self.facts(handle)?),
            _ => None,
        };
        object.mode = match command {
            Command::MAP_CREATE => Mode::of_map_flags(number_at(attr, MAP_FLAGS))?,
            Command::MAP_GET_FD_BY_ID => Mode::of_flags(number_at(attr, OPEN_FLAGS))?,
            _ => Mode::BOTH,
        };
        object.is_first = command != Command::LINK_GET_FD_BY_ID;
        object.types = (command == Command::BTF_GET_FD_BY_ID).then(|| number_at(attr, FIRST));
        Ok(object)
    }

    /// Returns the facts of a map that the tool has not made.
    fn facts(&self, handle: u32) -> Result<MapFacts, Errno> {
        const MAP_INFO: usize = 80;
        Ok(MapFacts::of_info(&self.info(handle, MAP_INFO)?))
    }

    /// Returns the first `len` bytes of the guest's information on an object, with all pointers
    /// null.
    pub(super) fn info(&self, handle: u32, len: usize) -> Result<Vec<u8>, Errno> {
        let mut attr = vec![0; 16];
        put_number(&mut attr, 0, handle);
        put_number(&mut attr, 4, len as u32);
        let mut done = self.ask_bpf(Bpf {
            command: Command::OBJ_GET_INFO_BY_FD.0,
            attr,
            parts: vec![Part {
                at: 8,
                data: vec![0; len],
                room: len as u32,
            }],
            ..Bpf::default()
        })?;
        match (done.errno, done.parts.pop()) {
            (0, Some(info)) => Ok(info.data),
            (0, None) => Err(EPROTO),
            (errno, _) => Err(Errno(errno as i32)),
        }
    }
}

/// The offset at which most attributes have the object that they are about.
const FIRST: usize = 0;
/// The offset of the flags of `BPF_MAP_CREATE` and of `BPF_MAP_GET_FD_BY_ID`.
const MAP_FLAGS: usize = 16;
const OPEN_FLAGS: usize = 8;

/// Returns the result of a call, or its errno, and tells the user the reason by `say`.
pub(super) fn value_of(
    done: &BpfDone,
    layout: Layout,
    say: impl FnOnce(String),
) -> Result<i64, Errno> {
    if done.errno == 0 {
        return Ok(done.value as i64);
    }
    if !done.why.is_empty() {
        say(format!("the guest: {}: {}", layout.name, done.why));
    }
    Err(Errno(done.errno as i32))
}

/// Returns the kernel's error for a descriptor that a command cannot be about.
fn as_of(command: Command, error: Errno) -> Errno {
    match (command, error) {
        (Command::OBJ_GET_INFO_BY_FD, Errno(libc::EBADF)) => Errno(libc::EBADFD),
        _ => error,
    }
}
