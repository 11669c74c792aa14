//! A breakpoint would kill a thread that sleeps with all signals blocked. The thread does not block
//! SIGTRAP while Beeline is there.

use beeline_e2e::{PATIENCE, Turn, need, statuses, until};

use crate::setting::{INT3, Setting, first_byte};

/// A function that only a breakpoint can hook.
const FUNCTION: &str = "b_looped";
const CALLS: u64 = 50;
const SIGTRAP: u64 = 1 << (libc::SIGTRAP - 1);

/// Returns the number of threads that block SIGTRAP.
fn blocking(pid: u32) -> usize {
    let blocks = |status: &String| {
        let mut lines = status.lines();
        let mask = lines.find_map(|line| line.strip_prefix("SigBlk:"));
        let mask = u64::from_str_radix(mask.expect("each has one").trim(), 16);
        mask.expect("a number") & SIGTRAP != 0
    };
    let statuses = statuses(pid);
    statuses.iter().filter(|status| blocks(status)).count()
}

#[test]
fn a_breakpoint_serves_a_process_with_a_thread_that_blocks_all_signals() {
    let _turn = Turn::take();
    for is_late in [false, true] {
        let mut setting = need!(Setting::new());
        let pid = setting.target.pid();
        if !is_late {
            setting.block();
            assert_eq!(blocking(pid), 1);
        }
        let ours = setting.ours(&format!("uprobe:{{prog}}:{FUNCTION} {{ @ = count(); }}"));
        let mut functions = setting.functions.iter();
        let (_, offset) = *functions.find(|(name, _)| name == FUNCTION).expect("one");
        assert_eq!(first_byte(pid, &setting.program, offset), INT3);
        if is_late {
            setting.block();
        }
        assert!(until(PATIENCE, || blocking(pid) == 0), "late: {is_late}");
        let calls = setting.calls(CALLS);
        let ended = ours.interrupt();
        let count = format!("@: {calls}");
        assert!(ended.stdout.contains(&count), "{ended:?}");
        assert_eq!(blocking(pid), 1, "as it was before");
        setting.finish();
    }
}
