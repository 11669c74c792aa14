//! The start of a pool, by which other sessions recognize it.

use std::sync::atomic::AtomicU32;

use beeline_agent::abi;

use crate::liveness::SessionId;
use crate::private::Private;
use crate::shared::Shared;

/// Returns the start of a pool: with the private memory for a target's first pool, without for a
/// further one.
pub fn manifest(shared: &Shared, target: Option<(&Private, u32)>) -> abi::Manifest {
    let (private, owner) = target.unzip();
    let line = shared
        .tool
        .iter()
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ");
    let mut tool = [0; abi::TOOL_BYTES];
    let kept = line.floor_char_boundary(tool.len() - 1);
    tool[..kept].copy_from_slice(&line.as_bytes()[..kept]);
    let session = SessionId::own();
    abi::Manifest {
        magic: abi::MANIFEST_MAGIC,
        session: session.pid as u32,
        owner: owner.unwrap_or(0),
        gives_way: AtomicU32::new(0),
        first: private.is_some().into(),
        session_start: session.start,
        first_site: 0.into(),
        private: private.map_or(0, |p| p.base as usize),
        private_len: private.map_or(0, |p| p.len as usize),
        returns: private.map_or(0, |p| p.returns() as usize),
        signals: private.map_or(0, |p| p.signals() as usize),
        handlers: 0.into(),
        handler: 0,
        first_patches: 0.into(),
        first_witness: 0.into(),
        tool,
    }
}
