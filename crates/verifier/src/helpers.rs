//! Helpers, and the kinds of programs that may call them (`get_func_proto` of each `struct
//! bpf_verifier_ops`, and `bpf_base_func_proto`; Linux 6.18, all capabilities, lockdown at
//! integrity).

use beeline_uapi::HelperId;
use beeline_uapi::helper::availability::{self, Caller};
pub use beeline_uapi::helper::{Arg, Dynptr, Helper, Ret};

use crate::program::Kind;

/// Returns the helper with this number, for programs of this kind.
///
/// `target` is the name for [`Kind::attach_btf_id`]: a function (`vfs_truncate`,
/// `bpf_lsm_file_open`, `bpf_iter_tcp`) or a structure (`tcp_congestion_ops`). Some helpers are for
/// programs at certain targets only; if the name is not known, programs count as being at the right
/// one.
///
/// # Errors
/// [`Missing::Unknown`] if Linux 6.18 has no such helper, [`Missing::NotForThisType`] if programs
/// of this type and attach type cannot call it, [`Missing::NotAtThisTarget`] if others of them can.
pub fn helper(id: HelperId, kind: &Kind, target: Option<&str>) -> Result<&'static Helper, Missing> {
    if id.0 >= HelperId::COUNT {
        return Err(Missing::Unknown);
    }
    let caller = Caller {
        prog_type: kind.prog_type,
        attach_type: kind.attach_type,
        has_target: kind.attach_btf_id != 0,
        target,
        policy: kind.policy,
    };
    let found = availability::find(id, &caller).ok_or(Missing::NotForThisType)?;
    if availability::is_allowed(found, &caller) {
        Ok(found)
    } else {
        Err(Missing::NotAtThisTarget)
    }
}

/// The reasons why a helper cannot be called, as the kernel distinguishes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// "invalid func unknown#N".
    Unknown,
    /// "program of this type cannot use helper bpf_NAME#N".
    NotForThisType,
    /// "helper call is not allowed in probe".
    NotAtThisTarget,
}

#[cfg(test)]
mod tests {
    use beeline_uapi::helper::cgroup::*;
    use beeline_uapi::helper::general::*;
    use beeline_uapi::helper::socket::*;
    use beeline_uapi::helper::tracing::*;
    use beeline_uapi::{AttachType, ProgramType};

    use super::*;

    fn at(prog_type: ProgramType, attach_type: AttachType) -> Kind {
        Kind {
            prog_type,
            attach_type,
            attach_btf_id: 1,
            ..Kind::default()
        }
    }

    #[test]
    fn trampolines_keep_arguments() {
        for attach_type in [
            AttachType::TRACE_FENTRY,
            AttachType::TRACE_FEXIT,
            AttachType::MODIFY_RETURN,
        ] {
            let kind = at(ProgramType::TRACING, attach_type);
            for found in [
                &GET_FUNC_ARG,
                &GET_FUNC_RET,
                &GET_FUNC_ARG_CNT,
                &GET_ATTACH_COOKIE,
            ] {
                assert_eq!(helper(found.id, &kind, Some("vfs_read")), Ok(found));
            }
        }
        let iterator = at(ProgramType::TRACING, AttachType::TRACE_ITER);
        let missing = Err(Missing::NotForThisType);
        assert_eq!(
            helper(GET_FUNC_ARG.id, &iterator, Some("bpf_iter_task")),
            missing
        );
        assert_eq!(
            helper(GET_ATTACH_COOKIE.id, &iterator, Some("bpf_iter_task")),
            missing
        );
    }

    #[test]
    fn some_targets_only() {
        let function = at(ProgramType::TRACING, AttachType::TRACE_FENTRY);
        let elsewhere = Err(Missing::NotAtThisTarget);
        assert_eq!(
            helper(D_PATH.id, &function, Some("vfs_getattr")),
            Ok(&D_PATH)
        );
        assert_eq!(helper(D_PATH.id, &function, Some("vfs_read")), elsewhere);
        assert_eq!(helper(D_PATH.id, &function, None), Ok(&D_PATH));
        let storage = SK_STORAGE_GET_TRACING.id;
        assert!(helper(storage, &function, Some("tcp_sendmsg")).is_ok());
        assert_eq!(
            helper(storage, &function, Some("bpf_sk_storage_free")),
            elsewhere
        );
        let returning = at(ProgramType::TRACING, AttachType::MODIFY_RETURN);
        assert_eq!(helper(storage, &returning, Some("tcp_sendmsg")), elsewhere);
    }

    #[test]
    fn hooks_of_security_modules_have_helpers_of_their_own() {
        let hook = at(ProgramType::LSM, AttachType::LSM_MAC);
        let open = Some("bpf_lsm_file_open");
        for found in [
            &SK_STORAGE_GET,
            &INODE_STORAGE_GET,
            &D_PATH,
            &IMA_FILE_HASH,
            &GET_FUNC_ARG,
        ] {
            assert_eq!(helper(found.id, &hook, open), Ok(found));
        }
        let permission = Some("bpf_lsm_inode_permission");
        assert_eq!(
            helper(D_PATH.id, &hook, permission),
            Err(Missing::NotAtThisTarget)
        );
        assert_eq!(
            helper(GET_RETVAL.id, &hook, open),
            Err(Missing::NotForThisType)
        );

        let group = at(ProgramType::LSM, AttachType::LSM_CGROUP);
        let created = Some("bpf_lsm_socket_post_create");
        for found in [&GET_RETVAL, &GET_LOCAL_STORAGE, &SETSOCKOPT_SOCK] {
            assert_eq!(helper(found.id, &group, created), Ok(found));
        }
        let bound = Some("bpf_lsm_socket_bind");
        assert_eq!(
            helper(SETSOCKOPT_SOCK.id, &group, bound),
            Err(Missing::NotForThisType)
        );
        assert_eq!(
            helper(GET_FUNC_ARG.id, &group, created),
            Err(Missing::NotForThisType)
        );
    }

    #[test]
    fn infrared_receivers_have_few() {
        let kind = at(ProgramType::LIRC_MODE2, AttachType::LIRC_MODE2);
        assert_eq!(helper(RC_KEYDOWN.id, &kind, None), Ok(&RC_KEYDOWN));
        assert_eq!(
            helper(RINGBUF_OUTPUT.id, &kind, None),
            Err(Missing::NotForThisType)
        );
    }

    #[test]
    fn no_such_numbers() {
        let kind = at(ProgramType::KPROBE, AttachType::UNSPECIFIED);
        assert_eq!(
            helper(HelperId::UNSPEC, &kind, None),
            Err(Missing::NotForThisType)
        );
        assert_eq!(
            helper(HelperId(HelperId::COUNT), &kind, None),
            Err(Missing::Unknown)
        );
        assert_eq!(
            helper(HelperId(u32::MAX), &kind, None),
            Err(Missing::Unknown)
        );
    }
}
