//! The threads that run virtual CPUs, and where the kernel lets them run.

use std::collections::BTreeMap;
use std::fs;

use beeline_vm_qmp::Vcpu;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use crate::Error;
use crate::cpus::CpuList;

/// A virtual CPU's thread.
#[derive(Debug, Clone)]
struct Thread {
    pid: Pid,
    /// The time of its start, in the kernel's ticks: another thread with its number has another
    /// one.
    started: u64,
    /// The CPUs where it could run before.
    before: CpuSet,
    /// The CPU where it is pinned.
    pinned: Option<u32>,
}

/// All threads of a virtual machine's CPUs. When dropped, they are as they were before.
#[derive(Debug)]
pub(crate) struct Threads {
    threads: BTreeMap<u32, Thread>,
}

/// A change to a virtual CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// It runs on one CPU of the host from now on.
    Pinned {
        /// Its number.
        vcpu: u32,
        /// Its thread on the host.
        thread: i32,
        /// The CPU.
        host: u32,
    },
    /// It runs where it could before.
    Released {
        /// Its number.
        vcpu: u32,
        /// Its thread on the host.
        thread: i32,
    },
}

impl Threads {
    /// Looks at the threads that QEMU names. They have to be of one process.
    pub(crate) fn new(vcpus: &[Vcpu]) -> Result<Self, Error> {
        let mut threads = BTreeMap::new();
        let mut process = None;
        for vcpu in vcpus {
            let gone = || Error::NoThread {
                vcpu: vcpu.index,
                thread: vcpu.thread,
            };
            let pid = Pid::from_raw(vcpu.thread).ok_or_else(gone)?;
            let of = process_of(pid).ok_or_else(gone)?;
            if *process.get_or_insert(of) != of {
                return Err(Error::Strangers);
            }
            let thread = Thread {
                pid,
                started: started(pid).ok_or_else(gone)?,
                before: sched_getaffinity(Some(pid)).map_err(|errno| Error::Affinity {
                    vcpu: vcpu.index,
                    thread: vcpu.thread,
                    cause: errno.into(),
                })?,
                pinned: None,
            };
            threads.insert(vcpu.index, thread);
        }
        Ok(Self { threads })
    }

    /// Returns the CPUs where all of them may run.
    pub(crate) fn common(&self) -> CpuList {
        let is_common = |cpu: &u32| {
            let mut threads = self.threads.values();
            threads.all(|thread| thread.before.is_set(*cpu as usize))
        };
        let cpus = (0..CpuSet::MAX_CPU as u32).filter(is_common);
        CpuList(cpus.collect())
    }

    /// Pins these virtual CPUs, and no others. Failures are reported, and the rest is done. A
    /// virtual CPU that cannot be pinned stays where it may run.
    pub(crate) fn apply(&mut self, pins: &BTreeMap<u32, u32>) -> Vec<Result<Change, Error>> {
        let mut changes = Vec::new();
        for (vcpu, thread) in &mut self.threads {
            let wanted = pins.get(vcpu).copied();
            if thread.pinned != wanted {
                changes.push(thread.set(*vcpu, wanted));
            }
        }
        changes
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // A thread that cannot be restored has ended.
        let _ = self.apply(&BTreeMap::new());
    }
}

impl Thread {
    fn set(&mut self, vcpu: u32, wanted: Option<u32>) -> Result<Change, Error> {
        let number = self.pid.as_raw_nonzero().get();
        // It is not tried again and again.
        self.pinned = wanted;
        if started(self.pid) != Some(self.started) {
            return Err(Error::NoThread {
                vcpu,
                thread: number,
            });
        }
        let set = match wanted {
            Some(host) => {
                let mut set = CpuSet::new();
                set.set(host as usize);
                set
            }
            None => self.before,
        };
        sched_setaffinity(Some(self.pid), &set).map_err(|errno| Error::Affinity {
            vcpu,
            thread: number,
            cause: errno.into(),
        })?;
        Ok(match wanted {
            Some(host) => Change::Pinned {
                vcpu,
                thread: number,
                host,
            },
            None => Change::Released {
                vcpu,
                thread: number,
            },
        })
    }
}

