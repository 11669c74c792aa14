//! The objects that a connection holds.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use beeline_uapi::fields::u32_at;
use beeline_uapi::info::{BtfInfo, LinkInfo, MapInfo, ProgInfo};
use beeline_uapi::{Command, attr};
use beeline_vm_protocol::info::Kind;
use beeline_vm_protocol::layout::MapFacts;
use beeline_vm_protocol::peer::Peer;
use parking_lot::{Mutex, MutexGuard, RwLock};
use rustix::io::Errno;

use crate::elements::Cursor;
use crate::holder::Held;
use crate::limits::{Limit, Portion};
use crate::refusal::Refusal;
use crate::rings::Ring;
use crate::sys::{self, Attr};

/// An object of the kernel's.
#[derive(Debug)]
pub struct Object {
    /// Its descriptor, here and nowhere else.
    pub fd: OwnedFd,
    /// Its kind.
    pub kind: Kind,
    /// The facts of a map.
    pub facts: Option<MapFacts>,
    /// The kernel's number; 0 for an object without one.
    pub id: u32,
    /// For a program or an event: the place it is for, as the policy names it.
    pub place: Option<String>,
    /// For a map that was made here, and for an event with a ring: its share of the memory that maps
    /// may take.
    share: Mutex<Option<Portion>>,
    /// Its part of the objects that there may be.
    part: Option<Portion>,
    /// For a map that a host iterates over.
    cursor: Mutex<Option<Cursor>>,
    /// Its pages, once they have been mapped.
    ring: Mutex<Option<Arc<Ring>>>,
    /// Set if another process holds it as well, once the host knows where its pages are.
    held: Mutex<Option<Held>>,
}

/// Room for the longest of the structures that are asked for here, `struct bpf_prog_info`.
const INFO: usize = 256;
const _: () = assert!(size_of::<ProgInfo>() <= INFO);

impl Object {
    /// Asks the kernel about the object.
    ///
    /// # Errors
    ///
    /// Those of [`info`].
    pub fn new(fd: OwnedFd, kind: Kind, place: Option<String>) -> Result<Self, Errno> {
        let mut id = 0;
        let mut facts = None;
        if matches!(kind, Kind::Map | Kind::Program | Kind::Btf | Kind::Link) {
            let info = info(fd.as_fd())?;
            let id_at = match kind {
                Kind::Map => offset_of!(MapInfo, id),
                Kind::Program => offset_of!(ProgInfo, id),
                Kind::Btf => offset_of!(BtfInfo, id),
                _ => offset_of!(LinkInfo, id),
            };
            id = u32_at(&info, id_at);
            facts = (kind == Kind::Map).then(|| MapFacts::of_info(&info));
        }
        Ok(Self {
            fd,
            kind,
            facts,
            id,
            place,
            share: Mutex::new(None),
            part: None,
            cursor: Mutex::new(None),
            ring: Mutex::new(None),
            held: Mutex::new(None),
        })
    }

    /// Creates an object that the kernel has not been asked about.
    pub(crate) fn pretended(fd: OwnedFd, kind: Kind, facts: Option<MapFacts>) -> Self {
        Self {
            fd,
            kind,
            facts,
            id: 0,
            place: None,
            share: Mutex::new(None),
            part: None,
            cursor: Mutex::new(None),
            ring: Mutex::new(None),
            held: Mutex::new(None),
        }
    }

    /// Returns its share of the memory that maps may take, if it has one.
    pub fn share(&self) -> MutexGuard<'_, Option<Portion>> {
        self.share.lock()
    }

    /// Returns the position of a host that iterates over it.
    pub fn cursor(&self) -> MutexGuard<'_, Option<Cursor>> {
        self.cursor.lock()
    }

    /// Returns its second hold.
    pub fn held(&self) -> MutexGuard<'_, Option<Held>> {
        self.held.lock()
    }

    /// Returns the mapping of the ring's pages, if there is one.
    pub fn ring(&self) -> MutexGuard<'_, Option<Arc<Ring>>> {
        self.ring.lock()
    }
}

