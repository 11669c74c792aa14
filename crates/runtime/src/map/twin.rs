//! A map's twin: the map in the host's kernel that programs there use in its place.
//!
//! A map gets its twin when the first program that uses it is attached in the kernel. If no process
//! has the map, all of it moves there, and the tool's operations are `bpf(2)` on the twin. If
//! processes have it as well, each side works on its own map, and the tool's view is put together
//! in the way that [`Sharing`] allows; a map that allows none stays on the side that had it first.
//!
//! A hash whose elements programs change by helpers only can be on both sides and in the kernel alone:
//! programs in processes have Beeline make each operation ([`host_kernel::errands`]).
//!
//! [`host_kernel::errands`]: crate::host_kernel::errands
//!
//! An array that the tool may map has its twin from the beginning, if the session may use the kernel
//! at all: the kernel's memory is the map's, for everybody ([`MapObject::on_both_sides`]).

mod adoption;
mod creation;
mod kernels;
mod operations;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use beeline_agent::abi::errands::{KEY_WORDS, VALUE_WORDS};
use beeline_kernel as kernel;
use beeline_maps::Kind;
use beeline_uapi::{Errno, flags};
use beeline_verifier::sharding::{Sharing, Use};
use parking_lot::Mutex;

use super::tool::halves;
use super::{MapObject, bytes_of, out_of_memory};
use crate::backend::{Id, MapSpec};
use crate::budget::{Budget, Charge};
use crate::domain::{AllSlots, Domain, DomainId};
use crate::host_kernel::rings::KernelRing;
use crate::memory::Memory;
pub(super) use creation::Model;
use creation::{TOOLS, kernel_spec};

/// A map in the kernel, and how the tool sees it.
#[derive(Debug)]
pub(super) struct Twin {
    map: kernel::Map,
    view: View,
    /// True if others made it and may use it, so that all of it stays where it is.
    is_anothers: bool,
    /// Held while the tool changes copies, so that both sides have its changes in one order.
    changing: Mutex<()>,
    /// `None` if the map's own charge has it.
    _charge: Option<Charge>,
}

/// The way in which the tool's view of a map is put together from the processes' side and the
/// kernel's.
#[derive(Debug)]
enum View {
    /// All of it is in the kernel. Programs in processes that have it, too, ask for each operation.
    Kernels,
    /// The tool's changes go to both, and look-ups read the processes' side.
    Copies,
    /// A value is the sum of both.
    Sums(Box<[bool]>),
    /// Both are this memory, the kernel's.
    Shared(Memory),
}

/// The sides that have a map.
#[derive(Debug, Default)]
pub(super) struct Sides {
    twin: Option<Twin>,
    /// Processes have it, or programs in Beeline.
    is_in_processes: bool,
}

impl Sides {
    /// True if both have the map, and all of it is in the kernel.
    fn are_one_in_kernel(&self) -> bool {
        let is_kernels = |twin: &Twin| matches!(twin.view, View::Kernels);
        self.is_in_processes && self.twin.as_ref().is_some_and(is_kernels)
    }
}

impl MapObject {
    /// Creates an array with memory of the kernel's, which programs on both sides have, and the tool
    /// if it maps it. Its file holds nothing: what maps that, maps the kernel's pages over its
    /// beginning ([`Self::kernels_pages`]). The last page of the file stays, and tells whose the pages
    /// before it are.
    ///
    /// # Errors
    ///
    /// Those of [`Layout::new`]; `EINVAL` for a map other than an array of plain values; `ENOMEM` if the
    /// budget has no room for it; those of [`Memory::new`], and of bpf(2) and mmap(2).
    pub fn on_both_sides(
        id: Id,
        spec: &MapSpec,
        cpus: u32,
        budget: &Budget,
    ) -> Result<Self, Errno> {
        if !super::as_verified(spec, None).fields.is_empty() {
            return Err(Errno::EINVAL);
        }
        let flags = spec.flags & !TOOLS | flags::MMAPABLE;
        let twin = kernel::Map::new(&kernel_spec(spec, flags)).map_err(out_of_memory)?;
        Self::over_kernels_pages(id, spec, cpus, budget, (twin, false))
    }

