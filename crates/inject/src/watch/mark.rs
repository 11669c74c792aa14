//! The mark that stops a program at an address.

use crate::Error;
use crate::address_space::AddressSpace;
use crate::arch::Registers;
use crate::arch::mark::{
    BREAKPOINT, BREAKPOINT_SEEN_AT, PASSED, PASSED_SEEN_AT, before_passed, is_empty_function,
};
use crate::ptrace::{Event, Go};

/// The way a program is stopped at an address: [`PASSED`] for an empty function, or else a
/// breakpoint.
///
/// A breakpoint kills the program if Beeline is killed while it is there, so it is for where
/// nothing else can be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Mark {
    address: u64,
    original: [u8; PASSED.len()],
    pub is_breakpoint: bool,
}

impl Mark {
    /// Chooses the mark for an address.
    ///
    /// # Errors
    ///
    /// Those of [`AddressSpace::read`].
    pub fn at(address: u64, space: &AddressSpace) -> Result<Self, Error> {
        let mut original = [0; PASSED.len()];
        let is_read = space.read(address, &mut original).is_ok();
        let mut mark = Self {
            address,
            original,
            is_breakpoint: !is_read || !is_empty_function(address, &original),
        };
        let len = mark.bytes().len();
        space.read(address, &mut mark.original[..len])?;
        Ok(mark)
    }

    /// Returns the bytes that mark the address.
    pub fn bytes(&self) -> &'static [u8] {
        match self.is_breakpoint {
            true => &BREAKPOINT,
            false => &PASSED,
        }
    }

    /// Returns the bytes that are there without the mark.
    pub fn original(&self) -> &[u8] {
        &self.original[..self.bytes().len()]
    }

    /// Returns the way the program goes on until it gets there.
    pub fn pace(&self) -> Go {
        match self.is_breakpoint {
            true => Go::On,
            false => Go::ToSyscall,
        }
    }

    /// Returns where a thread stands that the mark has stopped, if this event may be of it.
    pub fn seen_at(&self, event: Event) -> Option<u64> {
        match event {
            Event::Signal(libc::SIGTRAP) => Some(self.address + BREAKPOINT_SEEN_AT),
            Event::Syscall => Some(self.address + PASSED_SEEN_AT),
            _ => None,
        }
    }

    /// True if a thread here has run a part of the mark.
    pub fn is_inside(&self, ip: u64) -> bool {
        (self.address + 1..self.address + self.bytes().len() as u64).contains(&ip)
    }

    /// Returns the registers that a thread had before the mark, given those that it is seen with.
    ///
    /// # Errors
    ///
    /// Those of [`AddressSpace::read`].
    pub fn undo(&self, seen: &Registers, space: &AddressSpace) -> Result<Registers, Error> {
        let mut before = match self.is_breakpoint {
            true => *seen,
            false => before_passed(seen, space)?,
        };
        before.set_ip(self.address);
        Ok(before)
    }
}
