//! Maps a guest's memory into the tool, where it can be seen from here. The tool then reads and
//! frees records in the guest's own pages by itself.
//!
//! The guest says which pages an object has, and [`GuestMemory`] in which file they are. The tool's
//! `mmap` first maps the memory file that stands for the object. Before the call returns, its
//! thread is stopped, and the parts of the guest's file that the object lies in are mapped over it.
//! A mapping that the tool may only read is made with a descriptor that cannot be written.
//!
//! The guest gives these pages to nothing else before it has been told, or a while after the
//! connection has ended. By then they are no longer mapped here: [`Sharing::tear_down`] puts memory
//! without anything of the guest's in their place, and an object is given back only when no process
//! has any of it mapped ([`Sharing::unless_mapped`]). The processes that have it mapped are found
//! by their mappings: regardless of their parents, they can only have these pages from the tool.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use beeline_inject::{MapFlags, Options, Process, ProtFlags, Region, Seccomp};
use beeline_uapi::Errno;
use beeline_vm_memory::{GuestMemory, Place};
use beeline_vm_protocol::messages::guest_message::Body as Said;
use beeline_vm_protocol::messages::host_message::Body as Asked;
use beeline_vm_protocol::messages::{Mark, PageRuns, Pages, Release};
use parking_lot::{Mutex, MutexGuard};

use crate::Error;
use crate::connection::{Connection, LOST};
use crate::memory::{Memory, PAGE, RING_HEAD, Shape};

/// The most parts that are mapped. Each takes 14 us or so, and a process has 65,530 mappings at the
/// most.
const MOST_PLACES: usize = 4096;
/// The bytes of the mark that identifies a guest's memory.
const MARK: usize = 64;
/// A marked page can be moved while it is looked for, and this process may be out of descriptors
/// for a moment.
const TRIES: u32 = 3;
const PAUSE: Duration = Duration::from_millis(20);

/// The guest's memory, and the objects that are mapped.
pub struct Sharing {
    memory: GuestMemory,
    /// True if tools can be stopped. The memory can then be mapped into them.
    is_usable: OnceLock<bool>,
    users: Mutex<Users>,
}

/// The objects that are mapped, and whether the guest is lost; then none is mapped any more.
#[derive(Default)]
pub(super) struct Users {
    /// The objects that the tool has mapped, by handle.
    objects: HashMap<u32, Arc<Memory>>,
    /// True if the guest is lost.
    is_over: bool,
}

impl Sharing {
    /// Checks that the memory belongs to the guest at the other end of a connection.
    ///
    /// The guest writes a given mark to a page, which must be found in the memory. The error says
    /// why the memory cannot be used.
    ///
    /// # Errors
    /// [`Error::Guest`] with the reason why the memory cannot be used.
    pub fn new(connection: &Connection, memory: GuestMemory) -> Result<Arc<Self>, Error> {
        if connection.welcome().page_size as usize != PAGE {
            return Err(Error::Guest("its pages are not of 4 KiB".into()));
        }
        if !steady_calls() {
            let why = "this machine's Linux is older than 5.19, and breaks off a tool's calls";
            return Err(Error::Guest(why.into()));
        }
        let found = (0..TRIES).map(|_| has_mark(connection, &memory));
        let mut found = found.skip_while(|found| matches!(found, Ok(false)));
        match found.next() {
            Some(found) => found.map(|_| ())?,
            None => {
                let why = "the memory that was named is not this guest's";
                return Err(Error::Guest(why.into()));
            }
        }
        Ok(Arc::new(Self {
            memory,
            is_usable: OnceLock::new(),
            users: Mutex::default(),
        }))
    }

    /// Returns whether anything can be mapped into the tool that this process belongs to. The
    /// reason against it is told once. A process that a debugger has cannot be stopped.
    pub(super) fn is_usable(&self, connection: &Connection, pid: i32) -> bool {
        *self.is_usable.get_or_init(|| {
            let refused = open(pid).err();
            if let Some(error) = &refused {
                connection.say(&format!("{error}; records are sent instead"));
            }
            refused.is_none()
        })
    }