/// Returns the beginning of an object's information; the kernel fills no buffers.
///
/// # Errors
///
/// The kernel's.
pub fn info(fd: BorrowedFd<'_>) -> Result<[u8; INFO], Errno> {
    let mut info = [0; INFO];
    let mut attr = Attr::of(&attr::Info {
        bpf_fd: fd.as_raw_fd(),
        info_len: INFO as u32,
        ..attr::Info::default()
    });
    attr.point(offset_of!(attr::Info, info), &mut info);
    // SAFETY: the attribute leads to a buffer of the length that it says, in which all pointers are
    // null.
    unsafe {
        sys::bpf(
            Command::OBJ_GET_INFO_BY_FD,
            &mut attr,
            size_of::<attr::Info>(),
        )
    }?;
    Ok(info)
}

/// Takes ownership of a descriptor that `bpf(2)` has just returned.
///
/// # Safety
///
/// `value` is such a descriptor, and no other code has taken it.
pub unsafe fn returned_fd(value: u64) -> OwnedFd {
    // SAFETY: the caller promises that this is a descriptor that `bpf(2)` has just returned, and
    // that no other code has taken it.
    unsafe { OwnedFd::from_raw_fd(value as i32) }
}

/// The objects by their handles. An object that has been taken out lives as long as it is in use.
#[derive(Debug, Default)]
pub struct Handles {
    table: RwLock<Table>,
    /// The objects of all, and the peer whose these are.
    limit: Option<(Arc<Limit>, Peer)>,
}

#[derive(Debug, Default)]
struct Table {
    objects: HashMap<u32, Arc<Object>, BuildHasherDefault<Spread>>,
    last: u32,
}

/// A hash of handles, which count up: no host chooses them, so a product spreads them as well as a
/// hash.
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
    /// Creates the table of one of a peer's sessions.
    pub fn of(peer: &Peer, objects: &Arc<Limit>) -> Self {
        Self {
            limit: Some((Arc::clone(objects), peer.clone())),
            ..Self::default()
        }
    }

    /// Adds an object, and returns its handle.
    ///
    /// # Errors
    ///
    /// `EMFILE` if there are no handles left, or the peer has too many objects.
    pub fn add(&self, mut object: Object) -> Result<u32, Refusal> {
        if let Some((limit, peer)) = &self.limit {
            let part = limit.take(peer, 1).map_err(|exhausted| {
                let why = format!(
                    "{peer} has {} objects in the guest already, which is the most while others may come; end other \
                     sessions, or raise the limit of the proxy's open files (LimitNOFILE)",
                    exhausted.0
                );
                Refusal::new(libc::EMFILE, why)
            })?;
            object.part = Some(part);
        }
        let mut table = self.table.write();
        let handle = table.last.checked_add(1).ok_or_else(|| {
            Refusal::new(libc::EMFILE, "this connection has used up all its handles")
        })?;
        table.last = handle;
        table.objects.insert(handle, Arc::new(object));
        Ok(handle)
    }

    /// Returns the object behind a handle.
    ///
    /// # Errors
    ///
    /// `EBADF`.
    pub fn get(&self, handle: u32) -> Result<Arc<Object>, Refusal> {
        let table = self.table.read();
        table.objects.get(&handle).cloned().ok_or_else(|| {
            Refusal::new(
                libc::EBADF,
                format!("handle {handle} stands for nothing here"),
            )
        })
    }

    /// Returns the object of that kind behind a handle.
    ///
    /// # Errors
    ///
    /// `EBADF`, or `EINVAL` for another kind.
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
        let mut table = self.table.write();
        table.objects.remove(&handle)
    }

    /// Returns all of them.
    pub fn all(&self) -> Vec<Arc<Object>> {
        let table = self.table.read();
        table.objects.values().cloned().collect()
    }
}
