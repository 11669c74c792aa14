//! The way of a `bpf(2)` command to the guest and back, which all areas share.

use std::sync::Arc;

use beeline_supervisor::{Answer, Call, Reply};
use beeline_uapi::{Command, Errno};
use beeline_vm_protocol::info::Kind;
use beeline_vm_protocol::layout::Layout;
use beeline_vm_protocol::messages::BpfDone;

use super::attr::{Attributes, Taken};
use super::kernel::Kernel;
use crate::Guest;
use crate::objects::Object;

/// A call of `bpf(2)` that goes to the guest.
pub(super) struct BpfCall<'a> {
    pub(super) command: Command,
    pub(super) layout: Layout,
    /// The attribute, as long as the tool passed it.
    pub(super) attr: &'a [u8],
    /// The object that its first descriptor names, if the command has a descriptor there.
    pub(super) first: Option<&'a Arc<Object>>,
}

/// Carries commands of `bpf(2)` to the guest, as their layouts describe them.
#[derive(Clone, Copy)]
pub(super) struct Forward<'a> {
    call: &'a Call<'a>,
    attributes: Attributes<'a>,
    kernel: Kernel<'a>,
}

impl<'a> Forward<'a> {
    pub(super) fn new(guest: &'a Guest, call: &'a Call<'a>) -> Self {
        Self {
            call,
            attributes: Attributes::new(guest, call),
            kernel: Kernel::new(guest, call),
        }
    }

    /// Answers a command that makes nothing.
    pub(super) fn answer(&self, bpf: &BpfCall<'_>) -> Answer {
        let taken = self.take(bpf)?;
        let done = self.ask(&taken)?;
        self.give_back(&taken, &done).map(Reply::Value)
    }

    /// Carries out a command that makes an object.
    pub(super) fn make(&self, bpf: &BpfCall<'_>, kind: Kind) -> Result<Object, Errno> {
        self.make_of(&self.take(bpf)?, kind)
    }

    /// Carries out a command that makes an object and has been taken apart.
    pub(super) fn make_of(&self, taken: &Taken, kind: Kind) -> Result<Object, Errno> {
        let done = self.ask(taken)?;
        self.give_back(taken, &done)?;
        self.kernel.made(&done, kind)
    }

    /// Takes the attribute of a command apart.
    pub(super) fn take(&self, bpf: &BpfCall<'_>) -> Result<Taken, Errno> {
        self.attributes.take(bpf)
    }

    /// Asks the guest for a command, which may fail there.
    pub(super) fn ask(&self, taken: &Taken) -> Result<BpfDone, Errno> {
        self.kernel.bpf(taken.message.clone())
    }

    /// Gives the tool what the guest's kernel wrote, and returns the result of the call.
    pub(super) fn give_back(&self, taken: &Taken, done: &BpfDone) -> Result<i64, Errno> {
        taken.give_back(&self.call.memory, self.call.args[1], done)?;
        value_of(done, taken.layout, |line| {
            self.kernel.connection.say_refusal(&line)
        })
    }
}

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