    /// Returns the places of an object's pages, in the order of its mapping. Returns `None`, and
    /// tells the user, if the guest does not say, or says nonsense.
    pub(super) fn places(
        &self,
        connection: &Connection,
        handle: u32,
        shape: Shape,
    ) -> Option<Vec<Place>> {
        let pages = shape.pages();
        // The reason for the refusal has been told already.
        let said = connection.ask(Asked::Pages(Pages { handle, pages })).ok()?;
        let Said::PageRuns(runs) = said else {
            return None;
        };
        // Counted before anything is allocated for them, however many there are.
        let counted = pairs(&runs).try_fold(0_u64, |sum, (_, count)| sum.checked_add(count));
        if counted != Some(pages_of(shape)) {
            connection.say("the guest names too few pages, or too many; records are sent instead");
            return None;
        }
        match self.memory.places(pairs(&runs)) {
            Ok(places) if places.len() > MOST_PLACES => {
                let count = places.len();
                connection.say(&format!(
                    "the pages of a ring or an array are scattered over {count} places in the guest's memory; its content is sent instead"
                ));
                None
            }
            Ok(places) => Some(whole(places, shape)),
            Err(error) => {
                connection.say(&format!("{error}; records are sent instead"));
                None
            }
        }
    }

    /// Ends the sharing when the tool has ended. The guest is told that all pages are free before
    /// the connection is closed.
    pub(super) fn release(&self, connection: &Connection) {
        let handles: Vec<u32> = self.users().objects.keys().copied().collect();
        if !handles.is_empty() {
            // If the guest is lost, it frees them later.
            let _ = connection.ask(Asked::Release(Release { handles }));
        }
    }

    /// Removes the guest's pages everywhere: the guest is lost, or its memory is about to serve
    /// something else, and nothing here may touch it any more. From now on rings are empty, and
    /// arrays keep their last content.
    pub(super) fn tear_down(&self) {
        let mut users = self.users();
        users.is_over = true;
        for memory in users.objects.values() {
            memory.unshare();
        }
        let places = Places::of(users.objects.values());
        let mut tries = 0..TRIES;
        loop {
            let found = processes(|region| places.have(region));
            // A process may have started another before it was held; one that has ended, or cannot
            // be held, is left out.
            let left = found.as_ref().map(|found| {
                let left = found.iter().map(|pid| self.leave(*pid, &places, &users));
                left.filter(Result::is_ok).count()
            });
            match left {
                Ok(0) => break,
                Ok(_) => {}
                Err(_) if tries.next().is_some() => std::thread::sleep(PAUSE),
                Err(_) => break,
            }
        }
    }

    /// Replaces the guest's pages in a process.
    fn leave(&self, pid: i32, places: &Places, users: &Users) -> Result<(), beeline_inject::Error> {
        let process = open(pid)?;
        let mut stopped = process.stop()?;
        let regions = stopped.regions()?;
        for region in regions.iter().filter(|region| places.have(region)) {
            let len = region.end - region.start;
            let mut last = Vec::new();
            if users.is_array(region) {
                last = vec![0; len as usize];
                stopped.read(region.start, &mut last)?;
            }
            let mut protection = ProtFlags::READ;
            protection.set(ProtFlags::WRITE, region.permissions.write);
            stopped.mmap_anonymous(len, protection, MapFlags::FIXED, region.start)?;
            if !last.is_empty() {
                stopped.write(region.start, &last)?;
            }
        }
        Ok(())
    }

    /// Calls `let_go`, which drops an object, unless a process has any of it mapped. Nothing of it
    /// is mapped meanwhile.
    pub(super) fn unless_mapped<T>(
        &self,
        memory: &Arc<Memory>,
        let_go: impl FnOnce() -> Option<T>,
    ) -> Option<T> {
        /// During one look, a process may start another at a place that has been passed, and unmap
        /// its own.
        const LOOKS: u32 = 2;
        let mut users = self.users();
        let own = Places::of([memory]);
        let all = Places::of(users.objects.values().chain([memory]));
        // Neighbours are one mapping, so a mapping that is another object's as well counts.
        let is_mapped = |region: &Region| all.have(region) && own.touch(region);
        for _ in 0..LOOKS {
            if !processes(is_mapped).ok()?.is_empty() {
                return None;
            }
        }
        let gone = let_go()?;
        users.objects.remove(&memory.handle);
        Some(gone)
    }

    /// Adds an object of which the tool maps the guest's pages; returns ENOTCONN if the guest is
    /// lost. They are not torn down while the returned lock is held.
    pub(super) fn add(&self, memory: &Arc<Memory>) -> Result<MutexGuard<'_, Users>, Errno> {
        let mut users = self.users();
        if users.is_over {
            return Err(LOST);
        }
        users.objects.insert(memory.handle, Arc::clone(memory));
        Ok(users)
    }

    fn users(&self) -> MutexGuard<'_, Users> {
        self.users.lock()
    }
}

impl Users {
    /// Returns whether a mapping of a process's is an array's.
    fn is_array(&self, region: &Region) -> bool {
        let arrays = self.objects.values().filter(|memory| memory.is_array());
        Places::of(arrays).have(region)
    }
}

