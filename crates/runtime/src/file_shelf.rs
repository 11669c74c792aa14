//! Facts that are read from files once per session, by threads of its own. Each caller says how long
//! it can wait.

use std::collections::HashMap;
use std::fmt::Debug;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{Builder, available_parallelism};
use std::time::Instant;

use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::error::Error;
use crate::link::{FileId, file_id};

/// The most threads that read files for one shelf: the machine has other work.
const MOST_THREADS: usize = 4;

/// A thing that is found out about a file.
pub trait FromFile: Sized + Debug + Send + Sync + 'static {
    /// The name of the threads that do it.
    const THREAD: &'static str;

    /// Finds it out.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is of another kind.
    fn read(path: &Path) -> Result<Self, Error>;
}

/// The known facts of files, and the files that threads are still reading.
#[derive(Debug)]
pub struct FileShelf<T>(Arc<Shelf<T>>);

/// The state of what is to be known of a file.
#[derive(Debug)]
pub enum FileState<T> {
    /// All is known.
    Ready(Arc<T>),
    /// The file is still being read.
    Late,
    /// Nothing is known: the file cannot be read, or another file is at that path now.
    Unknown,
}

/// The state that the session shares with the threads that read files.
#[derive(Debug)]
struct Shelf<T> {
    known: Mutex<HashMap<FileId, Arc<Known<T>>>>,
    queue: Mutex<Queue<T>>,
}

#[derive(Debug)]
struct Queue<T> {
    /// By rising length: the longest is begun first, and the others are done meanwhile.
    waiting: Vec<(u64, PathBuf, FileId, Arc<Known<T>>)>,
    threads: usize,
}

/// The facts of a file, once it has been read.
#[derive(Debug)]
struct Known<T> {
    state: Mutex<FileState<T>>,
    is_done: Condvar,
}

impl<T> Default for FileShelf<T> {
    fn default() -> Self {
        Self(Arc::new(Shelf {
            known: Mutex::default(),
            queue: Mutex::new(Queue {
                waiting: Vec::new(),
                threads: 0,
            }),
        }))
    }
}

impl<T> Clone for FileState<T> {
    fn clone(&self) -> Self {
        match self {
            Self::Ready(known) => Self::Ready(known.clone()),
            Self::Late => Self::Late,
            Self::Unknown => Self::Unknown,
        }
    }
}

impl<T> FileState<T> {
    /// True if the file is still being read.
    pub fn is_late(&self) -> bool {
        matches!(self, Self::Late)
    }

    /// Returns what is known, if it is.
    pub fn ready(&self) -> Option<Arc<T>> {
        match self {
            Self::Ready(known) => Some(known.clone()),
            Self::Late | Self::Unknown => None,
        }
    }
}

impl<T: FromFile> FileShelf<T> {
    /// Has files read, each given with its inode, several at a time, and waits for that until the
    /// given time.
    pub fn read(&self, files: &[(PathBuf, u64)], until: Instant) {
        let files = files.iter().filter_map(|(path, inode)| {
            let id = file_id(path).ok().filter(|id| id.1 == *inode)?;
            Some((path, id))
        });
        let files: Vec<_> = files.collect();
        let known: Vec<_> = files
            .iter()
            .map(|(path, id)| self.0.known_or_new(path, *id))
            .collect();
        self.0.have_read();
        for known in known {
            known.wait(until);
        }
    }

    /// Returns what is known of a file, which must be the one with this inode. Waits for it until
    /// the given time.
    pub fn of(&self, path: &Path, inode: u64, until: Instant) -> FileState<T> {
        let Some(id) = file_id(path).ok().filter(|id| id.1 == inode) else {
            return FileState::Unknown;
        };
        let known = self.0.known_or_new(path, id);
        self.0.have_read();
        known.wait(until)
    }

    /// Returns what is known of a file that has been read and may be gone since, by its device and
    /// inode; `None` if there were several.
    pub fn known(&self, device: u64, inode: u64) -> Option<Arc<T>> {
        let known = self.0.known();
        let is_it = |file: &FileId| (file.0, file.1) == (device, inode);
        let mut files = known.iter().filter(|(file, _)| is_it(file));
        let found = files.next().filter(|_| files.next().is_none());
        found.and_then(|(_, known)| known.state().ready())
    }
}

impl<T: FromFile> Shelf<T> {
    fn known(&self) -> MutexGuard<'_, HashMap<FileId, Arc<Known<T>>>> {
        self.known.lock()
    }

    fn queue(&self) -> MutexGuard<'_, Queue<T>> {
        self.queue.lock()
    }

    /// Returns what is known of the file at a path. If it has not been asked for yet, it is queued
    /// to be read.
    fn known_or_new(&self, path: &Path, id: FileId) -> Arc<Known<T>> {
        let mut all = self.known();
        if let Some(known) = all.get(&id) {
            return known.clone();
        }
        let known = Arc::new(Known {
            state: Mutex::new(FileState::Late),
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
    fn have_read(self: &Arc<Self>) {
        let mut queue = self.queue();
        let waiting = queue.waiting.len();
        if waiting == 0 {
            return;
        }
        // This call reads several files, so it is made only if something waits.
        let most = available_parallelism().map_or(1, NonZero::get);
        while queue.threads < waiting.min(most).min(MOST_THREADS) {
            let shelf = self.clone();
            let thread = Builder::new().name(T::THREAD.into());
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

    /// Reads what waits, until there is nothing.
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
                let file = T::read(&path).ok();
                // It may have been replaced meanwhile.
                file.filter(|_| file_id(&path).is_ok_and(|now| now == id))
            });
            let file = read.ok().flatten();
            if file.is_none() {
                // The next caller tries again.
                self.known().remove(&id);
            }
            let state = file.map_or(FileState::Unknown, |file| FileState::Ready(Arc::new(file)));
            *known.state() = state;
            known.is_done.notify_all();
        }
    }
}

impl<T> Known<T> {
    fn state(&self) -> MutexGuard<'_, FileState<T>> {
        self.state.lock()
    }

    /// Returns what is known when it has been read, or at the given time.
    fn wait(&self, until: Instant) -> FileState<T> {
        let is_late = |state: &mut FileState<T>| matches!(state, FileState::Late);
        let mut state = self.state();
        self.is_done.wait_while_until(&mut state, is_late, until);
        state.clone()
    }
}
