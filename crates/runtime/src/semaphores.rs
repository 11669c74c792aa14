//! Semaphores: counters in a target's memory that USDT probes raise while they are attached, so
//! that the program takes the trouble to reach them (`ref_ctr_offset` of `kernel/events/uprobes.c`).
//!
//! A semaphore may count for others as well: the kernel, other sessions, tools that write it
//! themselves. So each session keeps, in its private memory in the target, a table of what it has
//! added. A forked child gets a copy of both, and whoever restores a process, also after the
//! session's death, takes out exactly what the session has put there.
//!
//! The order of the writes is such that after a death between two of them a counter is at most lower
//! than its entry says, and a counter that is lower than its entry has nothing of the session's in
//! it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;

use beeline_inject::{Region, Stopped};
use object::read::elf::ElfFile64;
use object::{Endianness, Object, ObjectSection, ReadCache};

use crate::error::Error;
use crate::private::Private;

/// The most semaphores that one session can raise in one process.
const MOST: usize = 1024;
/// Bytes of the table: the number of its entries, then the entries.
pub const TABLE: usize = 8 + MOST * size_of::<[u64; 3]>();
/// Bytes of a counter.
const COUNTER: usize = size_of::<u16>();

/// A semaphore's share: the inode of the file that is mapped there, and a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Share {
    pub inode: u64,
    pub count: u16,
}

/// The shares of a session in the semaphores of one process, by address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shares(pub BTreeMap<u64, Share>);

impl Shares {
    /// Reads the table of a process with private memory at an address. What makes no sense there
    /// counts as nothing.
    pub fn read(private: u64, read: impl Fn(u64, &mut [u8]) -> bool) -> Self {
        let place = Private::layout(private, 1).semaphores();
        let mut count = [0; 8];
        if !read(place, &mut count) {
            return Self::default();
        }
        let count = u64::from_ne_bytes(count).min(MOST as u64) as usize;
        let mut words = vec![[[0; 8]; 3]; count];
        if count == 0 || !read(place + 8, words.as_flattened_mut().as_flattened_mut()) {
            return Self::default();
        }
        let entries = words.into_iter().filter_map(|words| {
            let [address, inode, count] = words.map(u64::from_ne_bytes);
            let count = u16::try_from(count).ok()?;
            Some((address, Share { inode, count }))
        });
        Self(entries.collect())
    }

    fn bytes(&self) -> Vec<u8> {
        let entries = self.0.iter().map(|(address, share)| {
            [*address, share.inode, share.count.into()].map(u64::to_ne_bytes)
        });
        let entries: Vec<_> = entries.collect();
        let mut bytes = (entries.len() as u64).to_ne_bytes().to_vec();
        bytes.extend_from_slice(entries.as_flattened().as_flattened());
        bytes
    }

    /// True if these are the wanted shares, and are in the counters. `read` reads the process.
    pub fn are(&self, wanted: &Self, read: impl Fn(u64, &mut [u8]) -> bool) -> bool {
        let is_there = |(address, share): (&u64, &Share)| {
            let mut counter = [0; COUNTER];
            read(*address, &mut counter) && u16::from_ne_bytes(counter) >= share.count
        };
        self == wanted && self.0.iter().all(is_there)
    }

    /// Replaces the shares that a session has in a stopped process, whose private memory is at
    /// `private`, by these.
    ///
    /// # Errors
    ///
    /// [`Error::Target`] if there are too many semaphores or one would become negative, as a signed
    /// number; [`Error::Inject`] if the process's memory cannot be written.
    pub fn store(&self, stopped: &mut Stopped, private: u64) -> Result<(), Error> {
        let pid = stopped.process().pid();
        if self.0.len() > MOST {
            return Err(Error::Target {
                pid,
                why: format!("probes with more than {MOST} different semaphores were asked for"),
            });
        }
        let read = |address: u64, into: &mut [u8]| stopped.read(address, into).is_ok();
        let present = Self::read(private, read);
        let regions = stopped.regions()?;
        let (mut lowered, mut raised) = (Vec::new(), Vec::new());
        let places: BTreeSet<u64> = present.0.keys().chain(self.0.keys()).copied().collect();
        for address in places {
            let share = |shares: &Self| shares.0.get(&address).copied();
            let (had, wanted) = (share(&present), share(self));
            let is_same = |share: &Share| is_semaphore(&regions, address, share.inode);
            let mut counter = [0; COUNTER];
            // A file that has been unmapped has taken its counters along.
            if !read(address, &mut counter) || !had.or(wanted).is_some_and(|any| is_same(&any)) {
                continue;
            }
            let value = u16::from_ne_bytes(counter);
            let of = |share: Option<Share>| share.map_or(0, |share| share.count);
            let others = value.checked_sub(of(had)).unwrap_or(value);
            let new = others.checked_add(of(wanted));
            let new = new.filter(|new| i16::try_from(*new).is_ok() || *new <= value);
            let new = new.ok_or_else(|| Error::Target {
                pid,
                why: format!("the semaphore at {address:#x} counts too many probes already"),
            })?;
            let list = if new < value {
                &mut lowered
            } else {
                &mut raised
            };
            if new != value {
                list.push((address, new.to_ne_bytes().to_vec()));
            }
        }
        let table = (Private::layout(private, 1).semaphores(), self.bytes());
        let writes = lowered.into_iter().chain([table]).chain(raised);
        Ok(stopped.write_all(writes.collect())?)
    }
}

