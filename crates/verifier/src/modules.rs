//! Functions and variables of kernel modules.
//!
//! Instructions name them by the module's descriptor and by a number that is the module's own. Here
//! they get their numbers in [`KernelTypes`], and look like the kernel's own from then on
//! (`__find_kfunc_desc_btf`, `check_pseudo_btf_id`).

use std::borrow::Cow;

use beeline_isa::Insn;
use beeline_isa::opcode::{CALL, JMP, PSEUDO_BTF_ID, PSEUDO_KFUNC_CALL};
use beeline_uapi::Errno;

use crate::program::Program;
use crate::reject::Reject;
use crate::types::KernelTypes;

/// Returns the program's instructions without descriptors of modules.
pub(crate) fn resolve<'a>(program: &Program<'a>) -> Result<Cow<'a, [Insn]>, Reject> {
    let insns = program.insns;
    let mut resolved = Cow::Borrowed(insns);
    let mut index = 0;
    while let Some(&insn) = insns.get(index) {
        let is_call = insn.code == JMP | CALL && insn.src == PSEUDO_KFUNC_CALL;
        if is_call && insn.off != 0 && program.gpl {
            let number = function(program, insn.imm, insn.off)?;
            let insn = &mut resolved.to_mut()[index];
            (insn.imm, insn.off) = (number, 0);
        }
        if !insn.is_imm64() {
            index += 1;
            continue;
        }
        let second = insns.get(index + 1).copied().unwrap_or_default();
        if insn.src == PSEUDO_BTF_ID && second.imm != 0 {
            let number = variable(program, insn.imm, second.imm)?;
            let insns = resolved.to_mut();
            insns[index].imm = number;
            insns[index + 1].imm = 0;
        }
        index += 2;
    }
    Ok(resolved)
}

/// Returns the number of a function of the module at a place in the array of descriptors.
fn function(program: &Program<'_>, btf_id: i32, place: i16) -> Result<i32, Reject> {
    let refuse = |errno, why: &str| {
        let why = format!("{why}\nfailed to find BTF for kernel function");
        Err(Reject::program(errno, why))
    };
    let Ok(place) = usize::try_from(place) else {
        let why = "negative offset disallowed for kernel module function call";
        return refuse(Errno::EINVAL, why);
    };
    let Some(fd_array) = program.modules.fd_array else {
        return refuse(
            Errno::EPROTO,
            "kfunc offset > 0 without fd_array is invalid",
        );
    };
    let fd = fd_array.get(place).copied().unwrap_or(-1);
    match module(program, fd) {
        None => refuse(Errno::EBADF, "invalid module BTF fd specified"),
        Some(None) => refuse(Errno::EINVAL, "BTF fd for kfunc is not a module BTF"),
        Some(Some((kernel, module))) => number(kernel, module, btf_id).ok_or_else(|| {
            let why = format!("kernel btf_id {} is not a function", btf_id.cast_unsigned());
            Reject::program(Errno::EINVAL, why)
        }),
    }
}

/// Returns the number of a variable or function of the module with this descriptor.
fn variable(program: &Program<'_>, btf_id: i32, fd: i32) -> Result<i32, Reject> {
    let found = match module(program, fd) {
        None => {
            let why = "invalid module BTF object FD specified.";
            return Err(Reject::program(Errno::EINVAL, why));
        }
        // The kernel looks for a symbol of its own with the name of the program's variable; here
        // there is none.
        Some(None) => {
            let why = format!("pseudo btf_id {btf_id} in ldimm64 isn't KIND_VAR or KIND_FUNC");
            return Err(Reject::program(Errno::EINVAL, why));
        }
        Some(Some((kernel, module))) => number(kernel, module, btf_id),
    };
    found.ok_or_else(|| {
        let why = format!("ldimm64 insn specifies invalid btf_id {btf_id}.");
        Reject::program(Errno::ENOENT, why)
    })
}

/// Returns the module; `None` if the descriptor is not of BTF, `Some(None)` if it is of a program's
/// BTF.
fn module<'a>(program: &Program<'a>, fd: i32) -> Option<Option<(&'a KernelTypes, usize)>> {
    let known = program.modules.btf.iter();
    let (_, module) = known.clone().find(|(known, _)| *known == fd)?;
    Some(program.kernel.zip(*module))
}

fn number(kernel: &KernelTypes, module: usize, btf_id: i32) -> Option<i32> {
    let number = kernel.in_module(module, btf_id.cast_unsigned())?;
    i32::try_from(number).ok()
}
