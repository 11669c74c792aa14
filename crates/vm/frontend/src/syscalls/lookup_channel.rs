//! Look-up channels: further connections to the guest, by which the tool's processes look elements
//! up without the supervisor.
//!
//! A process that looks up often gets a fast path, as it does for prefetch, and then the socket of
//! a channel. The socket has a number so high that the tool's own files do not get there.
//! [`beeline_runtime::fast_path`] defines how the fast path uses it. If something is in the way,
//! the process stays with the supervisor.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use beeline_inject::procfs;
use beeline_runtime::fast_path::{KEY, MapByChannel, Prefetch, VALUE};
use beeline_supervisor::keys::{key_of, key_of_descriptor};
use beeline_supervisor::{Call, Heat, HotSites, Request};
use beeline_vm_protocol::lookup_channel::LookupChannel;
use parking_lot::{Mutex, MutexGuard};

use super::prefetch::Steps;
use crate::Guest;
use crate::connection::Connection;
use crate::objects::{Object, Objects};
use crate::sharing::{Sharing, may_be_stopped};

/// The highest number for a channel. New files get the lowest free number, so few tools ever get
/// there; each fork copies a table up to the highest.
const HIGHEST: u64 = 4_095;
/// With fewer numbers, a tool may come to use them all.
const LOWEST: u64 = 1_000;

/// The look-up channels of one tool.
pub(crate) struct LookupChannels {
    hot_sites: HotSites,
    /// Held while a channel is given, so that a process gets only one.
    giving: Mutex<()>,
    given: Mutex<Given>,
}

#[derive(Default)]
struct Given {
    /// The channels by their places on the board.
    channels: HashMap<usize, LookupChannel>,
    /// Threads with the instructions that get a fast path once their calls are answered.
    due: HashSet<(i32, u64)>,
    threads: HashMap<i32, Process>,
    /// True if there can be no channels, or none any more.
    is_over: bool,
}

/// The state of a thread's process.
#[derive(Clone, Copy, PartialEq)]
enum Process {
    /// The process has a fast path.
    Hooked,
    /// The process also has a channel, at this place.
    Connected(usize),
}

impl LookupChannels {
    /// Starts without a channel; there will never be one unless they are possible.
    pub(crate) fn new(are_possible: bool) -> Self {
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

    /// Ends all channels and allows no others: threads that wait for an answer stop waiting.
    pub(crate) fn end(&self) {
        let mut given = self.given();
        given.is_over = true;
        let channels = std::mem::take(&mut given.channels);
        drop(given);
        drop(channels);
    }

    /// Returns whether the instruction that made a call is to get a fast path for a channel's sake.
    /// Returns true only once.
    pub(crate) fn take_due(&self, request: &Request) -> bool {
        request.bpf_command().is_some() && self.given().due.remove(&(request.tid, request.ip))
    }

    /// Records that the thread's process has a new fast path: it may run another program, which has
    /// no channel yet.
    pub(crate) fn has_fast_path(&self, tid: i32) {
        self.given().threads.insert(tid, Process::Hooked);
    }

    /// Returns the state of the thread's process, if it may have a channel. `is_often`: it is to
    /// get a fast path when its call is answered.
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

    /// Keeps a channel, which a process can use from now on, unless it is too late for that.
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
        // Nothing else reports processes that are gone.
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
        self.given.lock()
    }
}

/// Offers the process that makes a call a channel.
pub(super) struct ChannelOffers<'a> {
    call: &'a Call<'a>,
    channels: &'a LookupChannels,
    connection: &'a Connection,
    objects: &'a Objects,
    board: &'a Prefetch,
    sharing: Option<&'a Sharing>,
    steps: Steps<'a>,
}

impl<'a> ChannelOffers<'a> {
    pub(super) fn new(guest: &'a Guest, call: &'a Call<'a>) -> Self {
        Self {
            call,
            channels: &guest.lookup_channels,
            connection: &guest.connection,
            objects: &guest.objects,
            board: &guest.prefetch,
            sharing: guest.sharing.as_deref(),
            steps: Steps::new(guest, call),
        }
    }

