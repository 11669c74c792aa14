//! Finds the maps whose memory may be split.
//!
//! Processes that must not share memory can each have a copy of a map, a *shard*, if no program
//! sees a difference, and if the tool's view of the map can be put together from the shards. [`uses`]
//! says so for each map of a program; [`Use::and`] for programs that use a map together.
//!
//! A map is taken as unfit unless it is clear that it is not. What is allowed to differ:
//!
//! - There may be more elements in all shards than the map's `max_entries`; a program then creates
//!   an element where it would have failed. Ways that a program takes only if there is no room are
//!   not asked about the existence of elements.
//! - An LRU map drops elements later, for the same reason.
//! - A stack has one id in each shard. A program gets it in place of an error if another stack has its
//!   place, but in another shard.
//! - Ids of threads and processes that have ended are used again. A new process may not find the
//!   element that an old one of its id left in another shard, and two shards may have an element of
//!   that key.
//!
//! The programs are followed by an analysis that knows what registers and the stack hold: pointers,
//! constants, ids, a word of a map's element with something added to it, and on which maps each
//! value depends. Programs are judged by themselves: a map that is inside another map, or that the
//! tool has mapped into its memory, is for the caller to leave out.

mod analysis;
mod arithmetic;
mod branches;
mod calls;
mod record;
mod regions;
mod state;
mod step;
mod value;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use beeline_isa::Insn;
use beeline_uapi::MapType;

use crate::program::Map;
use record::Record;
use step::{Maps, has_keys};
use value::MapSet;

/// Longer programs are not looked at.
const MOST_INSNS: usize = 1 << 15;

/// The ways in which a map may be split, or not.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sharing {
    /// Programs do not change it: each shard is a copy of what the tool stores.
    ReadOnly,
    /// Programs add to words of its values, and learn nothing of it, not even which elements exist:
    /// the tool's view of an element is that it exists if it does in a shard, with the sums of these
    /// words, each modulo its size.
    ///
    /// A program may create elements with zeros, or with what it would have added. Of the value's
    /// other bytes, each shard has what the tool stored, or zeros. What the tool stores in the words
    /// must be in one shard only, with zeros in the others; an element that it creates or deletes
    /// must be, or not be, in all of them.
    Summed(Vec<Word>),
    /// Every key has the id of the current thread or process in the 4 bytes at this offset, so that
    /// no two processes use the same element: the tool's view is the union.
    PerProcess {
        /// The offset in the key.
        id: u32,
    },
    /// Programs only send events through it, each of which comes out of one shard.
    Stream,
    /// Programs only keep stacks in it, and get their ids. Shards must have different ids: the tool's
    /// view is the union.
    Stacks,
    /// Anything else.
    Whole(Reason),
}

/// A word of a map's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Word {
    /// The offset from the value's start.
    pub offset: u32,
    /// 4 or 8 bytes.
    pub size: u8,
}

/// The reason for which a map cannot be split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reason {
    /// A clause for the user, such as "a program branches on its values".
    pub why: &'static str,
    /// The instruction of the program, or of one of the programs.
    pub insn: usize,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (insn {})", self.why, self.insn)
    }
}

impl fmt::Display for Sharing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ReadOnly => f.write_str("read only"),
            Self::Summed(words) => match words.as_slice() {
                [word] => write!(f, "summed, {} bytes at {}", word.size, word.offset),
                words => write!(f, "summed, {} words", words.len()),
            },
            Self::PerProcess { id } => write!(f, "by process, with its id at {id} of the key"),
            Self::Stream => f.write_str("events"),
            Self::Stacks => f.write_str("stacks"),
            Self::Whole(reason) => write!(f, "whole: {reason}"),
        }
    }
}

/// The use of a map by one program or several, with every way to split it that they allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Use {
    read_only: Result<(), Reason>,
    summed: Result<BTreeSet<Word>, Reason>,
    per_process: Result<BTreeSet<u32>, Reason>,
    stream: Result<(), Reason>,
    stacks: Result<(), Reason>,
    by_value: Result<(), Reason>,
}

impl Use {
    /// Returns the use of a map of which nothing is known.
    pub fn whole(why: &'static str) -> Self {
        let reason = Reason { why, insn: 0 };
        Self {
            read_only: Err(reason),
            summed: Err(reason),
            per_process: Err(reason),
            stream: Err(reason),
            stacks: Err(reason),
            by_value: Err(reason),
        }
    }

    /// Fails unless programs change a map's elements by helpers only, and get along with copies of
    /// values when they read.
    ///
    /// # Errors
    ///
    /// The reason; another type of map than `HASH` is one.
    pub fn by_value(&self) -> Result<(), Reason> {
        self.by_value
    }

    /// Returns the use of a map that programs only send events through.
    pub fn events() -> Self {
        Self {
            stream: Ok(()),
            ..Self::whole("a program sends events through it")
        }
    }

    /// Returns the use of a map that something in the kernel goes through, `why` in words: all
    /// elements must be there, and those who use them by value may be elsewhere.
    pub fn whole_by_value(why: &'static str) -> Self {
        Self {
            by_value: Ok(()),
            ..Self::whole(why)
        }
    }