    /// Returns the kernel's array whose pages are the map's memory, if it has such memory.
    ///
    /// # Errors
    ///
    /// Those of `fcntl(2)`, by which the descriptor is duplicated.
    pub fn kernels_pages(&self) -> io::Result<Option<(OwnedFd, usize)>> {
        let sides = self.sides.read();
        match sides.twin.as_ref().map(|twin| &twin.view) {
            Some(View::Shared(pages)) => Ok(Some((pages.share()?, pages.len()))),
            _ => Ok(None),
        }
    }

    /// True if its memory is the kernel's.
    pub fn is_on_both_sides(&self) -> bool {
        let sides = self.sides.read();
        matches!(&sides.twin, Some(twin) if matches!(twin.view, View::Shared(_)))
    }

    /// Runs `work` on the kernel's map in its place, which is created if there is none. `home` is the
    /// domain whose programs have to stand still if elements move there that they have.
    ///
    /// # Errors
    ///
    /// The reason, in words: the map cannot be on both sides, or the kernel does not make it.
    pub fn with_twin<T>(
        &self,
        home: &Domain,
        work: impl FnOnce(&kernel::Map) -> T,
    ) -> Result<T, String> {
        // Held so that no program is loaded meanwhile that uses the map in another way.
        let usage = self.usage.lock();
        let mut sides = self.sides.write();
        if let Some(twin) = &sides.twin {
            return Ok(work(&twin.map));
        }
        self.check_kind()?;
        let view = match sides.is_in_processes {
            true => match common_view(self.sharing_by(usage.as_ref())) {
                Err(why) => self
                    .check_by_value(usage.as_ref(), why)
                    .map(|()| View::Kernels)?,
                view => view?,
            },
            false if self.is_mapped_by_tool() => {
                return Err("the tool maps its memory, which is not the kernel's".to_owned());
            }
            false if self.is_only_read() => View::Copies,
            false => View::Kernels,
        };
        self.shards.close_entry();
        let bytes = bytes_of(self.map.layout(), self.map.spec().kind());
        let charge = self.budget.charge(bytes);
        let charge =
            charge.map_err(|_| "the tool has all the memory that it may have".to_owned())?;
        let map = self.new_twin().map_err(in_words)?;
        // Sums stay on this side.
        if !matches!(view, View::Sums(_)) {
            let moves_from_programs = sides.is_in_processes && matches!(view, View::Kernels);
            let still = moves_from_programs.then(|| self.stop_programs(home));
            let still = still.transpose()?;
            let filled = self.fill_twin(&map);
            filled.map_err(|errno| in_words(io::Error::from_raw_os_error(errno.0)))?;
            if still.as_ref().is_some_and(|still| !still.are_taken()) {
                return Err("moving its elements took too long".to_owned());
            }
            // What is left here is seen by nobody.
            if moves_from_programs {
                self.map.note_elsewhere();
            }
        }
        if self.check_thawed().is_err() {
            kernel::freeze(&map).map_err(in_words)?;
        }
        let twin = sides.twin.insert(Twin {
            map,
            view,
            is_anothers: false,
            changing: Mutex::default(),
            _charge: Some(charge),
        });
        Ok(work(&twin.map))
    }

    /// Runs `work` on the kernel's map, if there is one.
    pub fn in_twin<T>(&self, work: impl FnOnce(&kernel::Map) -> T) -> Option<T> {
        self.sides.read().twin.as_ref().map(|twin| work(&twin.map))
    }

