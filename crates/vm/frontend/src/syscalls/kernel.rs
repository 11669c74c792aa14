//! Requests to the guest's kernel, as all areas make them.

use std::mem::offset_of;
use std::sync::Arc;

use beeline_supervisor::Call;
use beeline_uapi::fields::put_u32;
use beeline_uapi::{Command, Errno, attr};
use beeline_vm_protocol::info::Kind;
use beeline_vm_protocol::messages::guest_message::Body as Said;
use beeline_vm_protocol::messages::host_message::Body as Asked;
use beeline_vm_protocol::messages::{Bpf, BpfDone, Part};

use crate::Guest;
use crate::changes::Changes;
use crate::connection::{Connection, EPROTO};
use crate::objects::Object;
use crate::rings::Rings;

/// Asks the guest's kernel on behalf of a call.
#[derive(Clone, Copy)]
pub(super) struct Kernel<'a> {
    pub(super) connection: &'a Arc<Connection>,
    call: &'a Call<'a>,
    rings: &'a Rings,
    changes: &'a Changes,
}

impl<'a> Kernel<'a> {
    pub(super) fn new(guest: &'a Guest, call: &'a Call<'a>) -> Self {
        Self {
            connection: &guest.connection,
            call,
            rings: &guest.rings,
            changes: &guest.changes,
        }
    }

    /// Sends a request, after the data that the tool has written to arrays until now.
    pub(super) fn ask(&self, request: Asked) -> Result<Said, Errno> {
        self.rings.store(self.connection);
        self.connection.ask(request)
    }

    /// Sends a request without sending anything first.
    pub(super) fn ask_at_once(&self, request: Asked) -> Result<Said, Errno> {
        self.call.let_others_lead();
        self.connection.ask(request)
    }

    /// Carries out a command of `bpf(2)`, which may fail in the guest.
    pub(super) fn bpf(&self, message: Bpf) -> Result<BpfDone, Errno> {
        if Command(message.command) == Command::MAP_GET_FD_BY_ID {
            self.changes.name();
        }
        // There may be very many of these, and other data of the tool or its programs need not have
        // arrived when they are answered.
        let done = match Command(message.command).is_for_elements() {
            true => self.ask_at_once(Asked::Bpf(message)),
            false => self.ask(Asked::Bpf(message)),
        };
        match done? {
            Said::BpfDone(done) => Ok(done),
            _ => Err(EPROTO),
        }
    }

    /// Carries out a command of `bpf(2)` that makes an object.
    pub(super) fn make(&self, message: Bpf, kind: Kind) -> Result<Object, Errno> {
        self.made(&self.bpf(message)?, kind)
    }

    /// Returns the object that a command has made, or the errno with which it failed.
    pub(super) fn made(&self, done: &BpfDone, kind: Kind) -> Result<Object, Errno> {
        match (done.errno, done.handle) {
            (0, 0) => Err(EPROTO),
            (0, handle) => Ok(Object::new(self.connection, handle, kind)),
            (errno, _) => Err(Errno(errno as i32)),
        }
    }

    /// Returns the first `len` bytes of the guest's information on an object, with all pointers
    /// null.
    pub(super) fn info(&self, handle: u32, len: usize) -> Result<Vec<u8>, Errno> {
        let mut attr = vec![0; size_of::<attr::Info>()];
        put_u32(&mut attr, offset_of!(attr::Info, bpf_fd), handle);
        put_u32(&mut attr, offset_of!(attr::Info, info_len), len as u32);
        let mut done = self.bpf(Bpf {
            command: Command::OBJ_GET_INFO_BY_FD.0,
            attr,
            parts: vec![Part {
                at: offset_of!(attr::Info, info) as u32,
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
