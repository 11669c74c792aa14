//! Watching rings and arrays: their new records and changes are sent to the host. One thread serves
//! each connection that watches anything.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use beeline_vm_protocol::conversation::Sender;
use beeline_vm_protocol::messages::guest_message::Body;
use beeline_vm_protocol::messages::{Changed, GuestMessage, Manner, Readable, Records, Watch};
use parking_lot::{Mutex, MutexGuard};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

use crate::handles::{Handles, Object};
use crate::refusal::Refusal;
use crate::rings::{self, Ring, Stop};
use crate::shared::Shared;

/// The number of bytes of records that are sent together. Fewer are sent if there is nothing more
/// to read.
const BATCH: usize = 16 << 10;
/// The number of messages of one ring before others have their turn.
const TURN: usize = 32;
/// The longest record, and the longest array, that is sent: a message has room for it. A longer
/// record stays where it is.
const LONGEST: usize = 24 << 20;
/// The interval at which rings are looked at without a wake-up: programs may leave the reader
/// asleep (`BPF_RB_NO_WAKEUP`).
const SWEEP: Duration = Duration::from_millis(100);
/// The most equal bytes between two changes that are sent with them, rather than splitting the
/// message.
const GAP: usize = 64;
/// The most bytes of one message's changes.
const CHANGE: usize = 1 << 20;
const SHORTEST_INTERVAL: u32 = 1;
/// The key of the thread's own eventfd in the epoll set: no handle.
const WAKE: u64 = 0;

/// One watched object.
#[derive(Debug)]
pub struct Watched {
    handle: u32,
    /// Kept open.
    object: Arc<Object>,
    what: What,
}

#[derive(Debug)]
enum What {
    Records {
        ring: Arc<Ring>,
        credit: AtomicU64,
        /// True if there is more than has been sent.
        hungry: AtomicBool,
    },
    Readable {
        ring: Arc<Ring>,
        /// The position up to which it was written when the host was last told.
        told: AtomicU64,
    },
    Changes {
        memory: Shared,
        /// The content as the host has it, and when to look at it next.
        known: Mutex<(Vec<u8>, Instant)>,
        interval: Duration,
    },
}

impl Watched {
    /// Checks a request, and maps its object.
    ///
    /// # Errors
    ///
    /// `EBADF` for an unknown handle, `EINVAL` for an unknown manner, `E2BIG` for an array that is
    /// too long to be sent, and those of [`Ring::of`] and [`rings::array`].
    pub fn new(request: &Watch, handles: &Handles) -> Result<Self, Refusal> {
        let object = handles.get(request.handle)?;
        let manner = Manner::try_from(request.manner);
        let manner =
            manner.map_err(|_| Refusal::new(libc::EINVAL, "there is no such way to watch"))?;
        let what = match manner {
            Manner::Records => What::Records {
                ring: Ring::of(&object, request.pages)?,
                credit: AtomicU64::new(request.credit),
                hungry: AtomicBool::new(true),
            },
            Manner::Readable => What::Readable {
                ring: Ring::positions_of(&object, request.pages)?,
                told: AtomicU64::new(0),
            },
            Manner::Changes => {
                let memory = rings::array(&object, false)?;
                if memory.len() > LONGEST {
                    let why = format!("an array of {} bytes is too long to be sent", memory.len());
                    return Err(Refusal::new(libc::E2BIG, why));
                }
                let mut known = Vec::new();
                memory.copy(0, memory.len(), &mut known);
                What::Changes {
                    memory,
                    known: Mutex::new((known, Instant::now())),
                    interval: Duration::from_millis(request.interval.max(SHORTEST_INTERVAL).into()),
                }
            }
        };
        Ok(Self {
            handle: request.handle,
            object,
            what,
        })
    }

    /// Returns the whole content of an array; `None` for rings.
    pub fn content(&self) -> Option<Changed> {
        let What::Changes { known, .. } = &self.what else {
            return None;
        };
        let data = known.lock().0.clone();
        Some(Changed {
            handle: self.handle,
            offset: 0,
            data,
        })
    }

    /// Sends what there is. Returns true if there may be more already.
    fn tell(&self, sender: &Sender) -> io::Result<bool> {
        match &self.what {
            What::Records {
                ring,
                credit,
                hungry,
            } => self.tell_records(ring, credit, hungry, sender),
            What::Readable { ring, told } => {
                let written = ring.written();
                if ring.read() != written && told.swap(written, Ordering::Relaxed) != written {
                    self.say(
                        sender,
                        Body::Readable(Readable {
                            handle: self.handle,
                        }),
                    )?;
                }
                Ok(false)
            }
            What::Changes { .. } => {
                if self.due().is_some_and(|due| Instant::now() >= due) {
                    self.tell_changes(sender)?;
                }
                Ok(false)
            }
        }
    }

