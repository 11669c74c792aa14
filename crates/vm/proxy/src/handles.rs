//! The objects that a connection holds.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use beeline_uapi::Command;
use beeline_vm_protocol::info::Kind;
use beeline_vm_protocol::layout::{MapFacts, number_at};
use rustix::io::Errno;

use crate::elements::Cursor;
use crate::holder::Held;
use crate::policy::Share;
use crate::refusal::Refusal;
use crate::rings::Ring;
use crate::sys::{self, Attr};

/// An object of the kernel's.
#[derive(Debug)]
pub struct Object {
    /// Its descriptor, here and nowhere else.
    pub fd: OwnedFd,
    /// What it is.
    pub kind: Kind,
    /// Of a map.
    pub facts: Option<MapFacts>,
    /// The kernel's number; 0 for what has none.
    pub id: u32,
    /// Of a program, or of an event: the place it is for, as the policy names it.
    pub place: Option<String>,
    /// Of a map that was made here: what it takes of all that maps may take.
    pub share: Option<Share>,
    /// Of a map that a host goes through.
    cursor: Mutex<Option<Cursor>>,
    /// Its pages, once they have been mapped.
    ring: Mutex<Option<Arc<Ring>>>,
    /// By another process as well, once the host knows where its pages are.
    held: Mutex<Option<Held>>,
}

/// The longest of the structures that are asked for here: `struct bpf_prog_info` has its id at 4, the others at 4 or 8.
const INFO: usize = 256;

impl Object {
    /// Asks the kernel what the object is.
    pub fn new(fd: OwnedFd, kind: Kind, place: Option<String>) -> Result<Self, Errno> {
        let mut id = 0;
        let mut facts = None;
        if matches!(kind, Kind::Map | Kind::Program | Kind::Btf | Kind::Link) {
            let info = info(fd.as_fd())?;
            // `struct bpf_btf_info` begins with a pointer and a size, the others with their type.
            id = number_at(&info, if kind == Kind::Btf { 12 } else { 4 });
            facts = (kind == Kind::Map).then(|| MapFacts::of_info(&info));
        }
        Ok(Self {
            fd,
            kind,
            facts,
            id,
            place,
            share: None,
            cursor: Mutex::new(None),
            ring: Mutex::new(None),
            held: Mutex::new(None),
        })
    }

    /// One that the kernel has not been asked about.
    pub(crate) fn pretended(fd: OwnedFd, kind: Kind, facts: Option<MapFacts>) -> Self {
        Self {
            fd,
            kind,
            facts,
            id: 0,
            place: None,
            share: None,
            cursor: Mutex::new(None),
            ring: Mutex::new(None),
            held: Mutex::new(None),
        }
    }

    /// Where a host is that goes through it.
    pub fn cursor(&self) -> MutexGuard<'_, Option<Cursor>> {
        self.cursor.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its second hold.
    pub fn held(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the ring's pages are mapped as, if they have been.
    pub fn ring(&self) -> MutexGuard<'_, Option<Arc<Ring>>> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The beginning of an object's information; the kernel fills no buffers.
pub fn info(fd: BorrowedFd<'_>) -> Result<[u8; INFO], Errno> {
    let mut info = [0; INFO];
    let mut attr = Attr::new(&[]).with_fd(0, fd).with(4, INFO as u32);
    attr.point(8, &mut info);
    // SAFETY: it leads to a buffer of the length that it says, in which all pointers are null.
    unsafe { sys::bpf(Command::OBJ_GET_INFO_BY_FD, &mut attr, 16) }?;
    Ok(info)
}

/// A descriptor that `bpf(2)` has just returned.
///
/// # Safety
/// It is, and nobody else has taken it.
pub unsafe fn returned_fd(value: u64) -> OwnedFd {
    // SAFETY: the caller's promise.
    unsafe { OwnedFd::from_raw_fd(value as i32) }
}

/// The objects by their handles. What has been taken out lives as long as somebody works with it.
#[derive(Debug, Default)]
pub struct Handles(RwLock<Table>);

#[derive(Debug, Default)]
struct Table {
    objects: HashMap<u32, Arc<Object>, BuildHasherDefault<Spread>>,
    last: u32,
}

/// Of handles, which count up: no host chooses them, so a product spreads them as well as a hash.
#[derive(Debug, Default)]
struct Spread(u64);

impl Hasher for Spread {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u32(u32::from(*byte));
        }
    }

    fn write_u32(&mut self, number: u32) {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(GOLDEN);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

impl Handles {
    /// The new object's handle.
    pub fn add(&self, object: Object) -> Result<u32, Refusal> {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let handle = table.last.checked_add(1).ok_or_else(|| {
            Refusal::new(libc::EMFILE, "this connection has used up all its handles")
        })?;
        table.last = handle;
        table.objects.insert(handle, Arc::new(object));
        Ok(handle)
    }

    /// The object behind a handle. Error: `EBADF`.
    pub fn get(&self, handle: u32) -> Result<Arc<Object>, Refusal> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        table.objects.get(&handle).cloned().ok_or_else(|| {
            Refusal::new(
                libc::EBADF,
                format!("handle {handle} stands for nothing here"),
            )
        })
    }

    /// The object behind a handle of that kind. Error: `EBADF`, or `EINVAL` for another kind.
    pub fn of_kind(&self, handle: u32, kind: Kind) -> Result<Arc<Object>, Refusal> {
        let object = self.get(handle)?;
        if object.kind != kind {
            let why = format!("handle {handle} is a {:?}, not a {kind:?}", object.kind);
            return Err(Refusal::new(libc::EINVAL, why));
        }
        Ok(object)
    }

    /// Gives an object back.
    pub fn remove(&self, handle: u32) -> Option<Arc<Object>> {
        let mut table = self.0.write().unwrap_or_else(PoisonError::into_inner);
        table.objects.remove(&handle)
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<Object>> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        table.objects.values().cloned().collect()
    }
}
