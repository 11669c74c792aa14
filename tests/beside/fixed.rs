//! Programs near the start of memory, where an `int3` in a jump's last byte leads to no memory that there can be.

use beeline_e2e::{PATIENCE, Turn, need, until};

use crate::setting::{JUMP, Place, Setting, first_byte};

/// What Go's functions begin with: a comparison of four bytes and a branch.
const FUNCTION: &str = "b_golike";
const BRANCH: u64 = 4;
const CALLS: u64 = 50;
const INT3: u8 = 0xcc;

#[test]
fn a_kernel_uprobe_at_a_jumps_last_byte_does_no_harm() {
    let _turn = Turn::take();
    let mut setting = need!(Setting::at_fixed_addresses());
    let mut functions = setting.functions.iter();
    let (_, offset) = *functions.find(|(name, _)| name == FUNCTION).expect("one");
    let pid = setting.target.pid();
    let ours = setting.ours(&format!("uprobe:{{prog}}:{FUNCTION} {{ @ = count(); }}"));
    assert_eq!(first_byte(pid, &setting.program, offset), JUMP);
    let mut calls = setting.calls(CALLS);
    setting
        .attach_kernel_at(offset + BRANCH, Place::Entry)
        .expect("the kernel takes it");
    calls += setting.calls(CALLS);
    let is_noticed = || first_byte(pid, &setting.program, offset) == INT3;
    assert!(until(PATIENCE, is_noticed), "nobody noticed");
    let seen = setting.kernel_counts()[0];
    let both = setting.calls(CALLS);
    assert_eq!(setting.kernel_counts()[0] - seen, both);
    setting.kernel.tell("off all");
    calls += both + setting.calls(CALLS);
    let ended = ours.interrupt();
    assert!(ended.stdout.contains(&format!("@: {calls}")), "{ended:?}");
    setting.finish();
}

/// While threads are on their way there.
#[test]
fn kernel_uprobes_at_a_jumps_last_byte_come_and_go_as_ours_do() {
    const ROUNDS: usize = 30;
    let _turn = Turn::take();
    let mut setting = need!(Setting::at_fixed_addresses());
    let mut functions = setting.functions.iter();
    let (_, offset) = *functions.find(|(name, _)| name == FUNCTION).expect("one");
    setting.run();
    for round in 0..ROUNDS {
        let ours = setting.ours(&format!("uprobe:{{prog}}:{FUNCTION} {{ @ = count(); }}"));
        setting.attach_kernel_at(offset + BRANCH, Place::Entry);
        if round % 2 == 1 {
            setting.attach_kernel_at(offset, Place::Entry);
            setting.go_on();
        }
        let ended = ours.interrupt();
        assert!(ended.status.success(), "{ended:?}");
        setting.kernel.tell("off all");
        setting.go_on();
    }
    setting.stop();
    setting.finish();
}