    /// Notes that the tool looks an element up in a map, by a descriptor, a key and a value of
    /// these lengths. A tool that does so often is given a channel to do it itself.
    pub(super) fn note(&self, map: &Arc<Object>, fd: i32, lens: (usize, usize)) {
        let channels = self.channels;
        // Data that the tool has written to an array's memory is sent before a look-up.
        let is_mapped = map.facts.is_some_and(|facts| facts.is_mappable_array());
        if !map.mode.read || is_mapped || lens.0 > KEY || lens.1 > VALUE {
            return;
        }
        let Some((_, request)) = self.call.memory.of_call() else {
            return;
        };
        let is_often = channels.hot_sites.count(request.tid, request.ip) == Some(Heat::Hot)
            && may_be_stopped(self.sharing);
        match channels.note(&request, is_often) {
            None => {}
            Some(Process::Hooked) => {
                self.call.let_others_lead();
                let connected = self.give_channel(&request).map(Process::Connected);
                let threads = &mut channels.given().threads;
                match connected {
                    Some(connected) => threads.insert(request.tid, connected),
                    // It is tried again when the thread seems to need another fast path.
                    None => threads.remove(&request.tid),
                };
            }
            Some(Process::Connected(_)) => self.list(map, request.tid, fd, lens),
        }
    }

    /// Lists a map for the tool's processes.
    fn list(&self, map: &Arc<Object>, tid: i32, fd: i32, (key_len, value_len): (usize, usize)) {
        let (objects, prefetch) = (self.objects, self.board);
        let Ok(key) = key_of_descriptor(tid, fd) else {
            return;
        };
        let file = (key.device, key.inode);
        // The number may be another map's meanwhile, and the file may have been forgotten before it
        // is listed.
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
            // Data fetched before is older than data from a channel.
            self.steps.give_no_more(map);
        }
    }

    /// Gives the process that makes this call a channel, if it has none; returns `None` if that is
    /// not possible.
    fn give_channel(&self, request: &Request) -> Option<usize> {
        let (channels, prefetch) = (self.channels, self.board);
        // Giving one for another thread may take long.
        let _alone = channels.giving.try_lock()?;
        let process = request.process();
        let place = prefetch.channel_of(process)?;
        if prefetch.is_given(place) {
            return Some(place);
        }
        free_number(request.tid).filter(|_| !has_filters(process))?;
        let channel = self.connection.join().ok()?;
        let file = key_of(&channel).ok()?;
        let (listener, call) = self.call.memory.of_call()?;
        // Checked again, because the connection took its time.
        let fd = free_number(request.tid)?;
        listener.replace(call.id, fd, channel.as_fd(), true).ok()?;
        let publish = || prefetch.give_channel(place, fd as u32, (file.device, file.inode));
        channels.keep(place, channel, prefetch, publish)?;
        Some(place)
    }
}

/// Returns whether a filter of the tool's own may forbid a thread the calls that channels need. The
/// supervisor's filter is one of those that the thread has.
fn has_filters(process: i32) -> bool {
    let of_file = |path: &Path| -> Option<u32> {
        let status = procfs::text(path).ok()?;
        let mut lines = status.lines();
        let count = lines.find_map(|line| line.strip_prefix("Seccomp_filters:"))?;
        count.trim().parse().ok()
    };
    let Some(own) = of_file(Path::new("/proc/self/status")) else {
        return true;
    };
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else {
        return true;
    };
    // A thread that is gone meanwhile does not need channels.
    let mut counts = threads
        .flatten()
        .filter_map(|thread| of_file(&thread.path().join("status")));
    counts.any(|count| count > own + 1)
}

/// Returns the highest number that a thread's files can have, if no file has it.
fn free_number(tid: i32) -> Option<i32> {
    let limits = std::fs::read_to_string(format!("/proc/{tid}/limits")).ok()?;
    let mut limits = limits.lines();
    let limit = limits.find_map(|line| line.strip_prefix("Max open files"))?;
    // If there is no limit, this is not a number.
    let limit = limit.split_whitespace().next()?.parse::<u64>();
    let highest = limit.unwrap_or(u64::MAX).checked_sub(1)?.min(HIGHEST);
    let is_free = || {
        let file = std::fs::symlink_metadata(format!("/proc/{tid}/fd/{highest}"));
        file.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    let number = (highest >= LOWEST && is_free()).then_some(highest)?;
    i32::try_from(number).ok()
}
