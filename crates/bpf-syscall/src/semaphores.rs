//! The semaphores of probed places: whoever probes a place has to name the same one.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use beeline_runtime::backend::{AttachPoint, ProbeSpec};
use beeline_uapi::Errno;
use parking_lot::Mutex;

use crate::fds::Descriptors;

/// Bytes of a semaphore, and its alignment.
const SIZE: u64 = size_of::<u16>() as u64;

/// A place in a file: device, inode and offset.
type Place = (u64, u64, u64);

/// The semaphores that are in use.
#[derive(Debug, Default)]
pub(crate) struct Semaphores(Mutex<HashMap<Place, InUse>>);

#[derive(Debug)]
struct InUse {
    semaphore: u64,
    probes: usize,
}

/// The part of a link or an event in that. Dropping this ends it.
#[derive(Debug, Default)]
pub(crate) struct SemaphoreUse {
    semaphores: Arc<Semaphores>,
    places: Vec<Place>,
}

impl Semaphores {
    /// Notes the semaphores that an attach point names, none included, for as long as the value
    /// that is returned lives. Objects that the tool closed before are out of the way then.
    ///
    /// Fails with EINVAL, as `uprobe_register`, if an offset is odd, or if one of the places is
    /// probed with another semaphore.
    pub(crate) fn take(
        self: &Arc<Self>,
        fds: &Descriptors,
        point: &AttachPoint,
    ) -> Result<SemaphoreUse, Errno> {
        let taken = fds.after_closes(|| self.try_take(point));
        taken.map_err(|errno| match errno {
            Errno::EBUSY => Errno::EINVAL,
            errno => errno,
        })
    }

    /// Fails with EBUSY where another semaphore is in the way.
    fn try_take(self: &Arc<Self>, point: &AttachPoint) -> Result<SemaphoreUse, Errno> {
        let mut taken = SemaphoreUse {
            semaphores: self.clone(),
            places: Vec::new(),
        };
        match point {
            AttachPoint::Uprobe {
                path,
                offset,
                semaphore,
                ..
            } => self.take_at(path, [(*offset, *semaphore)].into_iter(), &mut taken)?,
            AttachPoint::UprobeMulti { path, probes, .. } => {
                let pair = |probe: &ProbeSpec| (probe.offset, probe.semaphore);
                self.take_at(path, probes.iter().map(pair), &mut taken)?;
            }
            AttachPoint::SystemCall { .. } | AttachPoint::Timer { .. } => {}
        }
        Ok(taken)
    }

    fn take_at(
        &self,
        path: &Path,
        pairs: impl Iterator<Item = (u64, u64)>,
        taken: &mut SemaphoreUse,
    ) -> Result<(), Errno> {
        let facts = fs::metadata(path);
        let facts = facts.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::ENOENT)))?;
        let mut in_use = self.0.lock();
        for (offset, semaphore) in pairs {
            let place = (facts.dev(), facts.ino(), offset);
            let is_fit = semaphore.is_multiple_of(SIZE);
            match in_use.entry(place) {
                _ if !is_fit => return Err(Errno::EINVAL),
                Entry::Occupied(other) if other.get().semaphore != semaphore => {
                    return Err(Errno::EBUSY);
                }
                Entry::Occupied(mut same) => same.get_mut().probes += 1,
                Entry::Vacant(free) => {
                    let probes = 1;
                    free.insert(InUse { semaphore, probes });
                }
            }
            taken.places.push(place);
        }
        Ok(())
    }
}

impl Drop for SemaphoreUse {
    fn drop(&mut self) {
        let mut in_use = self.semaphores.0.lock();
        for place in self.places.drain(..) {
            if let Entry::Occupied(mut used) = in_use.entry(place) {
                used.get_mut().probes -= 1;
                if used.get().probes == 0 {
                    used.remove();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(offset: u64, semaphore: u64) -> AttachPoint {
        AttachPoint::Uprobe {
            path: "/proc/self/exe".into(),
            offset,
            retprobe: false,
            pid: None,
            cookie: 0,
            semaphore,
        }
    }

    #[test]
    fn a_place_has_one_semaphore_as_long_as_it_is_probed() {
        let semaphores = Arc::new(Semaphores::default());
        let take = |offset, semaphore| semaphores.try_take(&point(offset, semaphore));
        let (first, second) = (take(8, 2).unwrap(), take(8, 2).unwrap());
        assert_eq!(take(8, 4).err(), Some(Errno::EBUSY));
        assert_eq!(take(8, 0).err(), Some(Errno::EBUSY));
        assert!(take(9, 4).is_ok());
        drop(first);
        assert_eq!(take(8, 4).err(), Some(Errno::EBUSY));
        drop(second);
        assert!(take(8, 4).is_ok());
        assert_eq!(take(8, 3).err(), Some(Errno::EINVAL));
    }
}
