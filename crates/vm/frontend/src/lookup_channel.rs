//! Look-up channels: further connections to the guest, by which the tool's processes look elements up without the way through the supervisor.
//!
//! A process that looks up often gets a fast path, as it does for prefetch, and then the socket of a channel, at a number so high that the tool's own
//! files do not come there. What its fast path does with it is [`beeline_runtime::fast_path`]'s. Where something is in the way the process
//! stays with the supervisor.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use beeline_runtime::fast_path::{KEY, MapByChannel, Prefetch, VALUE};
use beeline_runtime::proc;
use beeline_supervisor::keys::{key_of, key_of_descriptor};
use beeline_supervisor::{HotSites, Request};
use beeline_vm_protocol::lookup_channel::LookupChannel;

use crate::Handler;
use crate::objects::Object;

/// The highest number for a channel. New files get the lowest number that is free, so few tools ever come there; each fork copies a table up to
/// the highest.
const HIGHEST: u64 = 4_095;
/// With fewer numbers a tool may come to use them all.
const LOWEST: u64 = 1_000;

/// Of one tool.
pub(crate) struct LookupChannels {
    hot_sites: HotSites,
    /// Held while one is given, so that a process gets one only.
    giving: Mutex<()>,
    given: Mutex<Given>,
}

#[derive(Default)]
struct Given {
    /// By their places on the board.
    channels: HashMap<usize, LookupChannel>,
    /// Threads with their instructions that are to get a fast path once their calls are answered.
    due: HashSet<(i32, u64)>,
    threads: HashMap<i32, Process>,
    /// There can be none, or none any more.
    is_over: bool,
}

/// What a thread's process has.
#[derive(Clone, Copy, PartialEq)]
enum Process {
    /// A fast path.
    Hooked,
    /// And a channel, at this place.
    Connected(usize),
}

impl LookupChannels {
    /// None yet, or never.
    pub(super) fn new(are_possible: bool) -> Self {
        let given = Given {
            is_over: !are_possible,
            ..Given::default()
        };
        Self {
            hot_sites: HotSites::default(),
            giving: Mutex::default(),
            given: Mutex::new(given),
        }
    }

    /// All end, and there are no others: whoever waits for an answer waits no longer.
    pub(super) fn end(&self) {
        let mut given = self.given();
        given.is_over = true;
        let channels = std::mem::take(&mut given.channels);
        drop(given);
        drop(channels);
    }

    /// Is the instruction by which a call was made to get a fast path for a channel's sake? Said once.
    pub(super) fn take_due(&self, request: &Request) -> bool {
        request.nr == libc::SYS_bpf && self.given().due.remove(&(request.tid, request.ip))
    }

    /// The thread's process has a new fast path: it may run another program, which has no channel yet.
    pub(super) fn has_fast_path(&self, tid: i32) {
        self.given().threads.insert(tid, Process::Hooked);
    }

    /// What the thread's process has, if it may have a channel. `is_often`: it is to get a fast path when its call is answered.
    fn note(&self, request: &Request, is_often: bool) -> Option<Process> {
        let mut given = self.given();
        if given.is_over {
            return None;
        }
        if is_often {
            given.due.insert((request.tid, request.ip));
        }
        given.threads.get(&request.tid).copied()
    }

    /// A process can use a channel from now on, unless it is too late for that.
    fn keep(
        &self,
        place: usize,
        channel: LookupChannel,
        prefetch: &Prefetch,
        publish: impl FnOnce(),
    ) -> Option<()> {
        let mut given = self.given();
        if given.is_over {
            return None;
        }
        publish();
        // Of processes that are gone nobody else tells.
        let (left, gone): (HashMap<_, _>, HashMap<_, _>) = std::mem::take(&mut given.channels)
            .into_iter()
            .partition(|(other, _)| *other != place && prefetch.is_owned(*other));
        given.channels = left;
        given.threads.retain(|_, process| match process {
            Process::Connected(other) => !gone.contains_key(other),
            Process::Hooked => true,
        });
        given.channels.insert(place, channel);
        drop(given);
        drop(gone);
        Some(())
    }

