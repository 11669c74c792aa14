//! Sets of CPUs, and the machine's CPUs that share cores.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::str::FromStr;

/// An upper bound for the CPUs in a kernel's masks here (`CPU_SETSIZE`).
const MOST: u32 = 1024;

/// Host CPUs in the order in which virtual ones are put on them, each once: `2-5`, `0,2,4`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CpuList(pub Vec<u32>);

/// A text that is no list of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is no list of CPUs: {why}; lists are as 2-5 or 0,2,4")]
pub struct NoList {
    text: String,
    why: &'static str,
}

impl FromStr for CpuList {
    type Err = NoList;

    fn from_str(text: &str) -> Result<Self, NoList> {
        parse(text.trim()).map_err(|why| NoList {
            text: text.to_owned(),
            why,
        })
    }
}

fn parse(text: &str) -> Result<CpuList, &'static str> {
    let number = |text: &str| {
        text.parse::<u32>()
            .map_err(|_| "there is what is no number")
    };
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        if last >= MOST {
            return Err("numbers go to 1023");
        }
        if first > last {
            return Err("a range goes backwards");
        }
        cpus.extend(first..=last);
    }
    let different: BTreeSet<_> = cpus.iter().collect();
    if different.len() != cpus.len() {
        return Err("a CPU is there twice");
    }
    Ok(CpuList(cpus))
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cpus: Vec<String> = self.0.iter().map(u32::to_string).collect();
        f.write_str(&cpus.join(","))
    }
}

/// A core's hardware threads.
pub type Core = Vec<u32>;

/// Returns the cores that CPUs of a list belong to, each with those of its threads that are in the
/// list, in the order of the list. A CPU with a core that the kernel does not tell is one for
/// itself.
pub fn cores(cpus: &CpuList) -> Vec<Core> {
    let siblings = |cpu: &u32| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let list = fs::read_to_string(path).ok()?;
        list.parse::<CpuList>().ok()
    };
    group(cpus, siblings)
}

fn group(cpus: &CpuList, siblings: impl Fn(&u32) -> Option<CpuList>) -> Vec<Core> {
    let mut left = cpus.0.clone();
    let mut cores = Vec::new();
    while let Some(cpu) = left.first().copied() {
        let siblings = siblings(&cpu).unwrap_or_default().0;
        let (core, others) = left
            .into_iter()
            .partition(|it| *it == cpu || siblings.contains(it));
        cores.push(core);
        left = others;
    }
    cores
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_printed() {
        let list = |text: &str| text.parse::<CpuList>().map(|list| list.0);
        assert_eq!(list("0"), Ok(vec![0]));
        assert_eq!(list("4-6,1\n"), Ok(vec![4, 5, 6, 1]));
        for (text, why) in [
            ("", "no number"),
            ("a", "no number"),
            ("1,,2", "no number"),
            ("3-1", "backwards"),
            ("1,0-2", "twice"),
            ("0-1024", "1023"),
            ("99999999999", "no number"),
        ] {
            let error = list(text).unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert_eq!("4-6,1".parse::<CpuList>().unwrap().to_string(), "4,5,6,1");
    }

    #[test]
    fn cores_are_of_what_is_in_the_list() {
        // Threads n and n + 4 share a core, as many machines number them.
        let siblings = |cpu: &u32| (*cpu < 8).then(|| CpuList(vec![cpu % 4, cpu % 4 + 4]));
        let of = |text: &str| group(&text.parse().unwrap(), siblings);
        assert_eq!(of("0-7"), [[0, 4], [1, 5], [2, 6], [3, 7]]);
        assert_eq!(of("0-2,5"), [vec![0], vec![1, 5], vec![2]]);
        assert_eq!(of("9,8"), [[9], [8]]);
    }
}
