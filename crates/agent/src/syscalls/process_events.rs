//! Process events, which Beeline has to know of for itself: processes that fork, run another
//! program, map code, handle or block signals, or become another user.

use core::sync::atomic::Ordering::Relaxed;

use beeline_uapi::linux::{
    AT_FDCWD, CLONE_NEWUSER, CLONE_THREAD, CLONE_VFORK, CLONE_VM, MAP_ANONYMOUS, PR_SET_NAME,
    PR_SET_SECCOMP, PROT_EXEC, PROT_WRITE, SECCOMP_SET_MODE_FILTER,
};
use beeline_uapi::nr;

use super::upcall::{Subject, upcall, upcall_about};
use super::{Call, actions, masks, waits};
use crate::abi::syscalls::{
    ENTER, UPCALL_CODE, UPCALL_CONFINE, UPCALL_EXEC, UPCALL_FORK, UPCALL_NO_EXEC,
};
use crate::abi::{PtRegs, Target};
use crate::lease::forget_slots_of;
use crate::sys;

/// Returns the target that a call is made in, or `None` if no session may be told of it.
///
/// It need not be the target that the code was hooked for: a forked child becomes a target first,
/// and a child that shares its parent's memory has a record of its own.
#[inline(always)]
pub(super) fn target_of<'a>(own: &'a Target, child: &'a Target) -> Option<&'a Target> {
    let control = own.control();
    if control.pid.load(Relaxed) != 0 && control.children.load(Relaxed) == 0 {
        return Some(own);
    }
    upcall_for(own, child)
}

/// As [`target_of`], for the cases that are not plain.
#[cold]
#[inline(never)]
fn upcall_for<'a>(own: &'a Target, child: &'a Target) -> Option<&'a Target> {
    let control = own.control();
    if control.pid.load(Relaxed) == 0 && !is_adopted(own) {
        return None;
    }
    let is_child = || sys::pid() != control.own_pid;
    match control.children.load(Relaxed) {
        0 => Some(own),
        _ if is_child() => Some(child),
        _ => Some(own),
    }
}

/// Asks the runtime to adopt a forked child, and returns whether it has. The child has a copy of
/// everything but a record of its own.
fn is_adopted(target: &Target) -> bool {
    let control = target.control();
    if control.orphan.load(Relaxed) != 0 {
        return false;
    }
    let adopted = upcall(target, UPCALL_FORK) && control.pid.load(Relaxed) != 0;
    if !adopted {
        control.orphan.store(1, Relaxed);
    }
    adopted
}

/// Does Beeline's own part in a call, when its programs have run. Returns the call's result if the
/// agent has made the call itself.
#[inline(always)]
pub(super) fn handle(call: &Call<'_>) -> Option<u64> {
    match call.regs.call_number() {
        nr::EXECVE | nr::EXECVEAT => exec(call),
        nr::MMAP | nr::MPROTECT | nr::PKEY_MPROTECT if call.edge != ENTER => code(call),
        nr::CLONE | nr::VFORK | nr::CLONE3 => split(call),
        nr::RT_SIGRETURN if call.edge == ENTER => call.show_restored(),
        nr::RT_SIGPROCMASK if call.edge == ENTER => return masks::change(call),
        nr::RT_SIGACTION if call.edge == ENTER => return actions::change(call),
        nr::RT_SIGSUSPEND | nr::PPOLL | nr::PSELECT6 | nr::EPOLL_PWAIT | nr::EPOLL_PWAIT2 => {
            waits::see_to_mask(call);
        }
        // The remembered name of the thread is out of date before its programs behind the call run.
        nr::PRCTL if call.first_argument() == PR_SET_NAME => {
            call.control.names.fetch_add(1, Relaxed);
        }
        nr::PRCTL if call.first_argument() == PR_SET_SECCOMP => confine(call),
        nr::SECCOMP if call.first_argument() <= SECCOMP_SET_MODE_FILTER => confine(call),
        nr::SETUID
        | nr::SETGID
        | nr::SETREUID
        | nr::SETREGID
        | nr::SETRESUID
        | nr::SETRESGID
        | nr::UNSHARE
        | nr::SETNS => become_another(call),
        _ => {}
    }
    None
}

