//! Programs on system calls: every way to attach one, the backend's requests, and the errors.
//! Scenes that the kernel can play as well are played on it, too.

#[path = "../common/mod.rs"]
mod common;
mod kernel_probes;
mod raw_tracepoints;
mod shown;
mod tracepoints;
mod tracing;

use beeline_uapi::ProgramType;
use common::tool::*;

const E2BIG: i64 = -(libc::E2BIG as i64);
const EACCES: i64 = -(libc::EACCES as i64);
const EBUSY: i64 = -(libc::EBUSY as i64);
const EEXIST: i64 = -(libc::EEXIST as i64);
const EFAULT: i64 = -(libc::EFAULT as i64);
const EINVAL: i64 = -(libc::EINVAL as i64);
const ENOENT: i64 = -(libc::ENOENT as i64);

/// Not a test of its own: the tool's side of all the others.
#[test]
fn helper_that_plays_the_tool() {
    common::play_as_tool(&[
        ("tracepoints", tracepoints::tracepoints),
        ("tracepoint_errors", tracepoints::tracepoint_errors),
        ("many_programs", tracepoints::many_programs),
        ("disabled_events", tracepoints::disabled_events),
        ("raw_tracepoints", raw_tracepoints::raw_tracepoints),
        ("typed_raw_tracepoints", tracing::typed_raw_tracepoints),
        ("tracing_programs", tracing::tracing_programs),
        ("kernel_probes", kernel_probes::kernel_probes),
        ("infos", shown::infos),
        ("files", shown::files),
    ]);
}

/// Returns the number of a tracepoint, as tools find it.
fn id_of_tracepoint(group: &str, name: &str) -> u64 {
    let path = format!("/sys/kernel/tracing/events/{group}/{name}/id");
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    text.trim().parse().unwrap()
}

fn open_id(id: u64, pid: i32, cpu: i32, disabled: bool) -> i64 {
    let attr = Attr::zero(112).u32(0, 2).u64(8, id).u64(16, 1);
    perf_event_open(&mut attr.u64(40, u64::from(disabled)), pid, cpu)
}

fn tracepoint(name: &str) -> i64 {
    open_id(id_of_tracepoint("syscalls", name), -1, 0, true)
}

fn raw(name: &str) -> i64 {
    open_id(id_of_tracepoint("raw_syscalls", name), -1, 0, true)
}

/// Returns a program that reads the four bytes of its context which end there.
fn looks_to(prog_type: ProgramType, end: u64) -> i64 {
    let load = 0x1061 | (end - 4) << 16;
    prog_load(prog_type, "looks", &[load, RETURN_0[0], RETURN_0[1]])
}

/// Returns how many attach requests to the backend contain all of `parts`.
fn attached(log: &[String], parts: &[&str]) -> usize {
    let is_it = |line: &&String| {
        line.starts_with("attach ") && parts.iter().all(|part| line.contains(part))
    };
    log.iter().filter(is_it).count()
}