    /// Sends what has changed in an array. When it is done, the host has been sent everything that
    /// the array held when it began, including changes that another thread has found.
    fn tell_changes(&self, sender: &Sender) -> io::Result<()> {
        let What::Changes {
            memory,
            known,
            interval,
        } = &self.what
        else {
            return Ok(());
        };
        let mut known = known.lock();
        let (bytes, next) = &mut *known;
        *next = Instant::now() + *interval;
        for (offset, data) in changes(memory, bytes) {
            let changed = Changed {
                handle: self.handle,
                offset,
                data,
            };
            self.say(sender, Body::Changed(changed))?;
        }
        Ok(())
    }

    fn tell_records(
        &self,
        ring: &Ring,
        credit: &AtomicU64,
        hungry: &AtomicBool,
        sender: &Sender,
    ) -> io::Result<bool> {
        hungry.store(false, Ordering::Relaxed);
        for _ in 0..TURN {
            let left = usize::try_from(credit.load(Ordering::Acquire)).unwrap_or(usize::MAX);
            let mut data = Vec::new();
            let stop = ring.take(left.min(BATCH), left.min(LONGEST), &mut data);
            if data.is_empty() {
                return Ok(false);
            }
            credit.fetch_sub(data.len() as u64, Ordering::Relaxed);
            let records = Records {
                handle: self.handle,
                data,
            };
            self.say(sender, Body::Records(records))?;
            if stop == Stop::Empty {
                return Ok(false);
            }
        }
        hungry.store(true, Ordering::Relaxed);
        Ok(true)
    }

    fn say(&self, sender: &Sender, body: Body) -> io::Result<()> {
        sender.send(&GuestMessage {
            id: 0,
            body: Some(body),
        })
    }

    /// Returns when to look at it in any case.
    fn due(&self) -> Option<Instant> {
        match &self.what {
            What::Changes { known, .. } => Some(known.lock().1),
            _ => Some(Instant::now() + SWEEP),
        }
    }
}

/// Returns the differences from `known`, which is then updated to the memory's content.
fn changes(memory: &Shared, known: &mut [u8]) -> Vec<(u64, Vec<u8>)> {
    let mut now = Vec::new();
    memory.copy(0, known.len(), &mut now);
    let mut found: Vec<(u64, Vec<u8>)> = Vec::new();
    if now == known {
        return found;
    }
    // Word by word: a counter is sent as it was at one moment.
    for (number, (new, old)) in now.chunks(8).zip(known.chunks(8)).enumerate() {
        if new == old {
            continue;
        }
        let at = number * 8;
        match found.last_mut() {
            Some((start, data))
                if *start as usize + data.len() + GAP >= at && data.len() < CHANGE =>
            {
                let end = *start as usize + data.len();
                data.extend(&now[end..at + 8]);
            }
            _ => found.push((at as u64, new.to_vec())),
        }
    }
    known.copy_from_slice(&now);
    found
}

/// Everything that a connection watches.
#[derive(Debug)]
pub struct Watches {
    sender: Sender,
    shared: Arc<Table>,
    thread: OnceLock<()>,
}

#[derive(Debug)]
struct Table {
    epoll: OwnedFd,
    wake: OwnedFd,
    watched: Mutex<HashMap<u32, Arc<Watched>>>,
    over: AtomicBool,
}

