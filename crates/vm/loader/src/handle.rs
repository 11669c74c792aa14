//! Objects of the guest's kernel, and the calls that make them.

use std::sync::{Arc, OnceLock};

use beeline_uapi::Command;
use beeline_vm_protocol::client::{Client, Failure};
use beeline_vm_protocol::messages::guest_message::Body as Said;
use beeline_vm_protocol::messages::host_message::Body as Asked;
use beeline_vm_protocol::messages::{Bpf, BpfDone, Part, Release};

use crate::error::{Error, Refusal};

/// The line to the guest, shared by everything that is there.
#[derive(Debug)]
pub(crate) struct Line {
    pub(crate) client: Arc<Client>,
    /// The reason why it has ended.
    pub(crate) end: Arc<OnceLock<String>>,
}

impl Drop for Line {
    fn drop(&mut self) {
        // Anything that the guest has not detached by then, it will detach all the same.
        self.client.close();
    }
}

/// An answer, or the guest's refusal.
pub(crate) type Answer<T> = Result<Result<T, Refusal>, Error>;

impl Line {
    pub(crate) fn lost(&self) -> Error {
        let end = self.end.get().map(String::as_str);
        Error::Lost(end.unwrap_or("the connection has ended").into())
    }

    pub(crate) fn ask(&self, request: Asked) -> Answer<Said> {
        match self.client.ask(request) {
            Ok(said) => Ok(Ok(said)),
            Err(Failure::Refused(refused)) => Ok(Err(refused.into())),
            Err(Failure::Lost) => Err(self.lost()),
        }
    }

    /// Runs a `bpf(2)` command that may fail, and returns what it wrote all the same.
    pub(crate) fn bpf_done(
        &self,
        command: Command,
        attr: Vec<u8>,
        parts: Vec<Part>,
    ) -> Answer<BpfDone> {
        let request = Asked::Bpf(Bpf {
            command: command.0,
            attr,
            parts,
            ..Bpf::default()
        });
        Ok(match self.ask(request)? {
            Ok(Said::BpfDone(done)) => Ok(done),
            Ok(_) => return Err(Error::Nonsense("an answer to another question")),
            Err(refusal) => Err(refusal),
        })
    }

    /// Runs a `bpf(2)` command that succeeds, or is refused.
    pub(crate) fn bpf(&self, command: Command, attr: Vec<u8>, parts: Vec<Part>) -> Answer<BpfDone> {
        let done = self.bpf_done(command, attr, parts)?;
        Ok(done.and_then(|done| match done.errno {
            0 => Ok(done),
            _ => Err(refusal(&done)),
        }))
    }

    /// Runs a `bpf(2)` command that makes an object.
    pub(crate) fn make(
        self: &Arc<Self>,
        command: Command,
        attr: Vec<u8>,
        parts: Vec<Part>,
    ) -> Answer<Handle> {
        let done = self.bpf(command, attr, parts)?;
        Ok(match done {
            Ok(done) => Ok(self.handle(done.handle)?),
            Err(refusal) => Err(refusal),
        })
    }

    pub(crate) fn handle(self: &Arc<Self>, number: u32) -> Result<Handle, Error> {
        match number {
            0 => Err(Error::Nonsense("an object without a handle")),
            number => Ok(Handle {
                line: Arc::clone(self),
                number,
            }),
        }
    }
}

/// Returns the reason why the guest's kernel did not do it.
pub(crate) fn refusal(done: &BpfDone) -> Refusal {
    Refusal {
        errno: i32::try_from(done.errno).unwrap_or(libc::EIO),
        why: done.why.clone(),
    }
}

/// An object of the guest's kernel, which is given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) line: Arc<Line>,
    pub(crate) number: u32,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.line.client.tell(Asked::Release(Release {
            handles: vec![self.number],
        }));
    }
}

/// `union bpf_attr`, initially zeros. Offsets are those of [`beeline_uapi::attr`].
pub(crate) struct Attr(Vec<u8>);

impl Attr {
    pub(crate) fn new(size: usize) -> Self {
        Self(vec![0; size])
    }

    pub(crate) fn with(mut self, at: usize, value: u32) -> Self {
        beeline_uapi::fields::put_u32(&mut self.0, at, value);
        self
    }

    pub(crate) fn with_long(mut self, at: usize, value: u64) -> Self {
        beeline_uapi::fields::put_u64(&mut self.0, at, value);
        self
    }

    /// Adds a name as kernels take it: 15 characters of letters, digits, `_` and `.`.
    pub(crate) fn with_name(mut self, at: usize, name: &str) -> Self {
        let known = |it: &u8| it.is_ascii_alphanumeric() || matches!(it, b'_' | b'.');
        let name = name.bytes().filter(known).take(15);
        for (byte, place) in name.zip(self.0.iter_mut().skip(at)) {
            *place = byte;
        }
        self
    }

    pub(crate) fn bytes(self) -> Vec<u8> {
        self.0
    }
}

/// Returns the data behind a pointer at an offset, for the kernel to read.
pub(crate) fn given(at: usize, data: impl Into<Vec<u8>>) -> Part {
    Part {
        at: at as u32,
        data: data.into(),
        room: 0,
    }
}

/// The same, for the kernel to write.
pub(crate) fn room(at: usize, room: usize) -> Part {
    Part {
        at: at as u32,
        data: Vec::new(),
        room: u32::try_from(room).unwrap_or(u32::MAX),
    }
}
