//! Notification of process deaths: one thread waits for all processes at once.
//!
//! A dead process may hold things in shared memory, and others wait until those are freed, so this
//! is not left to the next round.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use beeline_inject::Process;
use parking_lot::Mutex;
use rustix::event::{EventfdFlags, epoll, eventfd};

/// Watches processes until it is dropped.
#[derive(Debug)]
pub struct Deaths {
    shared: Arc<Watched>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Watched {
    epoll: OwnedFd,
    /// Ends the thread.
    end: OwnedFd,
    /// The processes by number. They keep the process's descriptor open.
    processes: Mutex<HashMap<u32, Process>>,
}

/// Stands for the end itself; no owner has this number.
const END: u64 = u64::MAX;

impl Deaths {
    /// Starts the thread. `died` is called with a process's number when it has ended.
    ///
    /// # Errors
    ///
    /// Those of `epoll_create1(2)`, `eventfd(2)`, `epoll_ctl(2)` and `pthread_create(3)`.
    pub fn start(died: impl Fn(u32) + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Watched {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            end: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            processes: Mutex::default(),
        });
        let data = epoll::EventData::new_u64(END);
        epoll::add(&shared.epoll, &shared.end, data, epoll::EventFlags::IN)?;
        let thread = std::thread::Builder::new().name("beeline-deaths".into());
        let thread = thread.spawn({
            let shared = shared.clone();
            move || shared.wait(died)
        })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Watches a process under a number of its own, and no more under a number that it had before.
    ///
    /// If that fails, its end is found in some other way, later.
    pub fn watch(&self, process: &Process, number: u32) {
        let mut processes = self.shared.processes.lock();
        let is_other = |other: &Process| other.pidfd().as_raw_fd() != process.pidfd().as_raw_fd();
        processes.retain(|_, other| is_other(other));
        processes.insert(number, process.clone());
        let (epoll, data) = (&self.shared.epoll, epoll::EventData::new_u64(number.into()));
        let added = epoll::add(epoll, process.pidfd(), data, epoll::EventFlags::IN);
        if added == Err(rustix::io::Errno::EXIST) {
            let _ = epoll::modify(epoll, process.pidfd(), data, epoll::EventFlags::IN);
        }
    }
}

impl Watched {
    fn wait(&self, died: impl Fn(u32)) {
        come_first();
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            let waited = epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                None,
            );
            match waited {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return,
            }
            for event in &events {
                match u32::try_from(event.data.u64()) {
                    Ok(number) => {
                        let mut processes = self.processes.lock();
                        if let Some(process) = processes.remove(&number) {
                            // Under the lock, as it may just be being watched anew.
                            let _ = epoll::delete(&self.epoll, process.pidfd());
                        }
                        drop(processes);
                        died(number);
                    }
                    Err(_) => return,
                }
            }
        }
    }
}

/// Makes this thread run before all ordinary ones, where that is allowed: others wait for what it
/// frees, some of them busily, and it never has much to do.
fn come_first() {
    const LOWEST: libc::sched_param = libc::sched_param { sched_priority: 1 };
    let policy = libc::SCHED_RR | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the call reads the parameter and concerns the calling thread alone.
    unsafe { libc::sched_setscheduler(0, policy, &LOWEST) };
}

impl Drop for Deaths {
    fn drop(&mut self) {
        // Fails only when the count is full, and then the thread wakes anyway.
        let _ = rustix::io::write(&self.shared.end, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};
    use std::sync::mpsc::channel;

    #[test]
    fn an_end_is_told_by_the_last_number() {
        let (sender, ended) = channel();
        let deaths = Deaths::start(move |number| sender.send(number).unwrap()).unwrap();
        let mut children = [(); 2].map(|()| {
            let mut command = Command::new("cat");
            command.stdin(Stdio::piped()).spawn().unwrap()
        });
        let processes = children.each_ref().map(|child| child.id() as i32);
        let [one, other] = processes.map(|pid| Process::open(pid).unwrap());
        deaths.watch(&one, 1);
        deaths.watch(&one, 2);
        deaths.watch(&other, 3);
        for (child, number) in children.iter_mut().zip([2, 3]) {
            child.kill().unwrap();
            assert_eq!(ended.recv().unwrap(), number);
        }
        drop(deaths);
        assert!(ended.try_recv().is_err());
        for child in &mut children {
            child.wait().unwrap();
        }
    }
}
