//! Both sides attach and detach at random and sessions are killed, while the target's own checks
//! hold.

use std::time::{Duration, Instant};

use beeline_e2e::{Dice, Tool, Turn, need, remark, seed, soak};

use crate::setting::{Place, Setting};

/// The duration by default.
const USUAL: Duration = Duration::from_secs(30);
/// Kernel probes lie up to so many bytes behind a function's start, where the kernel allows them.
const INNER: u64 = 5;
/// The most concurrent sessions in a long run. The remains of several concurrent and killed
/// sessions on top of each other, with kernel uprobes that come and go in between, are not handled
/// correctly every time yet.
const SESSIONS: usize = 2;

/// A session with probes at random functions' entries and returns.
fn some_of_ours(setting: &Setting, dice: &mut Dice) -> Tool {
    let mut probes = Vec::new();
    for (name, _) in &setting.functions {
        let place = match dice.below(4) {
            0 => Place::Entry,
            1 => Place::Return,
            _ => continue,
        };
        let what = place.for_bpftrace();
        probes.push(format!("{what}:{{prog}}:{name}"));
    }
    probes.push("uprobe:{prog}:b_phase".to_owned());
    setting.ours_begun(&format!("{} {{ @[probe] = count(); }}", probes.join(", ")))
}

#[test]
fn a_target_outlives_all_that_come_and_go() {
    let _turn = Turn::take();
    let mut setting = need!(Setting::new());
    let starts = need!(setting.instructions());
    // The kernel runs this one's second instruction wrongly, with or without Beeline.
    let with_names = starts.into_iter().zip(&setting.functions);
    let known_good = with_names.filter(|(_, (name, _))| name != "b_vmovaps");
    let starts: Vec<_> = known_good.map(|(start, _)| start).collect();
    let seed = seed();
    let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let (begun, mut rounds, mut killed) = (Instant::now(), 0_u32, 0_u32);
    let mut kernels = Vec::new();
    let mut ours: Vec<Tool> = Vec::new();
    setting.run();
    while begun.elapsed() < USUAL.max(soak()) {
        rounds += 1;
        for _ in 0..dice.below(6) {
            let (start, inner) = &starts[dice.below(starts.len() as u64) as usize];
            let near: Vec<_> = inner.iter().filter(|at| **at < start + INNER).collect();
            let at = *near[dice.below(near.len() as u64) as usize];
            let place =
                [Place::Entry, Place::Return][usize::from(at == *start && dice.below(2) == 0)];
            kernels.extend(setting.attach_kernel_at(at, place));
        }
        let is_soak = !soak().is_zero();
        let is_full = ours.len() == if is_soak { SESSIONS } else { 1 };
        if !is_full && (ours.is_empty() || dice.below(2) == 0) {
            ours.push(some_of_ours(&setting, &mut dice));
        } else {
            let one = dice.below(ours.len() as u64) as usize;
            match dice.below(4) {
                0 if is_soak => {
                    let session = ours.swap_remove(one);
                    session.signal_group(libc::SIGKILL);
                    session.wait();
                    killed += 1;
                }
                1 => drop(ours.swap_remove(one).interrupt()),
                _ => {}
            }
        }
        std::thread::sleep(Duration::from_millis(dice.below(300)));
        for _ in 0..dice.below(5) {
            if !kernels.is_empty() {
                let number = kernels.swap_remove(dice.below(kernels.len() as u64) as usize);
                setting.kernel.tell(&format!("off {number}"));
            }
        }
        if dice.below(10) == 0 {
            setting.kernel.tell("off all");
            kernels.clear();
        }
        let alive = setting.target.ask("turns");
        assert!(
            alive.is_ok(),
            "round {rounds}, BEELINE_SEED={seed}: {alive:?}"
        );
    }
    remark(&format!(
        "{rounds} rounds, {killed} sessions killed, BEELINE_SEED={seed}"
    ));
    setting.go_on();
    ours.into_iter()
        .for_each(|session| drop(session.interrupt()));
    setting.kernel.tell("off all");
    setting.go_on();
    setting.stop();
    setting.calls(5);
    setting.detach();
    setting.finish_behind_kills();
}