/// The places of some objects in the guest's memory.
struct Places(Vec<Place>);

impl Places {
    fn of<'a>(objects: impl IntoIterator<Item = &'a Arc<Memory>>) -> Self {
        let shared = objects
            .into_iter()
            .filter_map(|memory| memory.shared.as_ref());
        Self(shared.flatten().cloned().collect())
    }

    /// Returns whether all of a process's mapping lies in these places. QEMU has mapped more, and
    /// so has Beeline for another guest.
    fn have(&self, region: &Region) -> bool {
        let of_file: Vec<&Place> = {
            let places = self.0.iter();
            places.filter(|place| place.is_mapped_by(region)).collect()
        };
        let (mut at, end) = (region.offset, region.offset + (region.end - region.start));
        // Neighbours are one mapping.
        while at < end {
            let mut places = of_file.iter();
            let place = places.find(|place| (place.offset..place.offset + place.len).contains(&at));
            let Some(place) = place else { return false };
            at = place.offset + place.len;
        }
        true
    }

    /// Returns whether any of the mapping lies in these places.
    fn touch(&self, region: &Region) -> bool {
        let end = region.offset + (region.end - region.start);
        let mut of_file = self.0.iter().filter(|place| place.is_mapped_by(region));
        of_file.any(|place| place.offset < end && region.offset < place.offset + place.len)
    }
}

/// Returns the processes that have such a mapping, but for this one. Processes that may not be
/// inspected are not the tool's: they could not have been held when it was mapped.
fn processes(is_such: impl Fn(&Region) -> bool) -> io::Result<Vec<i32>> {
    let own = std::process::id() as i32;
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let regions = match beeline_inject::regions_of(pid) {
            Err(error) if is_hidden(&error) => continue,
            regions => regions?,
        };
        if pid != own && regions.iter().any(&is_such) {
            found.push(pid);
        }
    }
    Ok(found)
}

/// Returns true if the process has ended, or may not be inspected.
fn is_hidden(error: &io::Error) -> bool {
    let gone = error.raw_os_error() == Some(libc::ESRCH);
    gone || matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied
    )
}

/// Opens the tool's process; its filter lets the calls made here pass.
pub(super) fn open(pid: i32) -> Result<Process, beeline_inject::Error> {
    let seccomp = Seccomp::Trust;
    Process::open_with(pid, Options { seccomp })
}

/// Returns a part of some places, given in bytes.
pub(super) fn part(places: &[Place], from: u64, len: u64) -> Vec<Place> {
    let mut found = Vec::new();
    let mut start = 0;
    for place in places {
        let end = start + place.len;
        let (first, last) = (from.max(start), (from + len).min(end));
        if first < last {
            found.push(place.part(first - start, last - first));
        }
        start = end;
    }
    found
}

/// Returns the number of pages that the guest has for an object.
fn pages_of(shape: Shape) -> u64 {
    let bytes = match shape {
        Shape::Ring { data } => RING_HEAD + data,
        Shape::Perf { .. } | Shape::Array { .. } => shape.len(),
    };
    (bytes / PAGE) as u64
}

/// Returns all pages of an object's mapping: those of a ring buffer's data come twice.
fn whole(mut places: Vec<Place>, shape: Shape) -> Vec<Place> {
    if let Shape::Ring { data } = shape {
        places.extend(part(&places, RING_HEAD as u64, data as u64));
    }
    places
}

fn pairs(runs: &PageRuns) -> impl Iterator<Item = (u64, u64)> {
    runs.runs.iter().map(|run| (run.first, run.count))
}

/// Lets the guest write a mark, and looks for it where the guest says that it is.
fn has_mark(connection: &Connection, memory: &GuestMemory) -> Result<bool, Error> {
    let failed = |what: String| Error::Guest(what);
    let mut mark = [0; MARK];
    let filled = rustix::rand::getrandom(&mut mark, rustix::rand::GetRandomFlags::empty());
    filled.map_err(|error| failed(error.to_string()))?;
    let content = mark.to_vec();
    let said = connection.ask(Asked::Mark(Mark { content }));
    let Ok(Said::PageRuns(runs)) = said else {
        return Err(failed("the guest does not say where its memory is".into()));
    };
    let places = memory.places(pairs(&runs));
    let places = places.map_err(|error| failed(error.to_string()))?;
    let Some(place) = places.first() else {
        return Ok(false);
    };
    let file = place.file(false).try_clone_to_owned();
    let file = std::fs::File::from(file.map_err(|error| failed(error.to_string()))?);
    let mut found = [0; MARK];
    let read = file.read_exact_at(&mut found, place.offset);
    read.map_err(|error| failed(error.to_string()))?;
    Ok(found == mark)
}