    /// Has the records of the kernel's ring buffer come out of the tool's, if it has a twin.
    ///
    /// # Errors
    ///
    /// Those of `watch`, which gets the kernel's map, and of [`KernelRing::of_map`].
    pub fn relay_from_kernel(
        &self,
        watch: impl FnOnce(BorrowedFd<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let connect = |twin: &kernel::Map| {
            let ring = || {
                watch(twin.as_fd())?;
                KernelRing::of_map(twin, &self.map)
            };
            self.relay.source_in_kernel(&self.map, ring).map(drop)
        };
        self.in_twin(connect).unwrap_or(Ok(()))
    }

    /// Notes that processes get the map, or programs in Beeline. `sharing` is what all programs allow
    /// that use it.
    ///
    /// # Errors
    ///
    /// The reason, in words, for which it cannot be on both sides.
    pub(super) fn enters_processes(
        &self,
        sharing: &Sharing,
        usage: Option<&Use>,
    ) -> Result<(), String> {
        if self.sides.read().is_in_processes {
            return Ok(());
        }
        let mut sides = self.sides.write();
        if let Some(twin) = &mut sides.twin
            && matches!(twin.view, View::Kernels)
        {
            let view = self.view_in_processes(twin, sharing, usage)?;
            if matches!(view, View::Kernels) {
                self.map.note_elsewhere();
            }
            if matches!(view, View::Copies | View::Sums(_)) && self.has_values() {
                let mut filled = self.clear_here();
                if matches!(view, View::Copies) {
                    filled = filled.and_then(|()| self.copy_back(&twin.map));
                }
                filled.map_err(|errno| {
                    let error = io::Error::from_raw_os_error(errno.0);
                    format!("its elements cannot be copied: {error}")
                })?;
            }
            twin.view = view;
        }
        sides.is_in_processes = true;
        Ok(())
    }

    /// Notes that a program which uses the map is attached to events of processes. From now on it stays
    /// out of the kernel, if it cannot be on both sides.
    ///
    /// # Errors
    ///
    /// Those of [`Self::enters_processes`].
    pub fn claim_for_processes(&self) -> Result<(), String> {
        let usage = self.usage.lock();
        self.enters_processes(&self.sharing_by(usage.as_ref()), usage.as_ref())
    }

    /// Fails if processes may not get the map now.
    ///
    /// # Errors
    ///
    /// Those of [`Self::enters_processes`].
    pub fn check_enters_processes(&self) -> Result<(), String> {
        let usage = self.usage.lock();
        let sides = self.sides.read();
        match &sides.twin {
            Some(twin) if !sides.is_in_processes && matches!(twin.view, View::Kernels) => {
                let sharing = self.sharing_by(usage.as_ref());
                self.view_in_processes(twin, &sharing, usage.as_ref())
                    .map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Returns how the tool sees a map that is all in the kernel, once processes have it, too.
    fn view_in_processes(
        &self,
        twin: &Twin,
        sharing: &Sharing,
        usage: Option<&Use>,
    ) -> Result<View, String> {
        let why = match common_view(sharing.clone()) {
            _ if twin.is_anothers => adoption::NOT_HERE.to_owned(),
            Ok(view) => return Ok(view),
            Err(why) => why,
        };
        self.check_by_value(usage, why).map(|()| View::Kernels)
    }

    /// Fails unless programs in processes can do with a map that is all in the kernel. `why` is the
    /// reason for which it cannot be split.
    fn check_by_value(&self, usage: Option<&Use>, why: String) -> Result<(), String> {
        let spec = self.map.spec();
        let fits = |size: u32, words: usize| size as usize <= words * size_of::<u64>();
        let by_value = usage.is_some_and(|usage| usage.by_value().is_ok());
        if spec.kind() != Some(Kind::Hash) || !by_value {
            let in_place = usage.and_then(|usage| usage.by_value().err());
            let in_place = in_place.filter(|_| spec.kind() == Some(Kind::Hash));
            return Err(in_place.map_or(why, |reason| reason.to_string()));
        }
        if !fits(spec.key_size, KEY_WORDS) || !fits(spec.value_size, VALUE_WORDS) {
            return Err("its keys or values are too long to be asked for".to_owned());
        }
        if self.check_thawed().is_err() {
            return Err("the tool has frozen it".to_owned());
        }
        let is_homes = |owner: &Arc<Domain>| owner.id == DomainId::HOME;
        if self.shards.are_there() || !self.owner.get().is_none_or(is_homes) {
            return Err("processes of another user have it".to_owned());
        }
        Ok(())
    }

    /// Has no program use the map until the result is dropped.
    fn stop_programs<'a>(&self, home: &'a Domain) -> Result<AllSlots<'a>, String> {
        // They wait for a tenth of a second and no longer.
        const MOST: usize = 2_000;
        let len = self.keys(|last, next| self.next_key_here(last, next));
        if !len.is_ok_and(|keys| keys.len() <= MOST) {
            return Err("it has too many elements to be moved while programs wait".to_owned());
        }
        let still = home.take_all_slots(self.map.layout().cpus);
        still.ok_or_else(|| "programs that may use it do not come to an end".to_owned())
    }

    /// True if programs in processes have to ask for each operation.
    pub fn is_elsewhere(&self) -> bool {
        self.sides.read().are_one_in_kernel()
    }

    /// True if it is in the kernel, and programs in processes may have to ask for it now or later.
    pub fn may_be_asked_for(&self) -> bool {
        self.map.spec().kind() == Some(Kind::Hash) && self.sides.read().twin.is_some()
    }

    /// Takes note of another use of the map, if both sides have it.
    ///
    /// # Errors
    ///
    /// The reason, in words, for which both sides cannot have it if it is used so.
    pub(super) fn changes_sharing(&self, sharing: &Sharing, usage: &Use) -> Result<(), String> {
        let mut sides = self.sides.write();
        let is_one = sides.are_one_in_kernel();
        let Some(twin) = &mut sides.twin else {
            return Ok(());
        };
        if matches!(twin.view, View::Copies)
            && !self.is_only_read()
            && let Err(why) = common_view(sharing.clone())
        {
            self.check_by_value(Some(usage), why)?;
            // Until now programs have only read, and both sides hold the same.
            self.map.note_elsewhere();
            twin.view = View::Kernels;
            return Ok(());
        }
        let view = match twin.view {
            View::Kernels if is_one => {
                return usage.by_value().map_err(|reason| reason.to_string());
            }
            View::Kernels | View::Shared(_) => return Ok(()),
            View::Copies if self.is_only_read() => return Ok(()),
            View::Copies | View::Sums(_) => common_view(sharing.clone())?,
        };
        if matches!(view, View::Copies) != matches!(twin.view, View::Copies) {
            return Err("it was used in another way before".to_owned());
        }
        twin.view = view;
        Ok(())
    }

    /// True if the tool may change its memory without a call.
    pub(super) fn is_mapped_by_tool(&self) -> bool {
        let has = |flag| self.spec.flags & flag != 0;
        has(flags::MMAPABLE) && !has(flags::RDONLY_PROG) && self.check_thawed().is_ok()
    }
}

/// Returns how the tool can see a map that both sides have.
fn common_view(sharing: Sharing) -> Result<View, String> {
    match sharing {
        Sharing::ReadOnly | Sharing::Stream => Ok(View::Copies),
        Sharing::Summed(words) => Ok(View::Sums(halves(&words))),
        Sharing::PerProcess { .. } => Err("one thread's element would be on both sides".to_owned()),
        Sharing::Stacks => Err("stacks would have the same ids on both sides".to_owned()),
        Sharing::Whole(reason) => Err(reason.to_string()),
    }
}

fn errno<T>(outcome: io::Result<T>) -> Result<T, Errno> {
    outcome.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EIO)))
}

fn in_words(error: io::Error) -> String {
    format!("the kernel does not make it: {error}")
}
