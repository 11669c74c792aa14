//! A site's own code, and the patches that lead to it.

use std::ops::Range;

use super::CallPlan;
use crate::arch::{self, CommonCode, JUMP_LEN, SYSCALL};
use crate::patch::jump_patch;
use crate::trampoline::EmitError;

/// A site's own code, and the patches that lead to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallStub {
    /// To be placed at the address it was made for, readable and executable.
    pub bytes: Vec<u8>,
    /// Offsets in `bytes` of words of eight bytes that hold addresses. If the code, the common code
    /// with its table, the descriptor and the stub are all placed higher by one number, these words
    /// grow by that number, and all else is the same.
    pub addresses: Vec<usize>,
    /// One, or two for a call that stays in place. All are stored, or none.
    pub patches: Vec<CallPatch>,
    /// Addresses behind the stub's own `syscall` instructions, each with the address behind the
    /// site's. When the patches are removed, a thread that is asleep at one can be set to the
    /// other. [`CommonCode::framed`] are two more.
    pub moves: Vec<(u64, u64)>,
}

/// The bytes that are written over a site, once the stub is in its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallPatch {
    /// Address of the first overwritten byte.
    pub site: u64,
    /// The bytes that are there, to be compared and to be restored.
    pub original: Vec<u8>,
    /// The bytes to store there: as many.
    pub bytes: Vec<u8>,
    /// The range where no thread may be when the patch is there: the overwritten bytes but the
    /// first, and the address behind a `syscall` that moves, as the kernel may go back from there
    /// to make the call again. Threads asleep in the call are there.
    pub inside: Range<u64>,
    /// Each displaced instruction's original address and its address in the stub, ascending; then,
    /// unless the last one never goes on, the address behind the window and that of the jump back.
    ///
    /// A thread that is [`inside`](Self::inside), or has a signal frame that leads there, is set
    /// from one to the other. The address behind a moved `syscall` is listed twice: to go there the
    /// first counts, which is right behind the `syscall` in the stub too; to come back, both.
    pub resume_map: Vec<(u64, u64)>,
}

impl CallPlan {
    /// Writes the stub, to be placed at `at` within a jump's reach of `common`. Choose `at` by
    /// [`CallPlan::reach`]. Both functions get `descriptor`.
    ///
    /// # Errors
    ///
    /// - [`EmitError::Relocate`]: a displaced instruction cannot run there.
    /// - [`EmitError::JumpBack`]: the site or `common` is out of reach.
    pub fn emit(
        &self,
        at: u64,
        common: &CommonCode,
        descriptor: u64,
    ) -> Result<CallStub, EmitError> {
        arch::call_stub(self, at, common, descriptor)
    }
}

impl CallStub {
    /// True if the bytes of a jump look like a `syscall` to a search for one in the text.
    pub fn feigns_a_call(&self) -> bool {
        let mut jumps = self.patches.iter().map(|patch| &patch.bytes[..JUMP_LEN]);
        jumps.any(|jump| memchr::memmem::find(jump, &SYSCALL).is_some())
    }
}

impl CallPatch {
    /// Lays a jump to `to` over the bytes at `site`. No thread may be before `moved_to`, either.
    pub(crate) fn jump(
        site: u64,
        original: &[u8],
        to: u64,
        moved_to: Option<u64>,
        resume_map: Vec<(u64, u64)>,
    ) -> Result<Self, EmitError> {
        debug_assert!(original.len() >= JUMP_LEN);
        let bytes = jump_patch(site, original.len(), to)
            .map_err(|source| EmitError::JumpBack { at: to, source })?;
        let end = site.wrapping_add(original.len() as u64);
        Ok(Self {
            site,
            inside: site.wrapping_add(1)..end.max(moved_to.unwrap_or_default()),
            original: original.to_vec(),
            bytes,
            resume_map,
        })
    }
}
