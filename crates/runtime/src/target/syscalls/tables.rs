//! The tables that say which programs run at which system calls.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

use beeline_agent::abi::syscalls::{self, CALL_NUMBERS, ENTER, EXIT, WATCHED, WATCHED_COMPACTLY};
use beeline_agent::abi::{TRAPS_NEEDED, UNDER_FILTER};

use beeline_uapi::nr;

use super::process_events::{MASKS, NEVER_COMPACT, PROCESS_EVENTS, SIGRETURN};
use super::{Attached, Calls};
use crate::backend::Edge;
use crate::error::Error;
use crate::target::memory::TargetMemory;

/// Publishes which programs run at which calls. From the next call on, exactly these run.
pub(super) fn publish_tables(memory: &mut TargetMemory, here: &Calls) -> Result<(), Error> {
    let gives_way = here.follows && here.links.is_empty();
    let manifest = memory.environment()?.manifest();
    manifest.gives_way.store(gives_way.into(), SeqCst);
    // Programs behind a return from a signal handler have to run before it.
    let behind_all = |one: &Attached| one.link.edge == Edge::Exit && one.link.number.is_none();
    let is_return_seen = here.links.iter().any(behind_all);
    let is_under_filter = memory.environment()?.record().flags.load(SeqCst) & UNDER_FILTER != 0;
    if is_under_filter {
        watch_behind_paths(memory, here)?;
    }
    for (edge, index) in [(Edge::Enter, ENTER), (Edge::Exit, EXIT)] {
        let mut places = BTreeMap::<_, Vec<_>>::new();
        for one in here.links.iter().filter(|one| one.link.edge == edge) {
            places.entry(one.link.number).or_default().push(one.place);
        }
        let all = places.remove(&None).unwrap_or_default();
        let environment = memory.environment_mut()?;
        // SAFETY: the record was placed in the home pool as a `Calls`.
        let old = unsafe { environment.home.get::<syscalls::Calls>(here.record) };
        let old_all = old.all[index].load(Relaxed);
        let old_each: Vec<_> = old.each[index]
            .iter()
            .map(|one| one.load(Relaxed))
            .collect();
        let common = environment.place_list_anew(&all, old_all)?;
        let mut lists = Vec::with_capacity(CALL_NUMBERS);
        for (number, old) in (0..).zip(old_each) {
            lists.push(match places.get(&Some(number)) {
                None => common,
                Some(own) => environment.place_list_anew(&[&all[..], own].concat(), old)?,
            });
        }
        let flags = environment.record().flags.load(SeqCst);
        let masks = match flags & TRAPS_NEEDED != 0 {
            true => MASKS[index],
            false => &[],
        };
        let events = match here.links.is_empty() && !here.follows {
            true => [&[][..], &[]],
            false => [PROCESS_EVENTS[index], masks],
        };
        let is_event = |number| events.iter().any(|events| events.contains(&number));
        // The agent marks these, and takes the mark away behind them, also when it marks no more.
        let is_at_work = here.follows || !here.links.is_empty();
        let has_paths = is_under_filter && (is_at_work || edge == Edge::Exit);
        let has_path = |number| has_paths && nr::path_argument(number).is_some();
        // SAFETY: the record was placed in the home pool as a `Calls`.
        let table = unsafe { environment.home.get::<syscalls::Calls>(here.record) };
        table.all[index].store(common as usize, Release);
        for (word, list) in table.each[index].iter().zip(&lists) {
            word.store(*list as usize, Release);
        }
        for (number, watched) in table.watched[index].iter().enumerate() {
            let list = lists.get(number).copied().unwrap_or(common);
            let how = match list {
                _ if is_event(number as libc::c_long) || has_path(number as u64) => WATCHED,
                _ if number == SIGRETURN && edge == Edge::Enter && is_return_seen => WATCHED,
                0 => 0,
                _ if environment.needs_registers(list) || NEVER_COMPACT.contains(&number) => {
                    WATCHED
                }
                _ => WATCHED_COMPACTLY,
            };
            watched.store(how, Release);
        }
    }
    Ok(())
}

/// Has the agent take marks away behind calls with paths, before it marks the first one.
fn watch_behind_paths(memory: &mut TargetMemory, here: &Calls) -> Result<(), Error> {
    let environment = memory.environment_mut()?;
    // SAFETY: the record was placed in the home pool as a `Calls`.
    let table = unsafe { environment.home.get::<syscalls::Calls>(here.record) };
    for (number, watched) in (0..).zip(&table.watched[EXIT]) {
        if nr::path_argument(number).is_some() {
            watched.store(WATCHED, Release);
        }
    }
    Ok(())
}
