//! Entry points for fuzzing: structures that a hostile target writes, with what Beeline does with
//! them. They are in memory of their own, and in a process that does nothing.

mod remains;
mod shared_map;
mod trace_buffer;

use std::io;
use std::ops::Range;
use std::process::{Child, Command, Stdio};

use beeline_agent::foreseen;
use beeline_inject::{ENTERING, LEAVING};
use beeline_uapi::foreseen::ForeseenCall;

use crate::binary::unwind_table::of_section;
use crate::confinement::{decoded, objection};
pub use crate::map::shards::View;
pub use crate::tracees::fuzz_api::HostilePage;
pub use remains::{Part, Remains, Seen};
pub use shared_map::SharedMap;
pub use trace_buffer::TraceBuffer;

/// Returns the calls of Beeline's in targets, each with whether Beeline takes it to pass a filter:
/// the bytes of some `struct sock_filter`.
pub fn verdicts(filter: &[u8]) -> Vec<(&'static ForeseenCall, bool)> {
    let filter = decoded(filter);
    let calls = LEAVING.iter().chain(ENTERING).chain(foreseen::CALLS);
    let verdict = |call| (call, objection(&filter, call).is_none());
    calls.map(verdict).collect()
}

/// Returns the unwind table of code at some addresses, and the address that its first page stands
/// for: by the bytes of an `.eh_frame` section at address 0. `None` if these say nothing of the code.
pub fn unwind_table(section: &[u8], code: &Range<u64>) -> Option<(u64, Vec<u32>)> {
    let table = of_section(section, 0, code)?;
    Some((table.origin, table.words))
}

/// A process that sleeps until it is dropped, or until this process ends.
#[derive(Debug)]
pub(crate) struct Sleeper(Child);

impl Sleeper {
    /// Starts it.
    ///
    /// # Errors
    ///
    /// Those of [`Command::spawn`].
    pub fn start() -> io::Result<Self> {
        // It reads until the pipe is closed.
        let mut cat = Command::new("cat");
        cat.stdin(Stdio::piped()).stdout(Stdio::null());
        cat.stderr(Stdio::null()).spawn().map(Self)
    }

    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
