//! The trace buffer, which every process with a printing program writes.

use std::io::Read;

use beeline_uapi::Errno;
use rustix::fs::OFlags;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::backend::Id;
use crate::budget::Budget;
use crate::trace::Trace;

/// A trace buffer with one reader.
pub struct TraceBuffer {
    trace: Trace,
    reader: std::fs::File,
}

impl TraceBuffer {
    /// Creates an empty one.
    ///
    /// # Errors
    ///
    /// Those of `Trace::new` and of `pipe2(2)`.
    pub fn new() -> Result<Self, Errno> {
        let trace = Trace::new(Id(1), 1, &Budget::default())?;
        let flags = PipeFlags::CLOEXEC | PipeFlags::NONBLOCK;
        let (reader, writer) = pipe_with(flags).map_err(|error| Errno(error.raw_os_error()))?;
        debug_assert!(
            rustix::fs::fcntl_getfl(&writer).is_ok_and(|now| now.contains(OFlags::NONBLOCK))
        );
        trace.add_pipe(writer);
        Ok(Self {
            trace,
            reader: reader.into(),
        })
    }

    /// Returns its memory: the address here, and the number of bytes.
    pub fn memory(&self) -> (*mut u8, usize) {
        let memory = &self.trace.map().memory;
        (memory.base(), memory.len())
    }

    /// Carries lines into the pipe, and returns what a tool reads there.
    pub fn lines(&mut self) -> Vec<u8> {
        self.trace.pump();
        let mut lines = Vec::new();
        // It ends with EAGAIN.
        let _ = self.reader.read_to_end(&mut lines);
        lines
    }

    /// Ends it. Returns the number of lines that were not read and of those that found no room.
    pub fn close(self) -> (u64, u64) {
        self.trace.close()
    }
}
