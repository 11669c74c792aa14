//! The location of an object's memory in the guest's, so that the host can map it. The kernel tells
//! root in `/proc/self/pagemap`.

use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use beeline_uapi::pagemap::{PM_PFRAME_MASK, PM_PRESENT};
use beeline_vm_protocol::info::Kind;
use beeline_vm_protocol::layout::MapFacts;
use beeline_vm_protocol::messages::{PageRun, PageRuns, Pages};
use rustix::fs::{MemfdFlags, OFlags, memfd_create};

use crate::fs_roots::Root;
use crate::handles::Handles;
use crate::holder::Holder;
use crate::refusal::Refusal;
use crate::rings::{self, Ring};
use crate::shared::Shared;

/// Returns the page runs of a ring buffer (the consumer's page, the producer's, the data once), a
/// perf event's ring, or an array. They are held from now on. Also returns what is to be dropped
/// when the host has its answer, as unmapping takes time.
///
/// # Errors
///
/// `EBADF` for an unknown handle, `ENOTSUP` if the kernel does not tell where the pages are, those
/// of [`Ring::of`], and those of mapping and holding the object.
pub fn pages(
    request: &Pages,
    handles: &Handles,
    holder: &Arc<Holder>,
) -> Result<(PageRuns, Option<Shared>), Refusal> {
    let object = handles.get(request.handle)?;
    let mut left = None;
    let mut frames = Vec::new();
    let mut mapped_by_holder = 0;
    if object.kind == Kind::Map && object.facts.is_some_and(|facts| facts.is_mappable_array()) {
        let mapped = rings::array(&object, false)?;
        add(&mapped, mapped.len(), &mut frames)?;
        left = Some(mapped);
    } else if let Some(facts) = object.facts.filter(MapFacts::is_ring) {
        // The data once, and for no longer than it is looked at: the time grows with its size, and
        // the host is the one that reads it.
        let page = rustix::param::page_size();
        let len = 2 * page + facts.max_entries as usize;
        let consumer = Shared::new(&object.fd, 0, page, false)?;
        add(&consumer, page, &mut frames)?;
        let rest = Shared::new(&object.fd, page as u64, len - page, false)?;
        add(&rest, len - page, &mut frames)?;
        left = Some(rest);
    } else if let Ring::Event { pages, .. } = &*Ring::of(&object, request.pages)? {
        mapped_by_holder = pages.len();
        add(pages, pages.len(), &mut frames)?;
    }
    let mut held = object.held();
    if held.is_none() {
        *held = Some(holder.hold(object.fd.as_fd(), mapped_by_holder)?);
    }
    let runs = runs(&frames);
    Ok((PageRuns { runs }, left))
}

/// Makes a page with content that a host chose, and returns where it is.
///
/// # Errors
///
/// `E2BIG` for more than a page, `ENOTSUP` if the kernel does not tell where the page is, and the
/// errors of making it.
pub fn mark(content: &[u8]) -> Result<(Shared, PageRuns), Refusal> {
    let page = rustix::param::page_size();
    if content.len() > page {
        return Err(Refusal::new(libc::E2BIG, "a mark is a page at most"));
    }
    let memory = memfd_create("beeline-mark", MemfdFlags::CLOEXEC)?;
    rustix::fs::ftruncate(&memory, page as u64)?;
    let mark = Shared::new(&memory, 0, page, true)?;
    mark.store_bytes(0, content);
    let mut frames = Vec::new();
    add(&mark, page, &mut frames)?;
    let runs = runs(&frames);
    Ok((mark, PageRuns { runs }))
}

/// Adds the frames of the first bytes of a mapping.
fn add(mapped: &Shared, len: usize, frames: &mut Vec<u64>) -> Result<(), Refusal> {
    let page = rustix::param::page_size();
    let mut entries = entries(mapped, len / page)?;
    // Most pages are only there once they have been touched; a ring buffer's are from the start.
    let mut touched = false;
    for (number, entry) in entries.iter().enumerate() {
        if entry & PM_PRESENT == 0 {
            mapped.load(number * page);
            touched = true;
        }
    }
    if touched {
        entries = self::entries(mapped, len / page)?;
    }
    for entry in entries {
        if entry & PM_PRESENT == 0 {
            return Err(not_told("it does not show these pages"));
        }
        if entry & PM_PFRAME_MASK == 0 {
            return Err(not_told(
                "it shows frames only to processes with CAP_SYS_ADMIN",
            ));
        }
        frames.push(entry & PM_PFRAME_MASK);
    }
    Ok(())
}

/// Returns the kernel's entries for the first pages of a mapping.
fn entries(mapped: &Shared, pages: usize) -> Result<Vec<u64>, Refusal> {
    let mut bytes = vec![0; pages * 8];
    let own = format!("{}/pagemap", std::process::id());
    let file = Root::Proc.open(&own, OFlags::RDONLY);
    let file = file.map_err(|error| not_told(&error.to_string()))?;
    let at = mapped.address() / rustix::param::page_size() * 8;
    File::from(file)
        .read_exact_at(&mut bytes, at as u64)
        .map_err(|error| not_told(&error.to_string()))?;
    let entries = bytes.as_chunks().0.iter();
    Ok(entries.map(|entry| u64::from_ne_bytes(*entry)).collect())
}

fn not_told(why: &str) -> Refusal {
    let why = format!("/proc/self/pagemap does not say where the pages are: {why}");
    Refusal::new(libc::ENOTSUP, why)
}

fn runs(frames: &[u64]) -> Vec<PageRun> {
    let mut runs: Vec<PageRun> = Vec::new();
    for frame in frames {
        match runs.last_mut() {
            Some(run) if run.first + run.count == *frame => run.count += 1,
            _ => runs.push(PageRun {
                first: *frame,
                count: 1,
            }),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_one_run() {
        let run = |first, count| PageRun { first, count };
        assert_eq!(runs(&[]), []);
        assert_eq!(runs(&[7, 8, 9, 4, 5, 9]), [run(7, 3), run(4, 2), run(9, 1)]);
    }
}