/// True if there may be a semaphore at an address (`valid_ref_ctr_vma`): in a private mapping of
/// the file that can be written.
fn is_semaphore(regions: &[Region], address: u64, inode: u64) -> bool {
    let around = regions.iter().find(|region| region.contains(address));
    around.is_some_and(|region| is_data(region) && region.inode == inode)
}

fn is_data(region: &Region) -> bool {
    region.permissions.write && !region.permissions.shared && region.inode != 0
}

/// Returns the address of a semaphore at a file offset, for a process that has the file's text in a
/// mapping: in the first that can be written, as in the kernel (`find_ref_ctr_vma`).
pub fn address_of(offset: u64, text: &Region, regions: &[Region]) -> Option<u64> {
    let of_file = |region: &&Region| {
        is_data(region) && (region.device, region.inode) == (text.device, text.inode)
    };
    regions.iter().filter(of_file).find_map(|region| {
        let inside = offset.checked_sub(region.offset)?;
        (inside < region.end - region.start).then(|| region.start + inside)
    })
}

/// The semaphores of a file in a process, which the kernel raises when it puts its uprobes into a
/// further mapping of the file's code, and does not lower when that goes.
#[derive(Debug)]
pub struct Kept(Option<(u64, Vec<u8>)>);

/// The section that `<sys/sdt.h>` puts semaphores into.
const SECTION: &str = ".probes";

impl Kept {
    /// Notes the semaphores of the file that is mapped in `text`, before its code is mapped again.
    ///
    /// # Errors
    ///
    /// [`Error::Inject`] if it cannot be seen what the process maps.
    pub fn of(stopped: &Stopped, file: &File, text: &Region) -> Result<Self, Error> {
        let Some((offset, len)) = section_of(file) else {
            return Ok(Self(None));
        };
        let Some(address) = address_of(offset, text, &stopped.regions()?) else {
            return Ok(Self(None));
        };
        let mut bytes = vec![0; len];
        let is_read = stopped.read(address, &mut bytes).is_ok();
        Ok(Self(is_read.then_some((address, bytes))))
    }

    /// Puts them back, in the same stop.
    ///
    /// # Errors
    ///
    /// [`Error::Inject`] if they cannot be written.
    pub fn put_back(self, stopped: &mut Stopped) -> Result<(), Error> {
        let Some((address, bytes)) = self.0 else {
            return Ok(());
        };
        let mut now = vec![0; bytes.len()];
        if stopped.read(address, &mut now).is_ok() && now != bytes {
            stopped.write(address, &bytes)?;
        }
        Ok(())
    }
}

/// Returns the file offset and the length of the section with a file's semaphores.
fn section_of(file: &File) -> Option<(u64, usize)> {
    let cache = ReadCache::new(file);
    let elf = ElfFile64::<Endianness, _>::parse(&cache).ok()?;
    let (offset, len) = elf.section_by_name(SECTION)?.file_range()?;
    (len <= MOST as u64 * COUNTER as u64).then_some((offset, len as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shares(entries: &[(u64, u16)]) -> Shares {
        let entry = |(address, count): &(u64, u16)| {
            let (inode, count) = (7, *count);
            (*address, Share { inode, count })
        };
        Shares(entries.iter().map(entry).collect())
    }

    #[test]
    fn a_table_reads_as_it_was_written() {
        let (private, written) = (0x10000, shares(&[(0x4000, 1), (0x5002, 3)]));
        let place = Private::layout(private, 1).semaphores();
        let bytes = written.bytes();
        let read = |address: u64, into: &mut [u8]| {
            let from = (address - place) as usize;
            let there = bytes.get(from..from + into.len());
            there.is_some_and(|there| {
                into.copy_from_slice(there);
                true
            })
        };
        assert_eq!(Shares::read(private, read), written);
        // A number of entries that are not there.
        let garbage = |address: u64, into: &mut [u8]| {
            into.fill(0xff);
            address == place
        };
        assert_eq!(Shares::read(private, garbage), Shares::default());
    }

    #[test]
    fn a_counter_below_its_share_has_lost_it() {
        let some = shares(&[(0x4000, 2)]);
        let counter = |value: u16| {
            move |_: u64, into: &mut [u8]| {
                into.copy_from_slice(&value.to_ne_bytes());
                true
            }
        };
        assert!(some.are(&some, counter(2)) && some.are(&some, counter(3)));
        assert!(!some.are(&some, counter(1)));
        assert!(!some.are(&shares(&[]), counter(2)));
    }
}
