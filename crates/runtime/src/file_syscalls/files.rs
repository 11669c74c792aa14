//! The files of a session with known system calls, and those that threads are still scanning. Each
//! caller says how long it can wait.

use std::collections::HashMap;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, available_parallelism};
use std::time::Instant;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::FileCalls;
use crate::link::{FileId, file_id};
use crate::vdso;

/// The most threads that scan files: the machine has other work.
const MOST_THREADS: usize = 4;

/// The files of a session, by what identifies their contents.
#[derive(Debug, Default)]
pub struct CallFiles {
    shelf: Arc<Shelf>,
    vdso: OnceLock<Option<Arc<FileCalls>>>,
}

/// The state of a file's calls.
#[derive(Debug, Clone)]
pub enum Planned {
    /// All are known.
    Ready(Arc<FileCalls>),
    /// The file is still being scanned.
    Late,
    /// Nothing is known: the file cannot be read, or another file is at that path now.
    Unknown,
}

/// The state that the session shares with the threads that scan files.
#[derive(Debug, Default)]
struct Shelf {
    known: Mutex<HashMap<FileId, Arc<Known>>>,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    /// By rising length: the longest is begun first, and the others are done meanwhile.
    waiting: Vec<(u64, PathBuf, FileId, Arc<Known>)>,
    threads: usize,
}

/// A file's calls, when it has been scanned.
#[derive(Debug)]
struct Known {
    planned: Mutex<Planned>,
    is_done: Condvar,
}

impl CallFiles {
    /// Has files scanned, each given with its inode, several at a time, and waits for that until
    /// the given time.
    pub fn plan(&self, files: &[(PathBuf, u64)], until: Instant) {
        let files = files.iter().filter_map(|(path, inode)| {
            let id = file_id(path).ok().filter(|id| id.1 == *inode)?;
            Some((path, id))
        });
        let files: Vec<_> = files.collect();
        let known: Vec<_> = files
            .iter()
            .map(|(path, id)| self.shelf.known_or_new(path, *id))
            .collect();
        self.shelf.have_planned();
        for known in known {
            known.wait(until);
        }
    }

    /// Returns the calls of a file, which must be the one with this inode. Waits for them until the
    /// given time.
    pub fn of(&self, path: &Path, inode: u64, until: Instant) -> Planned {
        let Some(id) = file_id(path).ok().filter(|id| id.1 == inode) else {
            return Planned::Unknown;
        };
        let known = self.shelf.known_or_new(path, id);
        self.shelf.have_planned();
        known.wait(until)
    }

    /// Returns the calls of a file that has been scanned and may be gone since, by its device and
    /// inode; `None` if there were several.
    pub fn known(&self, device: u64, inode: u64) -> Option<Arc<FileCalls>> {
        let known = self.shelf.known();
        let is_it = |file: &FileId| (file.0, file.1) == (device, inode);
        let mut files = known.iter().filter(|(file, _)| is_it(file));
        let found = files.next().filter(|_| files.next().is_none());
        found.and_then(|(_, known)| known.planned().ready())
    }

    /// Returns the calls of the vDSO, from Beeline's own copy of it, which is not hooked; `None` if
    /// there is none.
    pub fn of_vdso(&self) -> Option<Arc<FileCalls>> {
        let read = || FileCalls::of_vdso(&vdso::own()?).map(Arc::new);
        self.vdso.get_or_init(read).clone()
    }
}

impl Planned {
    /// Returns the calls, if they are known.
    pub fn ready(&self) -> Option<Arc<FileCalls>> {
        match self {
            Self::Ready(file) => Some(file.clone()),
            Self::Late | Self::Unknown => None,
        }
    }
}

impl Shelf {
    fn known(&self) -> MutexGuard<'_, HashMap<FileId, Arc<Known>>> {
        self.known.lock()
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }

    /// Returns what is known of the file at a path. If it has not been asked for yet, it is queued
    /// to be scanned.
    fn known_or_new(&self, path: &Path, id: FileId) -> Arc<Known> {
        let mut all = self.known();
        if let Some(known) = all.get(&id) {
            return known.clone();
        }
        let known = Arc::new(Known {
            planned: Mutex::new(Planned::Late),
            is_done: Condvar::new(),
        });
        all.insert(id, known.clone());
        drop(all);
        let len = std::fs::metadata(path).map_or(0, |data| data.len());
        let mut queue = self.queue();
        let place = queue.waiting.partition_point(|(other, ..)| *other < len);
        let job = (len, path.into(), id, known.clone());
        queue.waiting.insert(place, job);
        known
    }

    /// Keeps as many threads at work as there are files and as are useful. Without any thread the
    /// caller does all the work.
    fn have_planned(self: &Arc<Self>) {
        let mut queue = self.queue();
        let waiting = queue.waiting.len();
        if waiting == 0 {
            return;
        }
        // This call reads several files, so it is made only if something waits.
        let most = available_parallelism().map_or(1, NonZero::get);
        while queue.threads < waiting.min(most).min(MOST_THREADS) {
            let shelf = self.clone();
            let thread = Builder::new().name("beeline-plans".into());
            if thread.spawn(move || shelf.work()).is_err() {
                break;
            }
            queue.threads += 1;
        }
        if queue.threads == 0 && waiting > 0 {
            queue.threads += 1;
            drop(queue);
            self.work();
        }
    }

    /// Scans what waits, until there is nothing.
    fn work(&self) {
        loop {
            let mut queue = self.queue();
            let Some((_, path, id, known)) = queue.waiting.pop() else {
                queue.threads -= 1;
                return;
            };
            drop(queue);
            // A panic over an unexpected file must not make callers wait for it again and again.
            let read = std::panic::catch_unwind(|| {
                let file = FileCalls::read(&path).ok();
                // It may have been replaced meanwhile.
                file.filter(|_| file_id(&path).is_ok_and(|now| now == id))
            });
            let file = read.ok().flatten();
            if file.is_none() {
                // The next caller tries again.
                self.known().remove(&id);
            }
            let planned = file.map_or(Planned::Unknown, |file| Planned::Ready(Arc::new(file)));
            *known.planned() = planned;
            known.is_done.notify_all();
        }
    }
}

impl Known {
    fn planned(&self) -> MutexGuard<'_, Planned> {
        self.planned.lock()
    }

    /// Returns what is known when the scan is done, or at the given time.
    fn wait(&self, until: Instant) -> Planned {
        let is_late = |planned: &mut Planned| matches!(planned, Planned::Late);
        let mut planned = self.planned();
        self.is_done.wait_while_until(&mut planned, is_late, until);
        planned.clone()
    }
}
