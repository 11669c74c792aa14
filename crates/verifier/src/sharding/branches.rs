//! Branches, among them those on the existence of an element.

use beeline_isa::{Cond, Operand};

use super::state::{Open, State};
use super::step::*;
use super::value::*;

/// The ways on from a branch.
#[derive(Debug)]
pub(super) struct Ways {
    pub taken: State,
    pub not_taken: State,
    /// The map by the existence of an element of which the ways are chosen.
    pub by_existence: Option<usize>,
    /// The way that is taken only if a map has no room, if there is one.
    pub failing: Option<Failing>,
}

/// The way that is taken only if a map has no room.
///
/// Such a way says nothing of who shares the map: the existence of its elements is not asked about
/// there. With shards there is more room than with one table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Failing {
    pub map: usize,
    /// True if it is the way of the branch if taken.
    pub if_taken: bool,
}

impl Step<'_> {
    /// Follows `if dst cond src`.
    pub fn branch(&mut self, cond: Cond, wide: bool, dst: u8, src: Operand) -> Ways {
        let (one, two) = (self.state.reg(dst).clone(), self.operand(src));
        match (&one.kind, two.as_const(), cond) {
            (
                Kind::Element {
                    place,
                    offset: Offset::At(0),
                    null,
                },
                Some(0),
                Cond::Equal | Cond::NotEqual,
            ) if wide && *null != Null::Never && one.taint == MapSet::default() => {
                return self.null_check(place, *null, cond == Cond::Equal);
            }
            (&Kind::Done { map, .. }, Some(number), _)
                if wide && one.taint == MapSet::default() =>
            {
                // Results are 0 and negative error numbers.
                let failing = match (cond, number.cast_signed()) {
                    (Cond::Equal | Cond::SignedGreaterEqual, 0) | (Cond::SignedGreater, -1) => {
                        Some(false)
                    }
                    (Cond::NotEqual | Cond::SignedLess, 0) | (Cond::SignedLessEqual, -1) => {
                        Some(true)
                    }
                    _ => None,
                };
                if let Some(if_taken) = failing {
                    return self.ways(Some(Failing { map, if_taken }));
                }
            }
            _ => {}
        }
        self.give_up(&one, BRANCHES);
        self.give_up(&two, BRANCHES);
        self.ways(None)
    }

    fn ways(&self, failing: Option<Failing>) -> Ways {
        let mut ways = Ways {
            taken: self.state.clone(),
            not_taken: self.state.clone(),
            by_existence: None,
            failing,
        };
        if let Some(Failing { map, if_taken }) = failing {
            let failed = if if_taken {
                &mut ways.taken
            } else {
                &mut ways.not_taken
            };
            failed.open.retain(|open| open.place.map != map);
        }
        ways
    }

    fn null_check(&mut self, place: &Place, null: Null, taken_if_null: bool) -> Ways {
        let keyed = has_keys(self.maps.all[place.map]);
        // Of an element that was created before the look-up it is known that it was there.
        let failing = (keyed && null == Null::NoRoom).then_some(Failing {
            map: place.map,
            if_taken: taken_if_null,
        });
        let by_existence = keyed && null != Null::NoRoom;
        let mut ways = self.ways(failing);
        ways.by_existence = by_existence.then_some(place.map);
        if by_existence && self.state.open.iter().any(|open| open.branch == self.at) {
            // In a loop, with the ways of the last round still apart.
            self.records.leak(MapSet::one(place.map), MISSING);
        }
        for (state, is_null) in [
            (&mut ways.taken, taken_if_null),
            (&mut ways.not_taken, !taken_if_null),
        ] {
            state.settle(place, is_null);
            if !keyed {
                // Beyond the end of an array nothing is ever stored, in any shard.
                state.learn(place, !is_null);
                continue;
            }
            if !is_null || null == Null::Missing {
                state.learn(place, !is_null);
            }
            if by_existence {
                state.open.retain(|open| open.branch != self.at);
                state.open.push(Open {
                    branch: self.at,
                    place: place.clone(),
                    effect: Some(Vec::new()),
                });
                state.open.sort_by_key(|open| open.branch);
            }
        }
        ways
    }
}
