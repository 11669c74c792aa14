//! `query-cpus-fast`: virtual CPUs, and the threads that run them here.

use std::collections::HashSet;

use serde_json::Value;

use crate::Error;

pub(crate) const COMMAND: &str = "query-cpus-fast";

/// A virtual CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vcpu {
    /// QEMU's number for it, from 0 on. A guest that was started with all of them numbers them
    /// alike.
    pub index: u32,
    /// The thread of QEMU's process that runs it, as this machine's kernel numbers threads.
    pub thread: i32,
}

/// Reads the virtual CPUs in the order of their numbers. No number and no thread comes twice: under
/// `-accel tcg,thread=single` one thread runs all, which is an error here.
pub(crate) fn read(answer: &Value) -> Result<Vec<Vcpu>, Error> {
    let entries = answer.as_array().ok_or_else(|| unexpected("no list"))?;
    let vcpus: Option<Vec<Vcpu>> = entries.iter().map(vcpu).collect();
    let mut vcpus = vcpus.ok_or_else(|| unexpected("an entry without cpu-index and thread-id"))?;
    vcpus.sort_by_key(|vcpu| vcpu.index);
    if vcpus.is_empty() {
        return Err(unexpected("there are none"));
    }
    let numbers: HashSet<_> = vcpus.iter().map(|vcpu| vcpu.index).collect();
    if numbers.len() != vcpus.len() {
        return Err(unexpected("two have one number"));
    }
    let threads: HashSet<_> = vcpus.iter().map(|vcpu| vcpu.thread).collect();
    if threads.len() != vcpus.len() {
        return Err(unexpected(
            "one thread runs several; QEMU has a thread for each with KVM, and with -accel tcg,thread=multi",
        ));
    }
    Ok(vcpus)
}

fn vcpu(entry: &Value) -> Option<Vcpu> {
    let thread = entry.get("thread-id")?.as_i64()?;
    Some(Vcpu {
        index: entry.get("cpu-index")?.as_u64()?.try_into().ok()?,
        thread: i32::try_from(thread).ok().filter(|thread| *thread > 0)?,
    })
}

fn unexpected(what: &str) -> Error {
    Error::Unexpected {
        command: COMMAND,
        what: what.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cpu(index: i64, thread: i64) -> Value {
        json!({ "cpu-index": index, "thread-id": thread, "qom-path": "/machine/unattached/device[0]" })
    }

    #[test]
    fn cpus_come_in_the_order_of_their_numbers() {
        let vcpus = read(&json!([cpu(1, 12), cpu(0, 11)])).unwrap();
        let pairs: Vec<_> = vcpus.iter().map(|it| (it.index, it.thread)).collect();
        assert_eq!(pairs, [(0, 11), (1, 12)]);
    }

    #[test]
    fn implausible_answers_are_named() {
        for (answer, why) in [
            (json!({}), "no list"),
            (json!([]), "none"),
            (json!([{ "cpu-index": 0 }]), "without"),
            (json!([cpu(0, 0)]), "without"),
            (json!([cpu(0, -1)]), "without"),
            (json!([cpu(0, 1 << 40)]), "without"),
            (json!([cpu(-1, 5)]), "without"),
            (json!([cpu(0, 5), cpu(0, 6)]), "one number"),
            (json!([cpu(0, 5), cpu(1, 5)]), "one thread"),
        ] {
            let error = read(&answer).unwrap_err().to_string();
            assert!(error.contains(why), "{answer}: {error}");
        }
    }
}