    fn given(&self) -> MutexGuard<'_, Given> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handler<'_> {
    /// The tool looks an element up in a map, by a descriptor, a key and a value of so many bytes: if it does so often, it is to do it itself
    /// some day.
    pub(super) fn offer_line(&self, map: &Arc<Object>, fd: i32, lens: (usize, usize)) {
        let channels = &self.guest.lookup_channels;
        // What the tool has written to an array's memory is sent before it is looked up.
        let is_mapped = map.facts.is_some_and(|facts| facts.is_mappable_array());
        if !map.mode.read || is_mapped || lens.0 > KEY || lens.1 > VALUE {
            return;
        }
        let Some((_, request)) = self.memory.of_call() else {
            return;
        };
        let is_often =
            channels.hot_sites.count(request.tid, request.ip) && self.guest.may_be_stopped();
        match channels.note(&request, is_often) {
            None => {}
            Some(Process::Hooked) => {
                self.let_others_lead();
                let connected = self.give_channel(&request).map(Process::Connected);
                let threads = &mut channels.given().threads;
                match connected {
                    Some(connected) => threads.insert(request.tid, connected),
                    // It is tried again when it seems to need another fast path.
                    None => threads.remove(&request.tid),
                };
            }
            Some(Process::Connected(_)) => self.list(map, request.tid, fd, lens),
        }
    }

    /// Lets the tool's processes know a map.
    fn list(&self, map: &Arc<Object>, tid: i32, fd: i32, (key_len, value_len): (usize, usize)) {
        let (objects, prefetch) = (&self.guest.objects, &self.guest.prefetch);
        let Ok(key) = key_of_descriptor(tid, fd) else {
            return;
        };
        let file = (key.device, key.inode);
        // The number may have become another map's meanwhile; and who forgets the file may have done so before it is listed.
        if !objects.is_of(&key, map) {
            return;
        }
        let is_new = prefetch.list(&MapByChannel {
            file,
            handle: map.handle,
            key_len,
            value_len,
        });
        if !objects.is_of(&key, map) {
            prefetch.unlist(file);
        } else if is_new {
            // What was fetched before is older than what a channel gives.
            self.give_no_more(map);
        }
    }

    /// Gives the process that makes this call a channel, if it has none; `None` if that cannot be.
    fn give_channel(&self, request: &Request) -> Option<usize> {
        let (channels, prefetch) = (&self.guest.lookup_channels, &self.guest.prefetch);
        // Another thread's may take long.
        let _alone = channels.giving.try_lock().ok()?;
        let process = request.process();
        let place = prefetch.channel_of(process)?;
        if prefetch.is_given(place) {
            return Some(place);
        }
        free_number(request.tid).filter(|_| !has_filters(process))?;
        let channel = self.guest.connection.join().ok()?;
        let file = key_of(&channel).ok()?;
        let (listener, call) = self.memory.of_call()?;
        // Again, as that took its time.
        let fd = free_number(request.tid)?;
        listener.replace(call.id, fd, channel.as_fd(), true).ok()?;
        let publish = || prefetch.give_channel(place, fd as u32, (file.device, file.inode));
        channels.keep(place, channel, prefetch, publish)?;
        Some(place)
    }
}

/// May a thread of the tool's be forbidden what channels need, by a filter of its own? The supervisor's is one of those that it has.
fn has_filters(process: i32) -> bool {
    let of_file = |path: &Path| -> Option<u32> {
        let status = proc::text(path).ok()?;
        let mut channels = status.lines();
        let count = channels.find_map(|channel| channel.strip_prefix("Seccomp_filters:"))?;
        count.trim().parse().ok()
    };
    let Some(own) = of_file(Path::new("/proc/self/status")) else {
        return true;
    };
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else {
        return true;
    };
    // A thread that is gone meanwhile has no use for them.
    let mut counts = threads
        .flatten()
        .filter_map(|thread| of_file(&thread.path().join("status")));
    counts.any(|count| count > own + 1)
}

/// The highest number that a thread's files can have, if none has it.
fn free_number(tid: i32) -> Option<i32> {
    let limits = std::fs::read_to_string(format!("/proc/{tid}/limits")).ok()?;
    let mut limits = limits.lines();
    let limit = limits.find_map(|channel| channel.strip_prefix("Max open files"))?;
    // Without a limit it is no number.
    let limit = limit.split_whitespace().next()?.parse::<u64>();
    let highest = limit.unwrap_or(u64::MAX).checked_sub(1)?.min(HIGHEST);
    let is_free = || {
        let file = std::fs::symlink_metadata(format!("/proc/{tid}/fd/{highest}"));
        file.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    let number = (highest >= LOWEST && is_free()).then_some(highest)?;
    i32::try_from(number).ok()
}