impl Table {
    fn watched(&self) -> MutexGuard<'_, HashMap<u32, Arc<Watched>>> {
        self.watched.lock()
    }

    fn wake(&self) {
        // It can only be full, and then it is readable as well.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

impl Watches {
    /// Creates an empty set.
    ///
    /// # Errors
    ///
    /// The system's, if there are no descriptors left.
    pub fn new(sender: Sender) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wake, EventData::new_u64(WAKE), EventFlags::IN)?;
        let table = Table {
            epoll,
            wake,
            watched: Mutex::default(),
            over: AtomicBool::new(false),
        };
        Ok(Self {
            sender,
            shared: Arc::new(table),
            thread: OnceLock::new(),
        })
    }

    /// Fails if it is watched already.
    ///
    /// # Errors
    ///
    /// `EBUSY`.
    pub fn check(&self, watched: Watched) -> Result<Watched, Refusal> {
        if self.shared.watched().contains_key(&watched.handle) {
            return Err(Refusal::new(libc::EBUSY, "it is watched already"));
        }
        Ok(watched)
    }

    /// Watches the object from now on.
    ///
    /// # Errors
    ///
    /// The system's, if the object cannot be waited for or the thread cannot be started.
    pub fn add(&self, watched: Watched) -> io::Result<()> {
        let handle = watched.handle;
        let table = &self.shared;
        let mut all = table.watched();
        if !matches!(watched.what, What::Changes { .. }) {
            let edges = EventFlags::IN | EventFlags::ET;
            let fd = watched.object.fd.as_fd();
            epoll::add(&table.epoll, fd, EventData::new_u64(handle.into()), edges)?;
        }
        all.insert(handle, Arc::new(watched));
        drop(all);
        if self.thread.set(()).is_ok() {
            let (sender, table) = (self.sender.clone(), table.clone());
            let thread = std::thread::Builder::new().name("beeline-watch".into());
            thread.spawn(move || {
                if serve(&table, &sender).is_err() {
                    sender.end();
                }
            })?;
        }
        table.wake();
        Ok(())
    }

    /// Stops watching an object.
    pub fn remove(&self, handle: u32) {
        let watched = self.shared.watched().remove(&handle);
        if let Some(watched) = watched {
            // It is not in the set if it is an array.
            let _ = epoll::delete(&self.shared.epoll, &watched.object.fd);
        }
    }

    /// Sends the changes in arrays since the last look.
    ///
    /// # Errors
    ///
    /// Those of [`Sender::send`].
    pub fn settle(&self) -> io::Result<()> {
        let all: Vec<Arc<Watched>> = self.shared.watched().values().cloned().collect();
        all.iter()
            .try_for_each(|watched| watched.tell_changes(&self.sender))
    }

    /// Allows this many more bytes of records.
    pub fn credit(&self, handle: u32, bytes: u64) {
        let watched = self.shared.watched().get(&handle).cloned();
        if let Some(What::Records { credit, hungry, .. }) = watched.as_deref().map(|it| &it.what) {
            let add = |before: u64| Some(before.saturating_add(bytes));
            let _ = credit.fetch_update(Ordering::Release, Ordering::Relaxed, add);
            hungry.store(true, Ordering::Release);
            self.shared.wake();
        }
    }

    /// Records that the host has stored data itself, which is no news to it.
    pub fn stored(&self, handle: u32, offset: usize, data: &[u8]) {
        let watched = self.shared.watched().get(&handle).cloned();
        if let Some(What::Changes { known, .. }) = watched.as_deref().map(|it| &it.what) {
            let mut known = known.lock();
            if let Some(place) = known.0.get_mut(offset..offset + data.len()) {
                place.copy_from_slice(data);
            }
        }
    }
}

impl Drop for Watches {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        self.shared.watched().clear();
        self.shared.wake();
    }
}

fn serve(table: &Table, sender: &Sender) -> io::Result<()> {
    let mut again = false;
    let mut swept = Instant::now();
    while !table.over.load(Ordering::Acquire) {
        let ready = wait(
            table,
            if again {
                Some(Instant::now())
            } else {
                next(table)
            },
        )?;
        let sweep = swept.elapsed() >= SWEEP;
        if sweep {
            swept = Instant::now();
        }
        let all: Vec<Arc<Watched>> = table.watched().values().cloned().collect();
        again = false;
        for watched in all {
            let wants = match &watched.what {
                What::Changes { .. } => true,
                What::Records { hungry, .. } => hungry.load(Ordering::Acquire),
                What::Readable { .. } => false,
            };
            if wants || sweep || ready.contains(&watched.handle) {
                again |= watched.tell(sender)?;
            }
        }
    }
    Ok(())
}

fn next(table: &Table) -> Option<Instant> {
    table.watched().values().filter_map(|it| it.due()).min()
}

/// Waits until something can be read, but not longer than `until`.
fn wait(table: &Table, until: Option<Instant>) -> io::Result<Vec<u32>> {
    let left = until.map(|until| until.saturating_duration_since(Instant::now()));
    let left = left.map(|left| Timespec {
        tv_sec: left.as_secs() as i64,
        tv_nsec: left.subsec_nanos().into(),
    });
    let mut events = Vec::with_capacity(64);
    match epoll::wait(
        &table.epoll,
        rustix::buffer::spare_capacity(&mut events),
        left.as_ref(),
    ) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let mut ready = Vec::new();
    for event in events {
        match event.data.u64() {
            WAKE => {
                // The next writer wakes it again.
                let _ = rustix::io::read(&table.wake, &mut [0; 8]);
            }
            handle => ready.push(handle as u32),
        }
    }
    Ok(ready)
}
