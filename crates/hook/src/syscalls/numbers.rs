//! Numbers of the calls that differ from all others, of the type that plans have.

use beeline_uapi::nr;

pub(crate) const MUNMAP: u32 = nr::MUNMAP as u32;
pub(crate) const RT_SIGRETURN: u32 = nr::RT_SIGRETURN as u32;
pub(crate) const CLONE: u32 = nr::CLONE as u32;
pub(crate) const VFORK: u32 = nr::VFORK as u32;
pub(crate) const EXIT: u32 = nr::EXIT as u32;
pub(crate) const EXIT_GROUP: u32 = nr::EXIT_GROUP as u32;
pub(crate) const CLONE3: u32 = nr::CLONE3 as u32;
