//! Memory of the guest's that a tool maps: ring buffers, perf rings, and arrays.
//!
//! Here it is a memory file with the kernel's layout, so libraries read it as usual. Records that
//! arrive in a ring in the guest are sent, and put into the file as the kernel would have done; the
//! tool's own eventfd then wakes it. The guest sends no more than there is room for. If a tool is
//! slow, the ring in the guest fills, and the guest's kernel counts what it drops.
//!
//! An array's content follows the guest's, and the tool's writes go there, a moment later. Where a
//! tool would notice, there is no delay. The tool's writes are sent before its next call to the
//! guest. The programs' writes are there when such a call returns, and when a handler of a signal
//! does (a tool sums up on Ctrl-C). Calls for elements of other maps are exempt, as tools make many
//! of them.
//!
//! Where the guest's memory can be seen from here ([`super::sharing`]), the tool gets the guest's
//! own pages over the file. Then the guest sends only the message that there is something to read.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::Builder;
use std::time::Duration;

use beeline_supervisor::Call;
use beeline_supervisor::keys::errno;
use beeline_uapi::Errno;
use beeline_vm_protocol::messages::guest_message::Body as Said;
use beeline_vm_protocol::messages::host_message::Body as Asked;
use beeline_vm_protocol::messages::{Credit, Manner, Readable, Records, Settle, Store, Watch};
use parking_lot::{Mutex, MutexGuard};

use crate::connection::{Connection, EPROTO};
use crate::memory::{Memory, Shape};
use crate::objects::Object;
use crate::polling::poll;
use crate::sharing::Sharing;

/// The time between two looks at what the tool has read or written.
const LOOK: Duration = Duration::from_millis(10);
/// The same time while there is nothing that the tool could do.
const IDLE: Duration = Duration::from_secs(1);
/// The time between two looks at an array in the guest, in milliseconds: for one that is compared
/// in microseconds, and for longer ones.
const CHANGES: u32 = 5;
const CHANGES_OF_LONG: u32 = 20;
const LONG: usize = 256 << 10;

/// All memory that tools have mapped.
#[derive(Default)]
pub(crate) struct Rings {
    started: OnceLock<()>,
    all: Arc<All>,
}

#[derive(Default)]
pub(super) struct All {
    by_handle: Mutex<HashMap<u32, Weak<Memory>>>,
    has_arrays: AtomicBool,
    /// Held while a tool's writes to arrays are found and sent. A thread that had to wait for the
    /// lock knows that they have been sent.
    storing: Mutex<()>,
}

impl All {
    fn by_handle(&self) -> MutexGuard<'_, HashMap<u32, Weak<Memory>>> {
        self.by_handle.lock()
    }

    fn find(&self, handle: u32) -> Option<Arc<Memory>> {
        self.by_handle().get(&handle).and_then(Weak::upgrade)
    }

    pub(super) fn living(&self) -> Vec<Arc<Memory>> {
        let mut all = self.by_handle();
        all.retain(|_, memory| memory.strong_count() > 0);
        all.values().filter_map(Weak::upgrade).collect()
    }

    /// Sends the tool's writes to arrays.
    fn store(&self, connection: &Connection) {
        if !self.has_arrays.load(Ordering::Acquire) {
            return;
        }
        let _storing = self.storing.lock();
        for memory in self.living() {
            for (offset, data) in memory.changed() {
                connection.tell(Asked::Store(Store {
                    handle: memory.handle,
                    offset: offset as u64,
                    data,
                }));
            }
        }
    }
}

impl Rings {
    /// Returns the memory of an object. If there is none yet, it is made, and filled from now on.
    /// Returns EINVAL if it exists in another shape.
    pub(super) fn memory(
        &self,
        connection: &Arc<Connection>,
        sharing: Option<&Sharing>,
        object: &Object,
        shape: Shape,
    ) -> Result<Arc<Memory>, Errno> {
        if let Some(memory) = object.memory.get() {
            return match memory.shape == shape {
                true => Ok(Arc::clone(memory)),
                false => Err(Errno(libc::EINVAL)),
            };
        }
        let mut memory = Memory::new(object.handle, shape)?;
        let places = sharing.and_then(|sharing| sharing.places(connection, object.handle, shape));
        if let Some(places) = places {
            memory.share(places)?;
            memory.sleeper.is_told_of_each = object.tells_of_each();
        }
        let memory = Arc::new(memory);
        // The tool that maps it may never wait for it: [`Self::watch`].
        if memory.shared.is_some() {
            return Ok(Arc::clone(object.memory.get_or_init(|| memory)));
        }
        if let Shape::Array { bytes } = shape {
            memory.begin_in_common(bytes);
            self.all.has_arrays.store(true, Ordering::Release);
        }
        match self.begin(connection, &memory)? {
            Said::Done(_) => Ok(Arc::clone(object.memory.get_or_init(|| memory))),
            _ => Err(EPROTO),
        }
    }

