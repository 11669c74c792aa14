//! The handlers of a tool's calls, for fuzzing. The tool's memory is bytes in this process, and its
//! descriptors are this process's own.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use beeline_runtime::backend::Backend;
use beeline_supervisor::bpffs::BpfFs;
use beeline_supervisor::keys::key_of;
use beeline_supervisor::{Answers, Call, Listener, Memory, Reply, ToolCall};
use beeline_uapi::Errno;

use crate::local::Local;

/// A tool that does not run, with the handlers of its calls.
pub struct Tool {
    local: Local,
    /// A listener that never has calls.
    listener: Listener,
}

impl Tool {
    /// The address at which the tool's memory starts.
    pub const MEMORY: u64 = 0x10000;

    /// Creates a tool that this backend serves.
    ///
    /// # Errors
    /// Fails if this process has no descriptors left.
    pub fn new(backend: Arc<dyn Backend>) -> io::Result<Self> {
        Ok(Self {
            local: Local::new(backend)?,
            listener: Listener::new(File::open("/dev/null")?.into())?,
        })
    }

    /// Makes the call with this number, with `memory` at [`Self::MEMORY`].
    ///
    /// The descriptor that it returns is closed again.
    ///
    /// # Errors
    /// The errno with which the call fails, as the tool would get it.
    pub fn call(&self, number: i64, arguments: [u64; 6], memory: &[u8]) -> Result<(), Errno> {
        let answer = self.answer(number, arguments, memory);
        let done = answer.map(|file| {
            let key = file.as_ref().and_then(|file| key_of(file).ok());
            drop(file);
            if let Some(key) = key {
                self.local.fds.installed(key, false);
            }
        });
        // If this fails, the object stays until the next call.
        let _ = self.local.fds.reap_closed();
        done
    }

    /// Drops all pinned objects and their names.
    pub fn unpin_all(&mut self) {
        self.local.bpffs = BpfFs::default();
    }

    /// Makes such a call, and returns the descriptor that the tool would get, which stays open.
    ///
    /// # Errors
    /// The errno with which the call fails, and EINVAL if it returns no descriptor.
    pub fn open(&self, number: i64, arguments: [u64; 6], memory: &[u8]) -> Result<OwnedFd, Errno> {
        let file = self.answer(number, arguments, memory)?;
        let file = file.ok_or(Errno::EINVAL)?;
        if let Ok(key) = key_of(&file) {
            self.local.fds.installed(key, true);
        }
        Ok(file)
    }

    fn answer(
        &self,
        number: i64,
        arguments: [u64; 6],
        memory: &[u8],
    ) -> Result<Option<OwnedFd>, Errno> {
        let call = Call {
            memory: Memory::of_nobody(Self::MEMORY, memory),
            listener: &self.listener,
            id: 0,
            tid: rustix::thread::gettid().as_raw_nonzero().get(),
            args: arguments,
            is_forwarded: false,
            let_lead: &|| (),
        };
        match self.local.answer(&call, ToolCall::of(number, arguments))? {
            Reply::Descriptor { file, .. } | Reply::Watch(file) => Ok(Some(file)),
            Reply::Value(_) | Reply::Continue | Reply::Answered => Ok(None),
        }
    }
}
