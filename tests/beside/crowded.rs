//! Sites with no room for everything that guards a jump, where a breakpoint would kill a thread:
//! the jump tolerates what it can.

use beeline_e2e::{PATIENCE, Turn, need, until};

use crate::setting::{JUMP, Place, Setting, code_at, first_byte};

/// Three pushes of two bytes: the last one begins at the jump's last byte.
const FUNCTION: &str = "b_push_r15";
/// The instructions that get kernel uprobes: the first and the second.
const STEPS: [u64; 2] = [0, 2];
const CALLS: u64 = 50;

#[test]
fn a_jump_that_is_guarded_in_part_stands_kernel_uprobes() {
    let _turn = Turn::take();
    for step in STEPS {
        let mut setting = need!(Setting::new());
        setting.crowd();
        let mut functions = setting.functions.iter();
        let (_, offset) = *functions.find(|(name, _)| name == FUNCTION).expect("one");
        let ours = setting.ours(&format!("uprobe:{{prog}}:{FUNCTION} {{ @ = count(); }}"));
        let first = first_byte(setting.target.pid(), &setting.program, offset);
        assert_eq!(first, JUMP, "a breakpoint would kill the thread");
        let mut calls = setting.calls(CALLS);
        let number = setting.attach_kernel_at(offset + step, Place::Entry);
        number.expect("the kernel takes it");
        calls += setting.calls(CALLS);
        setting.kernel.tell("off all");
        calls += setting.calls(CALLS);
        let ended = ours.interrupt();
        let count = format!("@: {calls}");
        assert!(ended.stdout.contains(&count), "+{step}: {ended:?}");
        setting.finish();
    }
}

/// `lea eax, [rdi + 1]; add eax, esi`. The jump would tolerate all kernel uprobes only if its last
/// byte were the second byte of the `add`.
const TWO: &str = "b_lea_add";
/// The offset of the `add`.
const ADD: u64 = 3;

#[test]
fn a_kernel_uprobe_inside_a_jump_may_go_before_one_at_the_site() {
    let _turn = Turn::take();
    let mut setting = need!(Setting::new());
    setting.fill();
    let mut functions = setting.functions.iter();
    let (_, offset) = *functions.find(|(name, _)| name == TWO).expect("one");
    let (pid, program) = (setting.target.pid(), setting.program.clone());
    let code = || code_at::<5>(pid, &program, offset);
    let file = code();
    let ours = setting.ours(&format!("uprobe:{{prog}}:{TWO} {{ @ = count(); }}"));
    assert_eq!(code()[0], JUMP);
    setting.run();
    let outer = setting.attach_kernel_at(offset, Place::Entry);
    assert!(outer.is_some(), "the kernel takes it");
    // A breakpoint replaces the jump, which leaves the instructions behind it whole.
    assert!(until(PATIENCE, || code()[4] == file[4]), "{:x?}", code());
    setting.go_on();
    let inner = setting.attach_kernel_at(offset + ADD, Place::Entry);
    let inner = inner.expect("the kernel takes it");
    setting.go_on();
    setting.kernel.tell(&format!("off {inner}"));
    setting.go_on();
    setting.stop();
    ours.interrupt();
    setting.finish();
}
