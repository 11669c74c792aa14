//! The ways between a branch and the instruction where they meet again.

use std::collections::{BTreeMap, BTreeSet};

use crate::flow::{Flow, Function};

/// Stands for the end of a function as a place where ways meet.
pub(super) const EXIT: usize = usize::MAX;

/// The ways from a branch.
#[derive(Debug)]
pub(super) struct Region {
    /// The place where all of them meet.
    pub end: usize,
    within: BTreeSet<usize>,
}

impl Region {
    pub fn has(&self, at: usize) -> bool {
        self.within.contains(&at)
    }
}

/// Finds the ways from branches on the existence of elements, each with its map. Edges that are
/// `pruned` for that map do not count.
pub(super) fn find(
    flow: &Flow,
    function: Function,
    branches: &BTreeMap<usize, usize>,
    pruned: &BTreeSet<(usize, usize, usize)>,
) -> BTreeMap<usize, Region> {
    let maps: BTreeSet<usize> = branches.values().copied().collect();
    let of_map = |map| {
        let branches = branches.iter().filter(move |(_, of)| **of == map);
        let branches = branches.map(|(branch, _)| *branch).collect();
        find_for(flow, function, branches, |from, to| {
            pruned.contains(&(from, to, map))
        })
    };
    maps.into_iter().flat_map(of_map).collect()
}

fn find_for(
    flow: &Flow,
    function: Function,
    branches: Vec<usize>,
    is_pruned: impl Fn(usize, usize) -> bool,
) -> Vec<(usize, Region)> {
    let next = |at: usize| {
        let all: Vec<usize> = flow.successors(at).collect();
        let kept = all.iter().copied().filter(|&to| !is_pruned(at, to));
        let kept: Vec<usize> = kept.collect();
        if all.is_empty() { vec![EXIT] } else { kept }
    };
    let meets = post_dominators(function, &next);
    let region = |branch: usize| {
        let end = meets.get(&branch).copied().unwrap_or(EXIT);
        let mut within = BTreeSet::new();
        let mut pending: Vec<usize> = flow.successors(branch).collect();
        while let Some(at) = pending.pop() {
            if at != end && within.insert(at) {
                pending.extend(flow.successors(at));
            }
        }
        (branch, Region { end, within })
    };
    branches.into_iter().map(region).collect()
}

/// Returns the immediate post-dominator of each instruction from which the end can be reached.
fn post_dominators(
    function: Function,
    next: &impl Fn(usize) -> Vec<usize>,
) -> BTreeMap<usize, usize> {
    let mut before: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for at in function.start..function.end {
        for to in next(at) {
            before.entry(to).or_default().push(at);
        }
    }
    let order = from_the_end(&before);
    let place: BTreeMap<usize, usize> = order.iter().enumerate().map(|(n, at)| (*at, n)).collect();
    // By place in the order, which begins with the end; each one's dominator has a lower place.
    let mut dominator: Vec<Option<usize>> = vec![None; order.len()];
    if let Some(end) = dominator.first_mut() {
        *end = Some(0);
    }
    let mut changed = true;
    while changed {
        changed = false;
        for (n, &at) in order.iter().enumerate().skip(1) {
            let mut found: Option<usize> = None;
            for to in next(at) {
                let Some(&to) = place.get(&to) else { continue };
                if dominator[to].is_some() {
                    found = Some(found.map_or(to, |other| meet(&dominator, other, to)));
                }
            }
            changed |= dominator[n] != found;
            dominator[n] = found;
        }
    }
    let each = order.iter().zip(&dominator).skip(1);
    each.filter_map(|(&at, found)| Some((at, order[(*found)?])))
        .collect()
}

fn meet(dominator: &[Option<usize>], mut one: usize, mut two: usize) -> usize {
    while one != two {
        let (high, low) = (one.max(two), one.min(two));
        (one, two) = (dominator[high].unwrap_or(0), low);
    }
    one
}

/// Returns the instructions from which the end can be reached, in reverse post-order.
fn from_the_end(before: &BTreeMap<usize, Vec<usize>>) -> Vec<usize> {
    let mut seen = BTreeSet::from([EXIT]);
    let mut order = Vec::new();
    let mut pending = vec![(EXIT, 0)];
    while let Some((at, child)) = pending.pop() {
        match before.get(&at).and_then(|list| list.get(child)) {
            Some(&from) => {
                pending.push((at, child + 1));
                if seen.insert(from) {
                    pending.push((from, 0));
                }
            }
            None => order.push(at),
        }
    }
    order.reverse();
    order
}