/// Returns whether a process of the tool may be stopped. It is left alone if it is stopped for the
/// guest's memory, or if stopping it interrupts its calls.
pub(super) fn may_be_stopped(sharing: Option<&Sharing>) -> bool {
    sharing.is_none() && steady_calls()
}

/// Returns whether a thread with a pending call keeps waiting for the answer when it is asked to
/// stop. It does if it waits in such a way that only a deadly signal ends it (Linux 5.19).
fn steady_calls() -> bool {
    let system = rustix::system::uname();
    let release = system.release().to_string_lossy().into_owned();
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    let mut next = || numbers.next().and_then(|number| number.parse::<u32>().ok());
    (next(), next()) >= (Some(5), Some(19))
}

#[cfg(test)]
mod tests {
    use super::*;
    use beeline_inject::Permissions;
    use beeline_vm_memory::Part;
    use std::os::fd::AsRawFd;

    const ONE: u64 = PAGE as u64;

    /// Returns places for so many pages, each away from its neighbours in a memory file.
    fn scattered(count: u64) -> Vec<Place> {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("beeline-test", flags).unwrap();
        rustix::fs::ftruncate(&file, 2 * count * ONE).unwrap();
        let part = Part {
            path: format!("/proc/self/fd/{}", file.as_raw_fd()).into(),
            address: None,
            len: None,
            offset: 0,
        };
        let memory = GuestMemory::of_parts(&[part]).unwrap();
        memory
            .places((0..count).map(|number| (2 * number, 1)))
            .unwrap()
    }

    fn offsets(places: &[Place]) -> Vec<u64> {
        places.iter().map(|place| place.offset / ONE).collect()
    }

    #[test]
    fn a_ring_buffers_data_comes_twice() {
        let data = 2 * PAGE;
        let shape = Shape::Ring { data };
        assert_eq!(pages_of(shape), 4);
        let places = whole(scattered(4), shape);
        assert_eq!(offsets(&places), [0, 2, 4, 6, 4, 6]);
        let len: u64 = places.iter().map(|place| place.len).sum();
        assert_eq!(len, shape.len() as u64);
        let perf = Shape::Perf { data };
        assert_eq!(pages_of(perf), 3);
        assert_eq!(offsets(&whole(scattered(3), perf)), [0, 2, 4]);
    }

    #[test]
    fn a_part_begins_and_ends_within_places() {
        let places = scattered(4);
        assert_eq!(offsets(&part(&places, ONE, 2 * ONE)), [2, 4]);
        assert_eq!(offsets(&part(&places, 3 * ONE, 9 * ONE)), [6]);
        assert!(part(&places, 4 * ONE, ONE).is_empty());
        let within = part(&places, ONE / 2, ONE);
        let ends: Vec<_> = within.iter().map(|it| (it.offset, it.len)).collect();
        assert_eq!(ends, [(ONE / 2, ONE / 2), (2 * ONE, ONE / 2)]);
    }

    /// Returns a mapping of so many pages, from a page of the file on.
    fn region(place: &Place, first: u64, count: u64) -> Region {
        let file = rustix::fs::fstat(place.file(false)).unwrap();
        Region {
            start: 0x10000,
            end: 0x10000 + count * ONE,
            permissions: Permissions::default(),
            offset: first * ONE,
            device: file.st_dev,
            inode: file.st_ino,
            path: Default::default(),
        }
    }

    #[test]
    fn only_mappings_of_nothing_else_are_the_tools() {
        let all = scattered(4);
        let mut places = Places(all.clone());
        for (first, count, have) in [(0, 1, true), (2, 1, true), (1, 1, false), (0, 3, false)] {
            assert_eq!(places.have(&region(&all[0], first, count)), have);
        }
        // Two objects side by side are one mapping.
        let mut between = all[0].part(0, ONE);
        between.offset += ONE;
        places.0.push(between);
        assert!(places.have(&region(&all[0], 0, 3)));
        assert!(!places.have(&region(&all[0], 0, 4)));
        let mut other = region(&all[0], 0, 1);
        other.inode += 1;
        assert!(!places.have(&other));
        // A mapping of both is in each of them.
        let both = region(&all[0], 0, 3);
        let [first, third] = [&all[0], &all[1]].map(|place| Places(vec![place.clone()]));
        assert!(first.touch(&both) && !first.have(&both));
        assert!(!first.touch(&region(&all[0], 1, 2)));
        assert!(third.touch(&both));
        // This process has mapped none of it, nor have others.
        let found = processes(|region| places.have(region));
        assert!(found.is_ok_and(|pids| pids.is_empty()));
    }
}
