//! Kernel uprobes and Beeline's probes attached and detached in every order, while threads run.

use std::collections::HashMap;

use beeline_e2e::{Turn, need};

use crate::setting::{LEAVING, Place, Setting, counted, off_by};

/// Calls of each function by each thread in a phase in which both must count exactly.
const CALLS: u64 = 50;

const BOTH: u64 = 2;
const ONE: u64 = 4;

struct Order {
    place: Place,
    ours_comes_first: bool,
    ours_goes_first: bool,
}

fn both_count(order: &Order) {
    let _turn = Turn::take();
    let mut setting = need!(Setting::new());
    let script = setting.counting(order.place);
    setting.run();
    setting.go_on();
    let (ours, probed);
    if order.ours_comes_first {
        ours = setting.ours(&script);
        setting.go_on();
        probed = setting.attach_kernel(order.place);
    } else {
        probed = setting.attach_kernel(order.place);
        setting.go_on();
        ours = setting.ours(&script);
    }
    setting.phase(1);
    setting.go_on();
    setting.stop();
    setting.phase(BOTH);
    let calls = calls_that_the_kernel_sees(&mut setting, &probed);
    setting.phase(3);
    setting.run();
    setting.go_on();
    let ended;
    if order.ours_goes_first {
        ended = ours.interrupt();
        setting.go_on();
        setting.stop();
        calls_that_the_kernel_sees(&mut setting, &probed);
    } else {
        setting.kernel.tell("off all");
        setting.go_on();
        setting.stop();
        setting.wait_hooked();
        setting.phase(ONE);
        setting.calls(CALLS);
        ended = ours.interrupt();
        assert_all(&setting, &counted(&ended, ONE), calls, &ended.stderr);
    }
    assert_ours_saw(
        &setting,
        &counted(&ended, BOTH),
        calls,
        ended.missed(),
        &ended.stderr,
    );
    setting.finish();
}

/// Calls each function, asserts that the kernel's probes have counted the calls, and returns the
/// number of calls of each.
fn calls_that_the_kernel_sees(setting: &mut Setting, probed: &[String]) -> u64 {
    let before = setting.kernel_counts();
    let calls = setting.calls(CALLS);
    let after = setting.kernel_counts();
    let seen = before
        .iter()
        .zip(&after)
        .map(|(before, after)| after - before);
    let wrong: Vec<_> = probed
        .iter()
        .zip(seen)
        .filter(|(_, seen)| *seen != calls)
        .collect();
    assert!(wrong.is_empty(), "the kernel saw not {calls} of: {wrong:?}");
    calls
}

pub fn assert_ours_saw(
    setting: &Setting,
    counts: &HashMap<String, u64>,
    calls: u64,
    missed: u64,
    said: &[String],
) {
    let names = setting.functions.iter().map(|(name, _)| name);
    let short = off_by(counts, names, calls);
    let leaving: Vec<_> = LEAVING
        .iter()
        .map(|name| (name, counts.get(*name)))
        .collect();
    beeline_e2e::remark(&format!(
        "not all: {short:?}; leaving {leaving:?}; missed {missed}"
    ));
    assert!(
        short.iter().all(|(_, count)| *count < calls),
        "too many: {short:?}"
    );
    let lost: u64 = short.iter().map(|(_, count)| calls - count).sum();
    assert!(
        lost <= missed,
        "lost {lost}, told {missed}: {short:?}; {said:?}"
    );
}

fn order(place: Place, ours_comes_first: bool, ours_goes_first: bool) {
    both_count(&Order {
        place,
        ours_comes_first,
        ours_goes_first,
    });
}

#[test]
fn entries_ours_first_and_first_gone() {
    order(Place::Entry, true, true);
}

#[test]
fn entries_ours_first_and_last_gone() {
    order(Place::Entry, true, false);
}

#[test]
fn entries_ours_last_and_first_gone() {
    order(Place::Entry, false, true);
}

#[test]
fn entries_ours_last_and_last_gone() {
    order(Place::Entry, false, false);
}

#[test]
fn returns_ours_first_and_first_gone() {
    order(Place::Return, true, true);
}

#[test]
fn returns_ours_first_and_last_gone() {
    order(Place::Return, true, false);
}

#[test]
fn returns_ours_last_and_first_gone() {
    order(Place::Return, false, true);
}

#[test]
fn returns_ours_last_and_last_gone() {
    order(Place::Return, false, false);
}

/// Runs two sessions at the same functions; `first_goes` says which of them ends first, while the
/// kernel's probes are there.
fn two_sessions_and_the_kernel(place: Place, first_goes: bool) {
    let _turn = Turn::take();
    let mut setting = need!(Setting::new());
    let script = setting.counting(place);
    setting.run();
    let first = setting.ours(&script);
    setting.go_on();
    let second = setting.ours(&script);
    setting.go_on();
    setting.stop();
    setting.phase(1);
    let alone = setting.calls(CALLS);
    let probed = setting.attach_kernel(place);
    setting.phase(BOTH);
    let calls = calls_that_the_kernel_sees(&mut setting, &probed);
    setting.phase(3);
    setting.run();
    let (gone, left) = if first_goes {
        (first, second)
    } else {
        (second, first)
    };
    let gone = gone.interrupt();
    setting.go_on();
    setting.kernel.tell("off all");
    setting.go_on();
    setting.stop();
    setting.wait_hooked();
    setting.phase(ONE);
    setting.calls(CALLS);
    let left = left.interrupt();
    for ended in [&gone, &left] {
        let counts = counted(ended, BOTH);
        assert_ours_saw(&setting, &counts, calls, ended.missed(), &ended.stderr);
        assert_all(&setting, &counted(ended, 1), alone, &ended.stderr);
    }
    assert_all(&setting, &counted(&left, ONE), calls, &left.stderr);
    setting.finish();
}

pub fn assert_all(setting: &Setting, counts: &HashMap<String, u64>, calls: u64, said: &[String]) {
    let names = setting.functions.iter().map(|(name, _)| name);
    let wrong = names.filter(|name| counts.get(*name) != Some(&calls));
    let wrong: Vec<_> = wrong.map(|name| (name, counts.get(name))).collect();
    assert!(wrong.is_empty(), "not {calls}: {wrong:?}; {said:?}");
}

#[test]
fn entries_of_two_sessions_of_which_the_first_goes_first() {
    two_sessions_and_the_kernel(Place::Entry, true);
}

#[test]
fn entries_of_two_sessions_of_which_the_last_goes_first() {
    two_sessions_and_the_kernel(Place::Entry, false);
}

#[test]
fn returns_of_two_sessions_of_which_the_first_goes_first() {
    two_sessions_and_the_kernel(Place::Return, true);
}
