//! Checks that a program may attach to the target that it names in the kernel's BTF
//! (`check_attach_btf_id`, `bpf_check_attach_target`).

use beeline_btf::{Type, kind};
use beeline_uapi::helper::hooks::is_sleepable_hook;
use beeline_uapi::limits::{MAX_BPF_FUNC_ARGS, MAX_FUNC_ARG_SIZE};
use beeline_uapi::{AttachType, Errno, ProgramType};

use super::table::{TypeTable, is_number, is_struct, kind_name, text};
use super::{KernelTypes, Refused, context, lsm};
use crate::program::Kind;

/// Functions that tracing programs themselves go through (`btf_id_deny`).
const DENIED: [&str; 7] = [
    "migrate_disable",
    "migrate_enable",
    "rcu_read_unlock_strict",
    "preempt_count_add",
    "preempt_count_sub",
    "__rcu_read_lock",
    "__rcu_read_unlock",
];

/// Functions that never return, so that a program at their end would never run (`noreturn_deny`).
const NEVER_RETURNING: [&str; 9] = [
    "__ia32_sys_exit",
    "__ia32_sys_exit_group",
    "__x64_sys_exit",
    "__x64_sys_exit_group",
    "do_exit",
    "do_group_exit",
    "kthread_complete_and_exit",
    "kthread_exit",
    "make_task_dead",
];

/// Operations that programs cannot implement, by structure.
const UNSUPPORTED_OPERATIONS: [(&str, &str); 1] = [("tcp_congestion_ops", "get_info")];

/// Structures of which only these operations may sleep (their `check_member`); in others all may.
const SLEEPABLE_OPERATIONS: [(&str, &[&str]); 3] = [
    ("bpf_dummy_ops", &["test_sleepable"]),
    (
        "hid_bpf_ops",
        &["hid_rdesc_fixup", "hid_hw_request", "hid_hw_output_report"],
    ),
    (
        "sched_ext_ops",
        &[
            "cgroup_exit",
            "cgroup_init",
            "cgroup_prep_move",
            "cpu_offline",
            "cpu_online",
            "exit",
            "init",
            "init_task",
        ],
    ),
];

/// Functions other than system calls that an error may replace (`ALLOW_ERROR_INJECTION`).
const INJECTABLE: [&str; 27] = [
    "__filemap_add_folio",
    "bpf_testmod_test_read",
    "bpf_testmod_test_write",
    "btrfs_check_leaf",
    "btrfs_check_node",
    "btrfs_cow_block",
    "btrfs_search_slot",
    "btrfs_should_cancel_balance",
    "guc_wait_ucode",
    "io_ctl_init",
    "mtd_block_markbad",
    "mtd_erase",
    "mtd_read",
    "mtd_write",
    "open_ctree",
    "page_pool_alloc_pages",
    "should_fail_alloc_page",
    "should_fail_bio",
    "should_failslab",
    "ssh_ptl_should_corrupt_rx_data",
    "ssh_ptl_should_corrupt_rx_syn",
    "ssh_ptl_should_corrupt_tx_data",
    "ssh_ptl_should_drop_ack_packet",
    "ssh_ptl_should_drop_dsq_packet",
    "ssh_ptl_should_drop_nak_packet",
    "ssh_ptl_should_fail_write",
    "ssh_rtl_should_drop_response",
];

/// Those of them that are called where sleeping is forbidden (`btf_non_sleepable_error_inject`).
const INJECTABLE_ASLEEP: [&str; 3] = [
    "__filemap_add_folio",
    "should_fail_alloc_page",
    "should_failslab",
];

/// Functions with a result that may be changed nevertheless (`btf_kfunc_is_modify_return`).
const MODIFIABLE: [&str; 5] = [
    "bpf_fentry_test1",
    "bpf_modify_return_test",
    "bpf_modify_return_test2",
    "bpf_modify_return_test_tp",
    "update_socket_protocol",
];

/// The one of them where programs may sleep (`KF_SLEEPABLE`).
const MODIFIABLE_ASLEEP: &str = "bpf_fentry_test1";

/// The place in the kernel that a program names to attach to.
struct Place<'a> {
    types: &'a TypeTable,
    kind: &'a Kind,
}

impl KernelTypes {
    /// Checks that a program of this kind may attach to its target (`check_attach_btf_id`).
    ///
    /// Kinds that do not attach by BTF may.
    ///
    /// # Errors
    /// `EINVAL` if the target does not exist or is not one for programs of this kind. `ENOTSUPP` if
    /// programs cannot implement the structure's operations, or this one.
    pub fn check_attach(&self, kind: &Kind) -> Result<(), Refused> {
        if kind.prog_type == ProgramType::SYSCALL {
            return if kind.is_sleepable() {
                Ok(())
            } else {
                refuse("Syscall programs can only be sleepable".to_owned())
            };
        }
        if kind.is_sleepable() && !can_sleep(kind) {
            return refuse(
                "Only fentry/fexit/fmod_ret, lsm, iter, uprobe, and struct_ops programs can be sleepable"
                    .to_owned(),
            );
        }
        let place = Place {
            types: &self.types,
            kind,
        };
        match kind.prog_type {
            ProgramType::STRUCT_OPS => place.check_operation(),
            ProgramType::TRACING | ProgramType::LSM | ProgramType::EXT => place.check(),
            _ => Ok(()),
        }
    }
}