    /// Returns whether no array has been mapped.
    pub(super) fn none_to_settle(&self) -> bool {
        !self.all.has_arrays.load(Ordering::Acquire)
    }

    /// Sends the tool's writes to arrays, so that its next request finds them there.
    pub(super) fn store(&self, connection: &Connection) {
        self.all.store(connection);
    }

    /// Sends them before the tool asks for elements of a map, if that map can be mapped.
    pub(super) fn store_for(&self, map: &Object, connection: &Connection, call: &Call<'_>) {
        let is_mapped = map.facts.is_some_and(|facts| facts.is_mappable_array());
        if is_mapped && !self.none_to_settle() {
            call.let_others_lead();
            self.store(connection);
        }
    }

    /// Waits until arrays hold here what they held in the guest when this was called, and hold
    /// there what the tool has written.
    pub(super) fn settle(&self, connection: &Connection) -> Result<(), Errno> {
        if self.none_to_settle() {
            return Ok(());
        }
        self.store(connection);
        connection.ask(Asked::Settle(Settle {})).map(|_| ())
    }

    /// Wakes the tool for records that arrive in a ring, even if it lies in the guest's memory.
    pub(super) fn watch(
        &self,
        connection: &Arc<Connection>,
        memory: &Arc<Memory>,
    ) -> Result<(), Errno> {
        let mut is_watched = memory.is_watched.lock();
        if memory.shared.is_some() && !*is_watched {
            self.begin(connection, memory)?;
            *is_watched = true;
        }
        Ok(())
    }

    /// Asks the guest to report what arrives in it from now on; returns the guest's answer.
    fn begin(&self, connection: &Arc<Connection>, memory: &Arc<Memory>) -> Result<Said, Errno> {
        let Memory { shape, handle, .. } = **memory;
        let mut by_handle = self.all.by_handle();
        by_handle.insert(handle, Arc::downgrade(memory));
        drop(by_handle);
        self.start(connection)?;
        let manner = match shape {
            Shape::Array { .. } => Manner::Changes,
            _ if memory.shared.is_some() => Manner::Readable,
            _ => Manner::Records,
        };
        let request = Watch {
            handle,
            manner: manner.into(),
            pages: shape.pages(),
            credit: shape.data() as u64,
            interval: match shape.len() {
                LONG.. => CHANGES_OF_LONG,
                _ => CHANGES,
            },
        };
        connection.ask(Asked::Watch(request))
    }

    /// Starts the thread that fills the memory, once.
    fn start(&self, connection: &Arc<Connection>) -> Result<(), Errno> {
        if self.started.set(()).is_err() {
            return Ok(());
        }
        let (came, something_came) = sync_channel(1);
        let (woken, something_to_read) = sync_channel(1);
        let all = Arc::clone(&self.all);
        connection.heard_by(Box::new(move |connection, said| {
            let to_wake = match said {
                Said::Readable(_) => &woken,
                _ => &came,
            };
            take(connection, &all, said);
            // If there is no room, the thread is awake already.
            let _ = to_wake.try_send(());
        }));
        let (all, connection) = (Arc::clone(&self.all), Arc::clone(connection));
        let polled = Arc::clone(&self.all);
        spawn("beeline-rings", move || {
            look_after(&connection, &all, &something_came);
        })?;
        spawn("beeline-poll", move || poll(&polled, &something_to_read))
    }
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Errno> {
    let thread = Builder::new().name(name.into()).spawn(run);
    thread.map(|_| ()).map_err(errno)
}

/// Looks after the tool's use of its memory, until the connection ends.
fn look_after(connection: &Connection, all: &All, something_came: &Receiver<()>) {
    loop {
        let mut pause = IDLE;
        all.store(connection);
        for memory in all.living() {
            if memory.shared.is_some() {
                continue;
            }
            let bytes = memory.newly_read();
            if bytes > 0 {
                connection.tell(Asked::Credit(Credit {
                    handle: memory.handle,
                    bytes,
                }));
            }
            if memory.is_to_be_looked_after() {
                pause = LOOK;
            }
        }
        match something_came.recv_timeout(pause) {
            Ok(()) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Puts a message's content where it belongs.
fn take(connection: &Connection, all: &All, said: Said) {
    match said {
        Said::Records(Records { handle, data }) => {
            let appended = all.find(handle).map(|memory| memory.append(&data));
            if appended.is_some_and(|appended| appended.is_err()) {
                connection.say("the guest sends more records than it was allowed; they are lost");
            }
        }
        Said::Readable(Readable { handle }) => {
            if let Some(memory) = all.find(handle) {
                memory.hear_of_news();
            }
        }
        Said::Changed(changed) => {
            if let Some(memory) = all.find(changed.handle) {
                memory.change(changed.offset as usize, &changed.data);
            }
        }
        _ => {}
    }
}
