//! Where there is no room for all that guards a jump, and a breakpoint would kill a thread: the jump stands what it can.

use beeline_e2e::{Turn, need};

use crate::setting::{JUMP, Place, Setting, first_byte};

/// Three pushes of two bytes: the last one begins at the jump's last byte.
const FUNCTION: &str = "b_push_r15";
/// Where kernel uprobes come: at the first and at the second of them.
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
