//! Iterating over all elements of a hash while others change it.

use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::Acquire;

use super::{
    RESTARTS,
    chains::{Bucket, Chains, Node},
    nodes::IN_USE,
};
use crate::memory::Memory;

/// Links to nodes of one bucket, read before the first of them is shown, so that a node that is
/// deleted then does not lead astray. Chains are mostly much shorter; a longer one is read in
/// parts.
type Links = [MaybeUninit<u32>; 32];

/// A part of a chain, in [`Links`].
struct Part {
    count: usize,
    /// The first link that there was no room for.
    rest: Option<u32>,
    /// True if the walk did not stay in the chain.
    strayed: bool,
}

/// The elements of a hash, one after the other.
#[derive(Clone, Copy)]
pub(crate) struct Elements<'m> {
    chains: Chains<'m>,
}

impl<'m> Elements<'m> {
    #[inline]
    pub(crate) fn new(memory: &'m Memory) -> Self {
        let chains = Chains::new(memory);
        Self { chains }
    }

    /// Shows every element's key and value. Returns their number, including the one for which
    /// `each` returned false.
    pub(crate) fn for_each(
        self,
        cpu: u32,
        mut each: impl FnMut(*const u8, *mut u8) -> bool,
    ) -> u32 {
        let chains = self.chains;
        let mut links = [const { MaybeUninit::uninit() }; 32];
        let (mut seen, mut walked) = (0u32, 0u32);
        for number in 0..=chains.memory.layout.mask {
            let bucket = chains.bucket(number);
            let mut from = None;
            // Even in a map that is overwritten all the time a walk must end, whether what it meets
            // is shown or not.
            while walked < chains.longest_walk() {
                let (read, rest) = self.read_links(bucket, from, &mut links);
                walked = walked.saturating_add(read.len() as u32);
                for link in read {
                    let Some(node) = chains.node(*link).filter(|node| self.is_in(*node, bucket))
                    else {
                        continue;
                    };
                    seen = seen.wrapping_add(1);
                    if !each(node.key(), chains.memory.value(node.index, cpu)) {
                        return seen;
                    }
                }
                match rest {
                    Some(link) => from = Some(link),
                    None => break,
                }
            }
        }
        seen
    }

    /// Returns the links of a bucket's chain, from its head or from a link on, as far as there is
    /// room, and the link to go on from.
    fn read_links<'a>(
        self,
        bucket: Bucket<'_>,
        from: Option<u32>,
        links: &'a mut Links,
    ) -> (&'a [u32], Option<u32>) {
        let mut part = self.read_part(bucket, from, links);
        for _ in 0..RESTARTS {
            // From the middle of a chain there is no way back to it.
            if !part.strayed || from.is_some() {
                break;
            }
            part = self.read_part(bucket, from, links);
        }
        let read = links.get(..part.count).unwrap_or(&[]);
        // SAFETY: `read_part` wrote the first `count`.
        (unsafe { read.assume_init_ref() }, part.rest)
    }

    fn read_part(self, bucket: Bucket<'_>, from: Option<u32>, links: &mut Links) -> Part {
        let mut link = from.unwrap_or_else(|| bucket.head.load(Acquire));
        let (mut count, mut rest, mut again) = (0, None, false);
        while let Some(node) = self.chains.node(link) {
            let (before, after) = links.split_at_mut_checked(count).unwrap_or_default();
            let Some(place) = after.first_mut() else {
                rest = Some(link);
                break;
            };
            // SAFETY: these were written by earlier turns.
            again = unsafe { before.assume_init_ref() }.contains(&link);
            if again {
                break; // It was moved to the front of the chain.
            }
            place.write(link);
            count = count.wrapping_add(1);
            link = node.next.load(Acquire);
        }
        // Any other end than its own says that a node was taken away meanwhile.
        let whole = link == bucket.end() || link == 0 && count == 0 || rest.is_some();
        Part {
            count,
            rest,
            strayed: again || !whole,
        }
    }

    /// True if the node is in this bucket's chain, and has not been deleted since its link was
    /// read.
    fn is_in(self, node: Node<'_>, bucket: Bucket<'_>) -> bool {
        node.stamp().load(Acquire) == IN_USE
            && node.hash().load(Acquire) & self.chains.memory.layout.mask == bucket.number
    }
}
