//! The capabilities that a tool is told it has, in a session of a user without them.
//!
//! Tools look whether they may load programs before they try. They gain nothing by the answer:
//! their eBPF calls are Beeline's to answer, and the kernel goes by what they have.

use beeline_inject::procfs;
use beeline_uapi::Errno;
use beeline_uapi::linux::{
    CAP_LAST_CAP, CapUserData, CapUserHeader, LINUX_CAPABILITY_U32S_3, LINUX_CAPABILITY_VERSION_3,
};
use zerocopy::{FromBytes, IntoBytes};

use crate::call::{Answer, Call};
use crate::notify::Reply;

/// The arguments of a call about the caller's own capabilities.
struct Asked {
    /// Where the sets are.
    data: u64,
}

impl Asked {
    /// Reads them. `None` if the kernel is to answer: an older version, another process, or only the
    /// version.
    fn of(call: &Call<'_>) -> Result<Option<Self>, Errno> {
        let [header, data, ..] = call.args;
        let bytes = call.memory.bytes(header, size_of::<CapUserHeader>())?;
        let Ok(asked) = CapUserHeader::read_from_bytes(&bytes) else {
            return Ok(None);
        };
        let is_own = asked.pid == 0 || procfs::own_pid(call.process()?) == asked.pid;
        let is_known = asked.version == LINUX_CAPABILITY_VERSION_3 && is_own && data != 0;
        Ok(is_known.then_some(Self { data }))
    }
}

/// Answers `capget(header, data)` of a process that is taken for root: it has all capabilities.
///
/// # Errors
///
/// Those of [`Memory::read`](crate::Memory::read) and [`Memory::write`](crate::Memory::write).
pub(crate) fn all(call: &Call<'_>) -> Answer {
    let Some(asked) = Asked::of(call)? else {
        return Ok(Reply::Continue);
    };
    let set = u64::MAX >> (u64::BITS - 1 - CAP_LAST_CAP);
    let sets: Sets = halves(set).map(|part| CapUserData {
        effective: part,
        permitted: part,
        inheritable: 0,
    });
    call.memory.write(asked.data, sets.as_bytes())?;
    Ok(Reply::Value(0))
}

/// Lets `capset(header, data)` of such a process pass without the capabilities that it only seems to
/// have: programs give up some of what they have been told.
///
/// # Errors
///
/// Those of [`Memory::read`](crate::Memory::read).
pub(crate) fn real(call: &Call<'_>) -> Answer {
    let Some(asked) = Asked::of(call)? else {
        return Ok(Reply::Continue);
    };
    let bytes = call.memory.bytes(asked.data, size_of::<Sets>())?;
    let (Ok(sets), Some(permitted)) = (Sets::read_from_bytes(&bytes), permitted(call.tid)) else {
        return Ok(Reply::Continue);
    };
    let real: Sets = std::array::from_fn(|at| CapUserData {
        effective: sets[at].effective & halves(permitted)[at],
        permitted: sets[at].permitted & halves(permitted)[at],
        ..sets[at]
    });
    if real != sets {
        // Where the program may not write, the kernel refuses the call.
        let _ = call.memory.write(asked.data, real.as_bytes());
    }
    Ok(Reply::Continue)
}

type Sets = [CapUserData; LINUX_CAPABILITY_U32S_3];

fn halves(set: u64) -> [u32; LINUX_CAPABILITY_U32S_3] {
    [set as u32, (set >> u32::BITS) as u32]
}

/// Reads the capabilities that a thread may have.
fn permitted(tid: i32) -> Option<u64> {
    u64::from_str_radix(&procfs::status_field(tid, "CapPrm:")?, 16).ok()
}
