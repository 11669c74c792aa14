//! Lines: further connections to the guest, by which the tool's processes look elements up without the way through the door.
//!
//! A process that looks up often gets a shortcut, as it does for walks, and then the socket of a line, at a number so high that the tool's own
//! files do not come there. What its shortcut does with it is [`beeline_runtime::shortcut`]'s. Where something is in the way the process
//! stays with the door.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use beeline_runtime::shortcut::{KEY, MapByLine, VALUE};
use beeline_wire::line::Line;

use super::Guest;
use super::objects::Object;
use crate::call::Call;
use crate::fds::{key_of, key_of_descriptor};
use crate::notify::Request;
use crate::often::Often;

/// The highest number for a line. New files get the lowest number that is free, so few tools ever come there.
const HIGHEST: u64 = 16_383;
/// With fewer numbers a tool may come to use them all.
const LOWEST: u64 = 1_000;

/// Of one tool.
#[derive(Default)]
pub(crate) struct Lines {
    often: Often,
    /// Held while one is given, so that a process gets one only.
    giving: Mutex<()>,
    given: Mutex<Given>,
}

#[derive(Default)]
struct Given {
    /// By their places on the board.
    lines: HashMap<usize, Line>,
    /// Threads with their instructions that are to get a shortcut once their calls are answered.
    due: HashSet<(i32, u64)>,
    /// Threads of processes with shortcuts, with the places that their lines have.
    threads: HashMap<i32, Option<usize>>,
    /// There can be none, or none any more.
    is_over: bool,
}

impl Lines {
    /// All end, and there are no others: whoever waits for an answer waits no longer.
    pub(super) fn end(&self) {
        let mut given = self.given();
        given.is_over = true;
        let lines = std::mem::take(&mut given.lines);
        drop(given);
        drop(lines);
    }

    /// Is the instruction by which a call was made to get a shortcut for a line's sake? Said once.
    pub(super) fn take_due(&self, request: &Request) -> bool {
        request.nr == libc::SYS_bpf && self.given().due.remove(&(request.tid, request.ip))
    }

    /// The thread's process has a new shortcut: it may run another program, which has no line yet.
    pub(super) fn has_shortcut(&self, tid: i32) {
        self.given().threads.insert(tid, None);
    }

    fn given(&self) -> MutexGuard<'_, Given> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Call<'_, Guest> {
    /// The tool looks an element up in a map, by a descriptor, a key and a value of so many bytes: if it does so often, it is to do it itself
    /// some day.
    pub(super) fn offer_line(
        &self,
        map: &Arc<Object>,
        fd: i32,
        (key_len, value_len): (usize, usize),
    ) {
        let lines = &self.door.lines;
        let Some((_, request)) = self.memory.of_call() else {
            return;
        };
        if !map.mode.read || key_len > KEY || value_len > VALUE {
            return;
        }
        let is_often = lines.often.count(request.tid, request.ip) && self.door.may_be_stopped();
        let place = {
            let mut given = lines.given();
            if given.is_over {
                return;
            }
            if is_often {
                given.due.insert((request.tid, request.ip));
            }
            given.threads.get(&request.tid).copied()
        };
        match place {
            None => {}
            Some(None) => {
                self.let_others_lead();
                let place = self.give_line(&request);
                let mut given = lines.given();
                match place {
                    Some(place) => drop(given.threads.insert(request.tid, Some(place))),
                    // It is tried again when it gets another shortcut, or seems to need one.
                    None => drop(given.threads.remove(&request.tid)),
                }
            }
            Some(Some(_)) => self.list(map, request.tid, fd, (key_len, value_len)),
        }
    }

    /// Lets the tool's processes know a map.
    fn list(&self, map: &Arc<Object>, tid: i32, fd: i32, (key_len, value_len): (usize, usize)) {
        let (objects, walks) = (&self.door.objects, &self.door.walks);
        let Ok(key) = key_of_descriptor(tid, fd) else {
            return;
        };
        let file = (key.device, key.inode);
        // The number may have become another map's meanwhile; and who forgets the file may have done so before it is listed.
        if objects.is_of(&key, map) {
            walks.list(&MapByLine {
                file,
                handle: map.handle,
                key_len,
                value_len,
            });
            if !objects.is_of(&key, map) {
                walks.unlist(file);
            }
        }
    }

    /// Gives the process that makes this call a line, if it has none. `None` if that cannot be.
    fn give_line(&self, request: &Request) -> Option<usize> {
        let (lines, walks) = (&self.door.lines, &self.door.walks);
        // Another thread's may take long.
        let _alone = lines.giving.try_lock().ok()?;
        let place = walks.line_of(request.process())?;
        if walks.is_given(place) {
            return Some(place);
        }
        // A filter of the tool's own may not let pass what lines need.
        let own = i32::try_from(std::process::id()).ok()?;
        if filters_of(request.tid)? > filters_of(own)? + 1 {
            return None;
        }
        let line = match self.door.connection.join() {
            Ok(line) => line,
            Err(error) => {
                lines.given().is_over |= error.kind() == io::ErrorKind::Unsupported;
                return None;
            }
        };
        let file = key_of(&line).ok()?;
        let (listener, call) = self.memory.of_call()?;
        let fd = free_number(request.tid)?;
        listener.replace(call.id, fd, line.as_fd(), true).ok()?;
        let mut given = lines.given();
        if given.is_over {
            return None;
        }
        walks.give_line(place, fd as u32, (file.device, file.inode));
        // The place may have been another process's, which is gone.
        given.threads.retain(|_, known| *known != Some(place));
        let before = given.lines.insert(place, line);
        drop(given);
        drop(before);
        Some(place)
    }
}

/// How many seccomp filters a thread has; in the tool the door's is one of them.
fn filters_of(tid: i32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    let mut lines = status.lines();
    let count = lines.find_map(|line| line.strip_prefix("Seccomp_filters:"))?;
    count.trim().parse().ok()
}

/// The highest number that a thread's files can have, if none has it.
fn free_number(tid: i32) -> Option<i32> {
    let limits = std::fs::read_to_string(format!("/proc/{tid}/limits")).ok()?;
    let mut limits = limits.lines();
    let limit = limits.find_map(|line| line.strip_prefix("Max open files"))?;
    // Without a limit it is no number.
    let limit = limit.split_whitespace().next()?.parse::<u64>();
    let highest = limit.unwrap_or(u64::MAX).checked_sub(1)?.min(HIGHEST);
    let missing = |number: &u64| {
        let file = std::fs::symlink_metadata(format!("/proc/{tid}/fd/{number}"));
        file.is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    let number = Some(highest)
        .filter(|highest| *highest >= LOWEST)
        .filter(missing)?;
    i32::try_from(number).ok()
}
