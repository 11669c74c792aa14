//! The sources of programs.

use beeline_fuzz::Random;

use beeline_verifier::program::Map;

use crate::case::Case;
use crate::change::change;
use crate::corpus;
use crate::extras;
use crate::invent::{invent, invent_with};
use crate::worldly::worldly;

/// Programs that took the kernel more instructions than this are not changed: some changes make
/// loops of them.
const MOST_PROCESSED: u32 = 3000;

/// The programs to start from.
pub struct Sources {
    selftests: Vec<Case>,
    only: Option<String>,
}

impl Sources {
    pub fn new(only: Option<&str>) -> Self {
        let rows = corpus::read().unwrap_or_else(|why| {
            println!("without the kernel's own tests: {why}");
            Vec::new()
        });
        let is_short = |row: &corpus::Row| {
            let processed = row.recorded().processed;
            row.self_contained && processed.is_none_or(|number| number < MOST_PROCESSED)
        };
        let selftests = rows.into_iter().filter(is_short).map(|row| Case {
            kind: row.kind,
            insns: row.insns,
            maps: row.maps,
        });
        Self {
            selftests: selftests.collect(),
            only: only.map(str::to_owned),
        }
    }

    /// Returns the program of a seed.
    pub fn case(&self, seed: u64) -> Case {
        let mut random = Random::new(seed);
        random.bits();
        let source = self.only.as_deref().unwrap_or(match seed % 8 {
            0..2 => "random",
            2..4 => "extras",
            4..7 if !self.selftests.is_empty() => "selftests",
            _ => "worldly",
        });
        match source {
            "random" => invent(&mut random),
            "extras" => with_extras(&mut random),
            "worldly" => {
                let mut case = worldly(&mut random);
                change(&mut random, &mut case);
                case
            }
            _ => {
                let at = random.below(self.selftests.len() as u64) as usize;
                let mut case = self.selftests[at].clone();
                change(&mut random, &mut case);
                case
            }
        }
    }
}

/// Returns a program with all kinds of units but locks: the kernel would need types for them.
fn with_extras(random: &mut Random) -> Case {
    let mut case = loop {
        let case = invent_with(random, Some(extras::unit));
        if !extras::locks(&case.insns) {
            break case;
        }
    };
    extras::link(random, &mut case.insns);
    let is_locked = |map: &Map| !map.fields.is_empty();
    let maps = extras::maps().into_iter();
    case.maps.extend(maps.filter(|(_, map)| !is_locked(map)));
    case
}
