//! The common parts of the end-to-end tests and the benchmark: they build small target programs,
//! run an unmodified eBPF tool on them on the kernel or on Beeline, and inspect the effect on the
//! target.
//!
//! A test takes its [`Turn`], builds a program in a [`Scratch`] directory, starts it as a
//! [`Workload`], and starts a [`Tool`] for it on an [`Engine`]. It lets the workload do a known
//! amount of work, and compares the tool's output with the known facts and with the output of the
//! same tool on the kernel. Nothing here depends on how Beeline works: it is a command,
//! `target/release/beeline` or the one that `BEELINE` names.

mod case;
mod embedded;
mod engine;
mod guest;
mod lines;
mod output;
mod process;
mod scratch;
mod soak;
mod text;
mod tool;
mod turn;
mod workload;

pub use case::{Case, Compare};
pub use embedded::embedded_objects;
pub use engine::{
    Engine, beeline, beeline_wanted, compile_anew, engines, find_program, has_host_kernel,
    in_guest, in_sandbox, kernel_available, kernel_function, packaged_policy, proxy, sandboxed,
    with_kernel_headers, with_tracefs,
};
pub use guest::{Answer, Backing, GUEST_PATIENCE, Guest, Job, Options};
pub use lines::Lines;
pub use output::{histogram_total, map_counts, shape, tidy, without_sizes};
pub use process::{
    Footprint, as_user, is_alive, members_of_group, monotonic, send, statuses, until,
};
pub use scratch::{Scratch, file_offset, workload};
pub use soak::{Dice, seed, soak, stay_on_one_cpu};
pub use text::altered_text;
pub use tool::{Ended, TICK, Tool};
pub use turn::Turn;
pub use workload::{EXIT_CODE, Workload};

use std::io::Write;
use std::time::Duration;

/// The time that a test waits for anything before it fails.
///
/// It is long, because a busy machine is no failure.
pub const PATIENCE: Duration = Duration::from_secs(90);

/// Reports that a test did not run, in the form that the test report counts.
///
/// Written past the test runner's capture, so that it shows for passing tests too.
pub fn skipped(why: &str) {
    remark(&format!("skipped: {why}"));
}

/// Reports something that a reader of a passing test's output should know.
pub fn remark(what: &str) {
    let _ = std::io::stderr().write_all(format!("{what}\n").as_bytes());
}

/// Takes the value of an `Ok`; for an `Err`, ends the test as skipped, with the error as the
/// reason.
#[macro_export]
macro_rules! need {
    ($what:expr) => {
        match $what {
            Ok(value) => value,
            Err(why) => {
                $crate::skipped(&why.to_string());
                return;
            }
        }
    };
}