impl Place<'_> {
    /// Checks an operation of a structure that programs may implement.
    fn check_operation(&self) -> Result<(), Refused> {
        let (id, index) = (self.kind.attach_btf_id, self.kind.attach_type.0);
        let it = self.types.at(id);
        let name = text(it.name);
        let value = format!("bpf_struct_ops_{name}");
        if id == 0 || it.kind != kind::STRUCT {
            return if id == 0 {
                Err((Errno::ENOTSUPP, String::new()))
            } else {
                unsupported(id)
            };
        }
        if self.types.find(kind::STRUCT, &value).is_none() {
            return unsupported(id);
        }
        let Some(member) = self.types.members(it).nth(index as usize) else {
            return refuse(format!(
                "attach to invalid member idx {index} of struct {name}"
            ));
        };
        let (_, pointer) = self.types.skip_modifiers(member.type_id);
        let member = text(member.name);
        let is_function =
            pointer.kind == kind::PTR && self.types.target(pointer).1.kind == kind::FUNC_PROTO;
        if !is_function {
            return refuse(format!(
                "attach to invalid member {member}(@idx {index}) of struct {name}"
            ));
        }
        if UNSUPPORTED_OPERATIONS.contains(&(name, member)) {
            let line = format!("attach to unsupported member {member} of struct {name}");
            return Err((Errno::ENOTSUPP, line));
        }
        let may_sleep = SLEEPABLE_OPERATIONS.iter().find(|(of, _)| *of == name);
        if self.kind.is_sleepable() && may_sleep.is_some_and(|(_, those)| !those.contains(&member))
        {
            return refuse(format!(
                "attach to unsupported member {member} of struct {name}"
            ));
        }
        Ok(())
    }

    /// Checks a tracepoint, a function or a hook.
    fn check(&self) -> Result<(), Refused> {
        let kind = self.kind;
        let id = kind.attach_btf_id;
        if id == 0 {
            return refuse("Tracing programs must provide btf_id".to_owned());
        }
        let Some(it) = self.types.get(id) else {
            return refuse(format!("attach_btf_id {id} is invalid"));
        };
        if kind.prog_type == ProgramType::EXT {
            return refuse("Cannot replace kernel functions".to_owned());
        }
        let name = text(it.name);
        match kind.attach_type {
            AttachType::TRACE_RAW_TP => self.check_tracepoint(id, it),
            AttachType::TRACE_ITER => {
                self.check_function(id, it)?;
                match context::iterator(name) {
                    Some(_) => Ok(()),
                    None => refuse(String::new()),
                }
            }
            AttachType::MODIFY_RETURN
            | AttachType::LSM_MAC
            | AttachType::LSM_CGROUP
            | AttachType::TRACE_FENTRY
            | AttachType::TRACE_FEXIT => {
                self.check_function(id, it)?;
                self.check_sleep(name)?;
                if kind.prog_type == ProgramType::LSM {
                    self.check_hook(id, name)
                } else {
                    check_denied(kind, name)
                }
            }
            _ => refuse(String::new()),
        }
    }

    fn check_tracepoint(&self, id: u32, it: Type<'_>) -> Result<(), Refused> {
        if it.kind != kind::TYPEDEF {
            return refuse(format!("attach_btf_id {id} is not a typedef"));
        }
        let name = text(it.name);
        if !name.starts_with("btf_trace_") {
            return refuse(format!(
                "attach_btf_id {id} points to wrong type name {name}"
            ));
        }
        let pointer = self.types.at(it.refers_to());
        if pointer.kind != kind::PTR || self.types.at(pointer.refers_to()).kind != kind::FUNC_PROTO
        {
            return refuse(String::new());
        }
        Ok(())
    }

    /// Checks a function with arguments that a trampoline can pass on (`btf_distill_func_proto`).
    fn check_function(&self, id: u32, it: Type<'_>) -> Result<(), Refused> {
        if it.kind != kind::FUNC {
            return refuse(format!("attach_btf_id {id} is not a function"));
        }
        let name = text(it.name);
        let Some(prototype) = self.types.prototype(id) else {
            return refuse(String::new());
        };
        let count = prototype.count();
        if count > MAX_BPF_FUNC_ARGS as usize {
            return refuse(format!(
                "The function {name} has {count} arguments. Too many."
            ));
        }
        let (_, result) = self.types.skip_modifiers(prototype.refers_to());
        if result.kind != 0 && passed(result).is_none() || is_struct(result) {
            let kind = kind_name(result);
            return refuse(format!(
                "The function {name} return type {kind} is unsupported."
            ));
        }
        for (index, param) in self.types.params(prototype).enumerate() {
            if index == count - 1 && param.type_id == 0 {
                return refuse(format!(
                    "The function {name} with variable args is unsupported."
                ));
            }
            let (_, it) = self.types.skip_modifiers(param.type_id);
            let kind = kind_name(it);
            match passed(it) {
                None if it.kind != 0 => {
                    return refuse(format!(
                        "The function {name} arg{index} type {kind} is unsupported."
                    ));
                }
                Some(bytes) if bytes > MAX_FUNC_ARG_SIZE => {
                    return refuse(format!(
                        "The function {name} arg{index} type {kind} is unsupported."
                    ));
                }
                None | Some(0) => {
                    return refuse(format!("The function {name} has malformed void argument."));
                }
                Some(_) => {}
            }
        }
        Ok(())
    }

    /// Implements `bpf_lsm_verify_prog`, except for the licence.
    fn check_hook(&self, id: u32, name: &str) -> Result<(), Refused> {
        if lsm::DISABLED.contains(&name) {
            return refuse(format!("attach_btf_id {id} points to disabled hook {name}"));
        }
        if !name.starts_with("bpf_lsm_") {
            return refuse(format!(
                "attach_btf_id {id} points to wrong type name {name}"
            ));
        }
        Ok(())
    }

    /// Checks that sleeping is allowed here if the program sleeps, else that it may change the
    /// result if it does.
    fn check_sleep(&self, name: &str) -> Result<(), Refused> {
        let kind = self.kind;
        if kind.is_sleepable() {
            let good = match kind.prog_type {
                ProgramType::TRACING => {
                    let is_injectable = self.is_injectable(name);
                    is_injectable && !INJECTABLE_ASLEEP.contains(&name) || name == MODIFIABLE_ASLEEP
                }
                _ => is_sleepable_hook(name),
            };
            if !good {
                return refuse(format!("{name} is not sleepable"));
            }
        } else if kind.attach_type == AttachType::MODIFY_RETURN
            && !self.is_injectable(name)
            && !MODIFIABLE.contains(&name)
            && !name.starts_with("security_")
        {
            return refuse(format!("{name}() is not modifiable"));
        }
        Ok(())
    }

    /// Returns whether an error may replace its result (`within_error_injection_list`). The
    /// kernel's list consists of addresses and is not in its BTF; nearly all of it is system calls.
    fn is_injectable(&self, name: &str) -> bool {
        let is_call = ["__x64_sys_", "__ia32_sys_", "__arm64_sys_"];
        // On x86 a call without arguments is another name of the function behind it, and types only
        // have that name.
        let is_bare_call = || {
            let prototype = self.types.prototype(self.kind.attach_btf_id);
            name.starts_with("__do_sys_")
                && prototype.is_some_and(|it| {
                    let mut params = self.types.params(it);
                    params.next().is_some_and(|it| it.name == b"__unused")
                        && params.next().is_none()
                })
        };
        is_call.iter().any(|prefix| name.starts_with(prefix))
            || INJECTABLE.contains(&name)
            || is_bare_call()
    }
}

