//! The target of a program in the kernel's types, which libbpf looks up before it loads the
//! program.

use beeline_btf::kind;

use crate::kernel::{Found, Kernel, KernelNames};

/// The function, tracepoint or iterator that a program is made for, in the kernel's BTF.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum AttachTarget {
    /// Programs of this section have no target, or not one by a type.
    #[default]
    None,
    /// The type's number: `attach_btf_id` of `BPF_PROG_LOAD`.
    Found(u32),
    /// The type is in a module of the kernel.
    InModule {
        /// The module's place in [`Object::modules`](crate::Object::modules). Its descriptor is
        /// `attach_btf_obj_fd`.
        module: usize,
        /// The type's number in the module's BTF.
        id: u32,
    },
    /// The type is missing, or the section's name does not say which; the text has the reason.
    Missing(String),
}

/// The section, and the form of the kernel's type: its kind, and the prefix of its name.
const SECTIONS: &[(&str, u8, &str)] = &[
    ("tp_btf", kind::TYPEDEF, "btf_trace_"),
    ("fentry", kind::FUNC, ""),
    ("fentry.s", kind::FUNC, ""),
    ("fexit", kind::FUNC, ""),
    ("fexit.s", kind::FUNC, ""),
    ("fmod_ret", kind::FUNC, ""),
    ("fmod_ret.s", kind::FUNC, ""),
    ("lsm", kind::FUNC, "bpf_lsm_"),
    ("lsm.s", kind::FUNC, "bpf_lsm_"),
    ("lsm_cgroup", kind::FUNC, "bpf_lsm_"),
    ("iter", kind::FUNC, "bpf_iter_"),
    ("iter.s", kind::FUNC, "bpf_iter_"),
];

/// Finds the target like [`AttachTarget::of_section`].
pub(crate) fn find(section: &str, kernel: &KernelNames<'_>) -> AttachTarget {
    let (before, name) = section.split_once('/').unwrap_or((section, ""));
    if before == "freplace" {
        return AttachTarget::Missing("the program that it replaces is loaded by a tool".into());
    }
    let known = SECTIONS.iter().find(|(known, ..)| *known == before);
    let Some((_, kind, prefix)) = known else {
        return AttachTarget::None;
    };
    if name.is_empty() {
        return AttachTarget::Missing("the section's name does not say what to attach to".into());
    }
    // As in libbpf: `fentry/nf_conntrack:nf_ct_delete`.
    let (module, name) = match name.split_once(':') {
        Some((module, name)) => (Some(module), name),
        None => (None, name),
    };
    let wanted = format!("{prefix}{name}");
    if kernel.btf().is_none() {
        return AttachTarget::Missing("there is no BTF of a kernel to look in".into());
    }
    match kernel.find_anywhere(*kind, &wanted, module) {
        Some(found) => AttachTarget::of(found),
        None => AttachTarget::Missing(format!("the kernel's BTF has no {wanted}")),
    }
}

impl AttachTarget {
    /// Finds the target by a section's name, without the `?` that keeps its programs from being
    /// loaded by themselves.
    ///
    /// It looks up the name behind the slash. If a module has it, the module is added to
    /// [`Object::modules`](crate::Object::modules).
    pub fn of_section(section: &str, kernel: &dyn Kernel, modules: &mut Vec<String>) -> Self {
        let names = KernelNames::with_used(kernel, modules);
        let found = find(section, &names);
        *modules = names.used();
        found
    }

    pub(crate) fn of(found: Found) -> Self {
        let id = found.id;
        match found.module {
            None => Self::Found(id),
            Some(module) => Self::InModule { module, id },
        }
    }

    /// Returns `attach_btf_id` of `BPF_PROG_LOAD`: 0 without a target.
    pub fn btf_id(&self) -> u32 {
        match self {
            Self::Found(id) | Self::InModule { id, .. } => *id,
            Self::None | Self::Missing(_) => 0,
        }
    }
}
