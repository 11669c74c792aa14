//! Copies of fast paths: a forked child has its parent's code, memory and maps, except for what
//! must be its own.

use std::collections::VecDeque;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use parking_lot::Mutex;

/// A fast path in the memory of the process that it was made for, and of those that were forked from
/// it.
#[derive(Debug, Clone)]
pub(super) struct Image {
    /// The pool with its code.
    pub code: Range<u64>,
    /// The address of its private memory.
    pub private: u64,
    /// A number that is in the private memory, and in no other at that place.
    pub token: u64,
}

impl Image {
    pub fn new_token() -> u64 {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let number = LAST.fetch_add(1, Relaxed).wrapping_add(1);
        // Another session's is another process's.
        u64::from(std::process::id()) << u32::BITS | u64::from(number)
    }
}

/// Fast paths by age. Nobody tells when the last process that has one is gone.
#[derive(Debug, Default)]
pub(super) struct Images(Mutex<VecDeque<Image>>);

/// The most images that are remembered. A process with an older one goes through the supervisor once
/// it has been forked.
const MOST: usize = 4096;

impl Images {
    pub fn add(&self, image: Image) {
        let mut images = self.0.lock();
        if images.len() == MOST {
            images.pop_front();
        }
        images.push_back(image);
    }

    /// True if an instruction at this address may be a fast path's.
    pub fn holds(&self, site: u64) -> bool {
        self.0.lock().iter().any(|image| image.code.contains(&site))
    }

    /// Returns the image with an instruction at `site` that this memory has, where the token is at
    /// this offset in the private memory.
    pub fn find(&self, memory: &File, site: u64, token: usize) -> Option<Image> {
        let images = self.0.lock();
        let near = images.iter().filter(|image| image.code.contains(&site));
        let near: Vec<Image> = near.cloned().collect();
        drop(images);
        near.into_iter().find(|image| {
            let mut found = [0; 8];
            let at = image.private + token as u64;
            memory.read_exact_at(&mut found, at).is_ok() && u64::from_ne_bytes(found) == image.token
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_told_by_its_token() {
        let images = Images::default();
        let memory = [0_u64, 7, 0];
        let image = |token| Image {
            code: 0x1000..0x2000,
            private: memory.as_ptr() as u64,
            token,
        };
        let own = File::open("/proc/self/mem").unwrap();
        images.add(image(6));
        assert!(images.holds(0x1fff) && !images.holds(0x2000));
        assert!(images.find(&own, 0x1000, 8).is_none());
        images.add(image(7));
        assert_eq!(images.find(&own, 0x1000, 8).unwrap().token, 7);
        assert!(images.find(&own, 0x2000, 8).is_none());
    }

    #[test]
    fn only_so_many_are_remembered() {
        let images = Images::default();
        for number in 0..=MOST as u64 {
            let code = number..number + 1;
            images.add(Image {
                code,
                private: 0,
                token: number,
            });
        }
        assert!(!images.holds(0) && images.holds(1) && images.holds(MOST as u64));
    }
}
