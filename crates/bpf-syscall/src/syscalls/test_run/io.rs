//! The memory of the tool that a test run reads and writes (`bpf_ctx_init`, `bpf_test_finish`).

use beeline_supervisor::{Call, Memory};
use beeline_uapi::Errno;
use beeline_uapi::linux::PAGE_SIZE;
use zerocopy::{FromBytes, IntoBytes};

use crate::syscalls::attr::{Buffer, TestRun};
use crate::syscalls::tool_attr::ToolAttr;

/// The tool's buffers of a test run.
pub(super) struct Io<'a> {
    memory: Memory<'a>,
    attr: ToolAttr<'a>,
    data_out: Buffer,
    context_in: Buffer,
    context_out: Buffer,
}

impl<'a> Io<'a> {
    pub(super) fn new(call: &Call<'a>, wanted: &TestRun) -> Self {
        Self {
            memory: call.memory,
            attr: ToolAttr::of(call),
            data_out: wanted.data_out,
            context_in: wanted.context_in,
            context_out: wanted.context_out,
        }
    }

    /// Reads a buffer.
    ///
    /// # Errors
    ///
    /// `EFAULT` if it cannot be read.
    pub(super) fn read(&self, buffer: &Buffer) -> Result<Vec<u8>, Errno> {
        self.memory.bytes(buffer.address, buffer.len as usize)
    }

    /// Reads the context that the tool gives. Without one that is zeros if the tool wants one back,
    /// else `None`.
    ///
    /// # Errors
    ///
    /// `E2BIG` if it is longer than is known here and not zeros there, `EFAULT` if it cannot be
    /// read.
    pub(super) fn context<T: FromBytes + IntoBytes>(&self) -> Result<Option<T>, Errno> {
        let (given, wanted) = (&self.context_in, &self.context_out);
        if given.address == 0 && wanted.address == 0 {
            return Ok(None);
        }
        let mut context = T::new_zeroed();
        if given.address == 0 {
            return Ok(Some(context));
        }
        if u64::from(given.len) > PAGE_SIZE {
            return Err(Errno::E2BIG);
        }
        let bytes = self.read(given)?;
        let known = bytes.len().min(size_of::<T>());
        let (first, behind) = bytes.split_at(known);
        if behind.iter().any(|&byte| byte != 0) {
            return Err(Errno::E2BIG);
        }
        context.as_mut_bytes()[..known].copy_from_slice(first);
        Ok(Some(context))
    }

    /// Writes the result of a program without a packet.
    ///
    /// # Errors
    ///
    /// `EFAULT` if it cannot be written.
    pub(super) fn put_result(&self, result: u32) -> Result<(), Errno> {
        self.attr.put_u32(TestRun::RETVAL, result)
    }

    /// Writes the packet and the results. The first `direct` bytes of the packet are in one piece.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if there is not enough room, after all else was written; `EFAULT` if something
    /// cannot be written.
    pub(super) fn finish(&self, data: &[u8], result: Finished) -> Result<(), Errno> {
        let copied = match self.data_out.len as usize {
            0 => data.len(),
            room => data.len().min(room),
        };
        let mut outcome = Outcome::of(copied == data.len());
        if self.data_out.address != 0 {
            // The kernel takes the pieces behind the first one off, whatever it cuts.
            let (_, rest) = data.split_at(result.direct.min(data.len()));
            let Some(first) = copied.checked_sub(rest.len()) else {
                return Err(Errno::ENOSPC);
            };
            let room = copied - first;
            self.put(self.data_out.address, &data[..first], outcome)?;
            let behind = self.data_out.address.wrapping_add(first as u64);
            self.put(behind, &rest[..rest.len().min(room)], outcome)?;
            if rest.len() > room {
                outcome = Outcome::Cut;
            }
        }
        self.attr
            .put_u32(TestRun::DATA_SIZE_OUT, data.len() as u32)?;
        self.attr.put_u32(TestRun::RETVAL, result.retval)?;
        self.attr.put_u32(TestRun::DURATION, result.duration)?;
        outcome.as_result()
    }

    /// Writes the context that the program has left, if the tool wants it.
    ///
    /// # Errors
    ///
    /// `ENOSPC` if there is not enough room, after all else was written; `EFAULT` if something
    /// cannot be written.
    pub(super) fn put_context(&self, context: &[u8]) -> Result<(), Errno> {
        if self.context_out.address == 0 {
            return Ok(());
        }
        let copied = context.len().min(self.context_out.len as usize);
        let outcome = Outcome::of(copied == context.len());
        self.put(self.context_out.address, &context[..copied], outcome)?;
        self.attr
            .put_u32(TestRun::CONTEXT_SIZE_OUT, context.len() as u32)?;
        outcome.as_result()
    }

    /// Writes to the tool's memory.
    ///
    /// # Errors
    ///
    /// `EFAULT` if that cannot be written, unless it was cut, which then counts.
    fn put(&self, address: u64, bytes: &[u8], outcome: Outcome) -> Result<(), Errno> {
        let written = self.memory.write(address, bytes);
        written.map_err(|errno| outcome.as_result().err().unwrap_or(errno))
    }
}

/// Tells whether all of something could be given to the tool.
#[derive(Debug, Clone, Copy)]
enum Outcome {
    Whole,
    Cut,
}

impl Outcome {
    fn of(is_whole: bool) -> Self {
        if is_whole { Self::Whole } else { Self::Cut }
    }

    fn as_result(self) -> Result<(), Errno> {
        match self {
            Self::Whole => Ok(()),
            Self::Cut => Err(Errno::ENOSPC),
        }
    }
}

/// The numbers that come out of a test run.
pub(super) struct Finished {
    /// r0 of the last run.
    pub(super) retval: u32,
    /// The average duration in nanoseconds.
    pub(super) duration: u32,
    /// The bytes of the packet in the first piece.
    pub(super) direct: usize,
}