    /// Returns the use by programs with this use and programs with the other one, of one map.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let summed = both(&self.summed, &other.summed).and_then(|(one, two)| {
            let words: BTreeSet<Word> = one.union(two).copied().collect();
            check_words(words)
        });
        let per_process = both(&self.per_process, &other.per_process).and_then(|(one, two)| {
            let places: BTreeSet<u32> = one.intersection(two).copied().collect();
            match places.is_empty() {
                true => Err(Reason {
                    why: "programs have the id in different places of the key",
                    insn: 0,
                }),
                false => Ok(places),
            }
        });
        Self {
            read_only: both(&self.read_only, &other.read_only).map(|_| ()),
            summed,
            per_process,
            stream: both(&self.stream, &other.stream).map(|_| ()),
            stacks: both(&self.stacks, &other.stacks).map(|_| ()),
            by_value: both(&self.by_value, &other.by_value).map(|_| ()),
        }
    }

    /// Returns the best way to split the map.
    ///
    /// That of a map that is only read comes first. Sums come before unions, as they do not mind if
    /// an id is used again.
    pub fn sharing(&self) -> Sharing {
        if self.read_only.is_ok() {
            return Sharing::ReadOnly;
        }
        if self.stream.is_ok() {
            return Sharing::Stream;
        }
        if self.stacks.is_ok() {
            return Sharing::Stacks;
        }
        match (&self.summed, &self.per_process) {
            (Ok(words), _) => Sharing::Summed(words.iter().copied().collect()),
            (_, Ok(places)) => Sharing::PerProcess {
                id: places.first().copied().unwrap_or(0),
            },
            (Err(reason), Err(_)) => Sharing::Whole(*reason),
        }
    }

    fn of(map: &Map, record: Record) -> Self {
        use MapType as T;
        let table = matches!(
            map.map_type,
            T::HASH | T::PERCPU_HASH | T::ARRAY | T::PERCPU_ARRAY
        );
        let lru = matches!(map.map_type, T::LRU_HASH | T::LRU_PERCPU_HASH);
        let read = matches!(map.map_type, T::LPM_TRIE | T::PROG_ARRAY | T::CGROUP_ARRAY);
        let stream = matches!(map.map_type, T::RINGBUF | T::PERF_EVENT_ARRAY);
        let never = |why| Reason { why, insn: 0 };
        let first = |reasons: &[Option<Reason>]| match reasons.iter().flatten().next() {
            Some(reason) => Err(*reason),
            None => Ok(()),
        };
        let unfit = |fits: bool| (!fits).then_some(never("its type cannot be split"));
        let ruin = record.ruin.or_else(|| {
            let why = "its values have fields of the kernel's, such as locks and timers";
            (!map.fields.is_empty()).then_some(never(why))
        });
        let key = record.no_id.or_else(|| {
            let why = "keys do not all contain the thread's or process's id";
            record.ids.is_none().then_some(never(why))
        });
        Self {
            read_only: first(&[ruin, unfit(table || read), record.change, record.write]),
            summed: first(&[ruin, unfit(table), record.leak, record.write])
                .and_then(|()| check_words(record.words)),
            per_process: first(&[ruin, unfit((table || lru) && has_keys(map)), key])
                .map(|()| record.ids.unwrap_or_default()),
            stream: first(&[ruin, unfit(stream)]),
            stacks: first(&[ruin, unfit(map.map_type == T::STACK_TRACE)]),
            by_value: first(&[ruin, unfit(map.map_type == T::HASH), record.in_place]),
        }
    }
}

fn both<'a, T>(
    one: &'a Result<T, Reason>,
    two: &'a Result<T, Reason>,
) -> Result<(&'a T, &'a T), Reason> {
    match (one, two) {
        (Ok(one), Ok(two)) => Ok((one, two)),
        (Err(reason), _) | (_, Err(reason)) => Err(*reason),
    }
}

fn check_words(words: BTreeSet<Word>) -> Result<BTreeSet<Word>, Reason> {
    let mut end = 0;
    for word in &words {
        if word.offset < end {
            return Err(Reason {
                why: "programs add to words that overlap",
                insn: 0,
            });
        }
        end = word.offset + u32::from(word.size);
    }
    Ok(words)
}

/// Finds out how an accepted program uses each of its maps.
///
/// The instructions name maps by descriptor, as in [`Program`](crate::program::Program); those that
/// no path reaches should be gone, as each branch is assumed to go either way. The result has an
/// entry for each descriptor in `maps`.
pub fn uses(insns: &[Insn], maps: &[(i32, &Map)]) -> Vec<(i32, Use)> {
    let mut all: Vec<&Map> = Vec::new();
    let mut numbers = BTreeMap::new();
    for (fd, map) in maps {
        let known = all.iter().position(|known| known.id == map.id);
        let number = known.unwrap_or_else(|| {
            all.push(map);
            all.len() - 1
        });
        numbers.insert(*fd, number);
    }
    let whole = |why| {
        let each = maps.iter().map(|(fd, _)| (*fd, Use::whole(why)));
        each.collect()
    };
    if all.len() > MapSet::LIMIT {
        return whole("the program has too many maps");
    }
    if insns.len() > MOST_INSNS {
        return whole("the program is too long");
    }
    let table = Maps { all, numbers };
    let Some(records) = analysis::run(insns, &table) else {
        return whole("the program cannot be followed");
    };
    let uses = table.all.iter().zip(records);
    let uses: Vec<Use> = uses.map(|(map, record)| Use::of(map, record)).collect();
    let each = table.numbers.iter();
    each.map(|(fd, &number)| (*fd, uses[number].clone()))
        .collect()
}