fn refuse(line: String) -> Result<(), Refused> {
    Err((Errno::EINVAL, line))
}

fn unsupported(id: u32) -> Result<(), Refused> {
    Err((
        Errno::ENOTSUPP,
        format!("attach_btf_id {id} is not a supported struct"),
    ))
}

/// Returns the bytes that are passed to a function.
fn passed(it: Type<'_>) -> Option<u32> {
    match it.kind {
        kind::PTR => Some(8),
        _ if is_number(it) || is_struct(it) => Some(it.size()),
        _ => None,
    }
}

/// Implements `can_be_sleepable`.
fn can_sleep(kind: &Kind) -> bool {
    match kind.prog_type {
        ProgramType::TRACING => matches!(
            kind.attach_type,
            AttachType::TRACE_FENTRY
                | AttachType::TRACE_FEXIT
                | AttachType::MODIFY_RETURN
                | AttachType::TRACE_ITER
        ),
        ProgramType::LSM => true,
        // A probe may turn out to be on user space only when it is attached.
        ProgramType::KPROBE | ProgramType::STRUCT_OPS => true,
        _ => false,
    }
}

fn check_denied(kind: &Kind, name: &str) -> Result<(), Refused> {
    if DENIED.contains(&name) {
        return refuse(format!(
            "Attaching tracing programs to function '{name}' is rejected."
        ));
    }
    let at_end = matches!(
        kind.attach_type,
        AttachType::TRACE_FEXIT | AttachType::MODIFY_RETURN
    );
    if at_end && NEVER_RETURNING.contains(&name) {
        return refuse(format!(
            "Attaching fexit/fmod_ret to __noreturn function '{name}' is rejected."
        ));
    }
    Ok(())
}
