//! The capabilities that a tool is told it has, in a session of a user without them.
//!
//! Tools look whether they may load programs before they try. They gain nothing by the answer:
//! their eBPF calls are Beeline's to answer, and the kernel goes by what they have.

use beeline_inject::procfs;
use beeline_uapi::linux::{
    CAP_LAST_CAP, CapUserData, CapUserHeader, LINUX_CAPABILITY_U32S_3, LINUX_CAPABILITY_VERSION_3,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::call::{Answer, Call};
use crate::notify::Reply;

/// Answers `capget(header, data)` of a process that is taken for root: it has all capabilities. Any
/// other request is the kernel's to answer: an older version, another process, or only the version.
///
/// # Errors
///
/// Those of [`Memory::read`](crate::Memory::read) and [`Memory::write`](crate::Memory::write).
pub(crate) fn all(call: &Call<'_>) -> Answer {
    let [header, data, ..] = call.args;
    let bytes = call.memory.bytes(header, size_of::<CapUserHeader>())?;
    let Ok(asked) = CapUserHeader::read_from_bytes(&bytes) else {
        return Ok(Reply::Continue);
    };
    let is_own = asked.pid == 0 || procfs::own_pid(call.process()?) == asked.pid;
    if asked.version != LINUX_CAPABILITY_VERSION_3 || !is_own || data == 0 {
        return Ok(Reply::Continue);
    }
    let set = u64::MAX >> (u64::BITS - 1 - CAP_LAST_CAP);
    let sets: [CapUserData; LINUX_CAPABILITY_U32S_3] =
        [set as u32, (set >> u32::BITS) as u32].map(|part| CapUserData {
            effective: part,
            permitted: part,
            inheritable: 0,
        });
    call.memory.write(data, sets.as_bytes())?;
    Ok(Reply::Value(0))
}