#[cold]
#[inline(never)]
fn exec(call: &Call<'_>) {
    if call.edge == ENTER {
        upcall_about(call.target, UPCALL_EXEC, &program_of(call.regs));
    } else if (call.regs.result() as i64) < 0 {
        // Behind a call that has worked there is another program, and no thread waits for it any
        // more.
        upcall(call.target, UPCALL_NO_EXEC);
    }
}

/// Returns the program that `execve` or `execveat` is to run.
fn program_of(regs: &PtRegs) -> Subject {
    let [first, second, _, _, fifth, _] = regs.call_arguments();
    match regs.call_number() {
        nr::EXECVE => Subject {
            directory: AT_FDCWD,
            address: first,
            flags: 0,
        },
        _ => Subject {
            directory: first as i32,
            address: second,
            flags: fifth as u32,
        },
    }
}

/// Announces a seccomp filter, which may kill the process for a call of Beeline's. The runtime may
/// make the thread repeat its call when nothing of Beeline's is there any more: this does not
/// return then.
#[cold]
#[inline(never)]
fn confine(call: &Call<'_>) {
    if call.edge == ENTER {
        let address = core::ptr::from_ref(call.regs) as u64;
        let subject = Subject {
            address,
            ..Subject::default()
        };
        upcall_about(call.target, UPCALL_CONFINE, &subject);
    }
}

#[cold]
#[inline(never)]
fn code(call: &Call<'_>) {
    let regs = call.regs;
    let [_, _, protection, flags, ..] = regs.call_arguments();
    let is_file = regs.call_number() != nr::MMAP || flags & MAP_ANONYMOUS == 0;
    let has_worked = (regs.result() as i64) >= 0;
    let is_code = protection & PROT_EXEC != 0;
    let is_awaited =
        is_file && protection & PROT_WRITE != 0 && call.control.awaits_data.load(Relaxed) != 0;
    if !has_worked || !(is_code || is_awaited) {
        return;
    }
    if is_file {
        upcall(call.target, UPCALL_CODE);
    } else {
        // The code that is going to be written there will not be scanned.
        call.control.user_changes.fetch_add(1, Relaxed);
    }
}

/// Forgets the remembered identity of threads. While the call is made nothing is remembered, as a
/// signal handler may run before the call is seen to return. In another user namespace even other
/// processes can change a thread's identity, by writing the namespace's maps.
#[cold]
#[inline(never)]
fn become_another(call: &Call<'_>) {
    let regs = call.regs;
    let is_unsure = match regs.call_number() {
        nr::UNSHARE => call.first_argument() & CLONE_NEWUSER != 0,
        number => number == nr::SETNS,
    };
    if call.edge == ENTER {
        call.control.user_changes.fetch_add(1, Relaxed);
        return;
    }
    call.control.users.fetch_add(1, Relaxed);
    if !is_unsure || (regs.result() as i64) < 0 {
        call.control.user_changes.fetch_sub(1, Relaxed);
    }
}

/// Counts children that share the process's memory. As long as there is one, the kernel is asked
/// which of the two processes is running.
#[cold]
#[inline(never)]
fn split(call: &Call<'_>) {
    let regs = call.regs;
    let flags = match regs.call_number() {
        nr::VFORK => CLONE_VM | CLONE_VFORK,
        nr::CLONE => call.first_argument(),
        _ => word_at(call.control.own_pid, call.first_argument()),
    };
    if flags & CLONE_VM == 0 || flags & CLONE_THREAD != 0 {
        return;
    }
    let is_child_itself = regs.result() == 0;
    if call.edge == ENTER {
        call.control.children.fetch_add(1, Relaxed);
    } else if !is_child_itself {
        // A child that was not waited for runs beside its parent from now on.
        if flags & CLONE_VFORK != 0 || (regs.result() as i64) < 0 {
            call.control.children.fetch_sub(1, Relaxed);
        }
        if flags & CLONE_VFORK != 0 {
            forget_slots_of(call.child);
        }
    }
}

/// Returns a word of this process's memory that may not be there; 0 then.
fn word_at(pid: u32, address: u64) -> u64 {
    let mut word = 0u64;
    // SAFETY: there is room for a word.
    unsafe { sys::read_memory(pid, (&raw mut word).cast(), address, 8) };
    word
}