/// Returns the start time in a thread's `stat`. Its second field may hold any character.
fn started(pid: Pid) -> Option<u64> {
    const START: usize = 22;
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    // The first behind the name is the third.
    rest.split_whitespace().nth(START - 3)?.parse().ok()
}

/// Returns the process that a thread belongs to.
fn process_of(pid: Pid) -> Option<i32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let mut lines = status.lines();
    let line = lines.find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};
    use std::thread::JoinHandle;

    /// A thread that waits until it is dropped.
    struct Waiting {
        tid: i32,
        _end: Sender<()>,
        _thread: JoinHandle<()>,
    }

    impl Waiting {
        fn start() -> Waiting {
            let (end, ended) = channel::<()>();
            let (tell, told) = channel();
            let thread = std::thread::spawn(move || {
                let tid = rustix::thread::gettid().as_raw_nonzero().get();
                tell.send(tid).expect("the test waits for it");
                let _ = ended.recv();
            });
            Waiting {
                tid: told.recv().expect("the thread tells it"),
                _end: end,
                _thread: thread,
            }
        }

        fn cpus(&self) -> CpuSet {
            sched_getaffinity(Pid::from_raw(self.tid)).expect("it is alive")
        }
    }

    fn vcpus(threads: &[&Waiting]) -> Vec<Vcpu> {
        let threads = threads.iter().zip(0..);
        let vcpus = threads.map(|(thread, index)| Vcpu {
            index,
            thread: thread.tid,
        });
        vcpus.collect()
    }

    #[test]
    fn threads_are_pinned_and_restored() {
        let (first, second) = (Waiting::start(), Waiting::start());
        let before = first.cpus();
        let mut threads = Threads::new(&vcpus(&[&first, &second])).expect("they are ours");
        let host = *threads.common().0.last().expect("a CPU");
        let changes = threads.apply(&BTreeMap::from([(1, host)]));
        assert!(
            matches!(changes[..], [Ok(Change::Pinned { vcpu: 1, thread, host: on })] if thread == second.tid && on == host),
            "{changes:?}"
        );
        assert_eq!(second.cpus().count(), 1);
        assert!(second.cpus().is_set(host as usize));
        assert_eq!(first.cpus(), before);
        assert!(threads.apply(&BTreeMap::from([(1, host)])).is_empty());

        let changes = threads.apply(&BTreeMap::new());
        assert!(
            matches!(changes[..], [Ok(Change::Released { vcpu: 1, .. })]),
            "{changes:?}"
        );
        assert_eq!(second.cpus(), before);

        let changes = threads.apply(&BTreeMap::from([(0, host), (1, host), (7, host)]));
        assert_eq!(changes.len(), 2, "{changes:?}");
        assert_eq!(first.cpus().count(), 1);
        drop(threads);
        assert_eq!((first.cpus(), second.cpus()), (before, before));
    }

    #[test]
    fn another_thread_with_the_same_number_is_left_alone() {
        let thread = Waiting::start();
        let before = thread.cpus();
        let mut threads = Threads::new(&vcpus(&[&thread])).expect("it is ours");
        let host = threads.common().0[0];
        for thread in threads.threads.values_mut() {
            thread.started += 1;
        }
        let changes = threads.apply(&BTreeMap::from([(0, host)]));
        assert!(
            matches!(changes[..], [Err(Error::NoThread { vcpu: 0, .. })]),
            "{changes:?}"
        );
        drop(threads);
        assert_eq!(thread.cpus(), before);
    }

    #[test]
    fn threads_of_several_processes_are_refused() {
        let thread = Waiting::start();
        let mut vcpus = vcpus(&[&thread]);
        vcpus.push(Vcpu {
            index: 1,
            thread: 1,
        });
        assert!(matches!(Threads::new(&vcpus), Err(Error::Strangers)));
        vcpus[1].thread = i32::MAX;
        let missing = Threads::new(&vcpus);
        assert!(matches!(missing, Err(Error::NoThread { vcpu: 1, .. })));
    }
}
