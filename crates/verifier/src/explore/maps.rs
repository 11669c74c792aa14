//! The programs that may change a map (`may_update_sockmap`).

use beeline_uapi::{AttachType, HelperId, MapType, ProgramType};

use crate::program::Kind;

/// Returns whether sockets in maps may be changed: only where they cannot be locked.
pub(super) fn may_update(kind: &Kind, map_type: MapType, helper: HelperId) -> bool {
    let is_delete = match helper {
        HelperId::MAP_UPDATE_ELEM => false,
        HelperId::MAP_DELETE_ELEM => true,
        _ => return true,
    };
    if !matches!(map_type, MapType::SOCKMAP | MapType::SOCKHASH) {
        return true;
    }
    match kind.prog_type {
        ProgramType::TRACING => kind.attach_type == AttachType::TRACE_ITER,
        ProgramType::SOCK_OPS => is_delete,
        ProgramType::SOCKET_FILTER
        | ProgramType::SCHED_CLS
        | ProgramType::SCHED_ACT
        | ProgramType::XDP
        | ProgramType::SK_REUSEPORT
        | ProgramType::FLOW_DISSECTOR
        | ProgramType::SK_LOOKUP => true,
        _ => false,
    }
}
