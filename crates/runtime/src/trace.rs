//! The trace pipe: it carries lines that programs print with `bpf_trace_printk` from the processes
//! to the readers.
//!
//! Lines lie in a ring buffer that every process with a printing program maps. Without a reader
//! they stay there, as in the kernel's trace buffer; when it is full, new ones are dropped and
//! counted. A tool that opens `trace_pipe` gets a pipe, which one thread fills as far as it has
//! room. As in the kernel, a line comes out once, whichever reader gets it.

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread::JoinHandle;

use beeline_agent::abi::TraceLine;
use beeline_maps::ringbuf::{self, Record};
use beeline_uapi::flags::RINGBUF_HDR_SZ;
use beeline_uapi::limits::MAX_BPRINTF_BUF;
use beeline_uapi::{Errno, MapType};
use beeline_verifier::sharding::Use;
use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::OFlags;
use rustix::io::Errno as OsError;
use rustix::pipe::{PipeFlags, pipe_with};

use crate::backend::{Id, MapSpec, SpecialFields};
use crate::budget::Budget;
use crate::map::MapObject;
use crate::notifier::{Notifier, Source, wakeup_fd};

/// The size of the buffer in bytes: about as much as the kernel's has for one CPU.
const BYTES: u32 = 1 << 20;
/// The most records that it holds. While one is read, a hostile process can always publish another.
const MOST_RECORDS: u32 = BYTES / RINGBUF_HDR_SZ;
/// The kernel's flags for a program at a user-space probe: interrupts on, and no preemption.
const FLAGS: &str = "...11";

/// The trace buffer of a session.
pub struct Trace {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The state that the thread works on.
struct Shared {
    map: Arc<MapObject>,
    /// Pipes that tools read from.
    pipes: Mutex<Vec<OwnedFd>>,
    /// Written when there is a new pipe, or no more work.
    changed: OwnedFd,
    stop: AtomicBool,
}

impl Trace {
    /// Creates an empty buffer.
    ///
    /// # Errors
    ///
    /// Those of [`MapObject::new`] and of `eventfd(2)`.
    pub fn new(id: Id, cpus: u32, budget: &Budget) -> Result<Self, Errno> {
        let spec = MapSpec {
            map_type: MapType::RINGBUF,
            key_size: 0,
            value_size: 0,
            max_entries: BYTES,
            flags: 0,
            map_extra: 0,
            name: "trace".into(),
            inner: None,
            fields: SpecialFields::default(),
            value_type: None,
        };
        let map = MapObject::new(id, &spec, None, cpus, budget)?;
        let _ = map.add_use(&Use::events());
        let shared = Shared {
            map: Arc::new(map),
            pipes: Mutex::default(),
            changed: wakeup_fd().map_err(errno)?,
            stop: AtomicBool::new(false),
        };
        Ok(Self {
            shared: Arc::new(shared),
            thread: Mutex::default(),
        })
    }

    /// Returns its memory: the map that printing programs need.
    pub fn map(&self) -> &Arc<MapObject> {
        &self.shared.map
    }

    /// Returns a new pipe that lines come out of.
    ///
    /// # Errors
    ///
    /// Those of `pipe2(2)` and `fcntl(2)`, and for the first pipe those of `pthread_create(3)`.
    pub fn open(&self, notifier: &Notifier) -> Result<OwnedFd, Errno> {
        let (reader, writer) =
            pipe_with(PipeFlags::CLOEXEC).map_err(|error| Errno(error.raw_os_error()))?;
        rustix::fs::fcntl_setfl(&writer, OFlags::NONBLOCK)
            .map_err(|error| Errno(error.raw_os_error()))?;
        let mut thread = self.thread.lock();
        if thread.is_none() {
            notifier.watch(&self.shared.map);
            let shared = self.shared.clone();
            let started = std::thread::Builder::new()
                .name("beeline-trace".into())
                .spawn(move || shared.run());
            *thread = Some(started.map_err(errno)?);
        }
        self.add_pipe(writer);
        Ok(reader)
    }

    /// Adds a pipe's end, which does not block, for lines to come out of.
    pub fn add_pipe(&self, writer: OwnedFd) {
        self.shared.pipes().push(writer);
        self.shared.wake();
    }

    /// Moves lines into the pipes, as the thread does.
    pub fn pump(&self) {
        self.shared.pump();
    }

    /// Ends the pipes. Returns the number of lines that were not read and of those that found no
    /// room.
    pub fn close(&self) -> (u64, u64) {
        self.shared.stop.store(true, SeqCst);
        self.shared.wake();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
        self.shared.pipes().clear();
        let Some(ring) = self.shared.ring() else {
            return (0, 0);
        };
        let mut unread = 0;
        for _ in 0..MOST_RECORDS {
            let Some(record) = ring.next_record() else {
                break;
            };
            ring.consumed(&record);
            unread += 1;
        }
        (unread, ring.dropped())
    }
}

/// The reason why lines do not come out just now.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// There are none, or there is no reader.
    ForLines,
    /// The pipes are full.
    ForRoom,
}

impl Shared {
    fn run(&self) {
        while !self.stop.load(SeqCst) {
            let wait = self.pump();
            self.sleep(wait);
        }
        // Lines that are there when a session ends may still be read.
        self.pump();
    }

    /// Moves lines into the pipes: as many as there can be at a time.
    fn pump(&self) -> Wait {
        let mut pipes = self.pipes();
        let Some(ring) = self.ring() else {
            return Wait::ForLines;
        };
        for _ in 0..MOST_RECORDS {
            let Some(record) = ring.next_record().filter(|_| !pipes.is_empty()) else {
                return Wait::ForLines;
            };
            // SAFETY: the map is mapped here as long as `self`, and a finished record stays until
            // it is consumed.
            let line = unsafe { line(&record) };
            if !hand_over(&mut pipes, &line) {
                return match pipes.is_empty() {
                    true => Wait::ForLines,
                    false => Wait::ForRoom,
                };
            }
            ring.consumed(&record);
        }
        Wait::ForRoom
    }

    /// Waits until there may be something to do, and forgets pipes without readers.
    fn sleep(&self, wait: Wait) {
        let pipes: Vec<OwnedFd> = self
            .pipes()
            .iter()
            .filter_map(|pipe| pipe.try_clone().ok())
            .collect();
        let events = match wait {
            Wait::ForLines => PollFlags::empty(),
            Wait::ForRoom => PollFlags::OUT,
        };
        let mut waits = vec![
            PollFd::new(&self.changed, PollFlags::IN),
            PollFd::new(self.map.wakeup(), PollFlags::IN),
        ];
        waits.extend(pipes.iter().map(|pipe| PollFd::new(pipe, events)));
        // An interruption is as good as an event.
        let _ = poll(&mut waits, None);
        let gone = waits
            .iter()
            .skip(2)
            .any(|wait| wait.revents().contains(PollFlags::ERR));
        for wakeup in [&self.changed, self.map.wakeup()] {
            let _ = rustix::io::read(wakeup, &mut [0; 8]);
        }
        if gone {
            self.pipes().retain(|pipe| !is_deserted(pipe));
        }
    }

    fn ring(&self) -> Option<ringbuf::Ring<'_>> {
        ringbuf::Ring::of(self.map.here())
    }

    fn pipes(&self) -> parking_lot::MutexGuard<'_, Vec<OwnedFd>> {
        self.pipes.lock()
    }

    fn wake(&self) {
        // It fails only when the counter is full, and then the thread is being woken already.
        let _ = rustix::io::write(&self.changed, &1u64.to_ne_bytes());
    }
}

/// Writes a line into the first pipe that has room. Returns false if there is none. Forgets pipes
/// without readers.
fn hand_over(pipes: &mut Vec<OwnedFd>, line: &[u8]) -> bool {
    let mut taken = false;
    pipes.retain(|pipe| {
        if taken {
            return true;
        }
        // At most PIPE_BUF bytes: all or nothing.
        match rustix::io::write(pipe, line) {
            Ok(_) => taken = true,
            Err(OsError::AGAIN | OsError::INTR) => {}
            Err(_) => return false,
        }
        true
    });
    taken
}

fn is_deserted(pipe: &OwnedFd) -> bool {
    let now = rustix::event::Timespec::default();
    let mut wait = [PollFd::new(pipe, PollFlags::empty())];
    poll(&mut wait, Some(&now)).is_ok() && wait[0].revents().contains(PollFlags::ERR)
}

/// Formats a record as the kernel shows it.
///
/// Data that processes write cannot be trusted: a record may be shorter than a line's header, and
/// then has no text.
///
/// # Safety
///
/// The record's bytes must be readable.
unsafe fn line(record: &Record) -> Vec<u8> {
    const HEADER: usize = size_of::<TraceLine>();
    let mut bytes = vec![0; record.len.max(HEADER)];
    // SAFETY: the caller promises that the record's bytes are readable. Another process may write
    // meanwhile, and then the line is garbled.
    unsafe { std::ptr::copy(record.data, bytes.as_mut_ptr(), record.len) };
    // SAFETY: there are enough bytes, and any bytes are a valid header.
    let head = unsafe { bytes.as_ptr().cast::<TraceLine>().read_unaligned() };
    let comm = String::from_utf8_lossy(until_zero(&head.comm)).into_owned();
    let micros = head.time / 1000;
    let (seconds, micros) = (micros / 1_000_000, micros % 1_000_000);
    let mut line = Vec::with_capacity(bytes.len() + 64);
    let written = write!(
        line,
        "{comm:>16}-{:<7} [{:03}] {FLAGS} {seconds:>5}.{micros:06}: bpf_trace_printk: ",
        head.tid, head.cpu
    );
    // Writing to memory does not fail.
    let _ = written;
    let text = until_zero(&bytes[HEADER..]);
    line.extend(&text[..text.len().min(LONGEST_TEXT)]);
    line.push(b'\n');
    line
}

/// The longest text of a line in bytes: the kernel's buffer also holds a NUL.
const LONGEST_TEXT: usize = MAX_BPRINTF_BUF - 1;

fn until_zero(bytes: &[u8]) -> &[u8] {
    bytes.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn errno(error: io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::{BufRead, BufReader};
    use std::sync::atomic::AtomicU64;
    use std::time::{Duration, Instant};

    use super::*;

    /// A session's page, its notifier, and its trace buffer.
    struct Setting {
        trace: Trace,
        notifier: Notifier,
    }

    impl Setting {
        fn new() -> Self {
            let shared = crate::shared::Shared::new(Vec::new(), 1, Default::default()).unwrap();
            Self {
                trace: Trace::new(Id(1), 1, &Budget::default()).unwrap(),
                notifier: Notifier::start(shared.domains.clone()).unwrap(),
            }
        }

        fn open(&self) -> BufReader<File> {
            BufReader::new(self.trace.open(&self.notifier).unwrap().into())
        }

        fn print(&self, record: &[u8]) {
            let ring = ringbuf::Ring::of(self.trace.map().here()).unwrap();
            ring.output(record, 0, &MapObject::caller()).unwrap();
        }

        fn print_line(&self, text: &str) {
            let head = TraceLine {
                time: 12_345_678_999,
                tid: 77,
                cpu: 3,
                comm: *b"a task\0garbage..",
            };
            // SAFETY: the structure consists of plain integers without padding.
            let head: [u8; size_of::<TraceLine>()] = unsafe { std::mem::transmute(head) };
            self.print(&[&head[..], text.as_bytes(), b"\0"].concat());
        }
    }

    fn read(pipe: &mut BufReader<File>) -> String {
        let mut line = String::new();
        pipe.read_line(&mut line).unwrap();
        line
    }

    fn shown(text: &str) -> String {
        format!("          a task-77      [003] ...11    12.345678: bpf_trace_printk: {text}\n")
    }

    #[test]
    fn lines_come_out_once_before_and_after_the_pipe_is_opened() {
        let setting = Setting::new();
        setting.print_line("early");
        let mut pipe = setting.open();
        assert_eq!(read(&mut pipe), shown("early"));
        setting.print_line("late");
        assert_eq!(read(&mut pipe), shown("late"));
        assert_eq!(setting.trace.close(), (0, 0));
        assert_eq!(read(&mut pipe), "", "the end");
    }

    #[test]
    fn a_full_pipe_and_a_closed_one_hold_nothing_up() {
        const LINES: usize = 5000; // More than a pipe has room for.
        let setting = Setting::new();
        let full = setting.open();
        for i in 0..LINES {
            setting.print_line(&i.to_string());
        }
        let mut pipe = setting.open();
        // The first pipe took the first lines, if its thread was quick; now it goes with them.
        drop(full);
        let first = read(&mut pipe);
        let number = |line: &str| {
            line.rsplit(' ')
                .next()
                .unwrap()
                .trim()
                .parse::<usize>()
                .unwrap()
        };
        for i in number(&first) + 1..LINES {
            assert_eq!(read(&mut pipe), shown(&i.to_string()));
        }
        assert_eq!(setting.trace.close(), (0, 0));
    }

    #[test]
    fn lost_lines_are_counted() {
        let setting = Setting::new();
        let ring = ringbuf::Ring::of(setting.trace.map().here()).unwrap();
        let mut fits = 0;
        while ring.output(&[b'x'; 1000], 0, &MapObject::caller()).is_ok() {
            fits += 1;
        }
        assert_eq!(setting.trace.close(), (fits, 1));
    }

    #[test]
    fn a_process_that_always_publishes_more_keeps_nobody() {
        let setting = Setting::new();
        let base = setting.trace.map().memory.base();
        // SAFETY: the first words of the first two pages, mapped as long as the setting.
        let [consumer, producer] =
            [0, crate::memory::PAGE].map(|at| unsafe { AtomicU64::from_ptr(base.add(at).cast()) });
        let is_over = AtomicBool::new(false);
        let publish = || {
            let begin = Instant::now();
            while !is_over.load(SeqCst) && begin.elapsed() < Duration::from_secs(5) {
                // Records without data, as far as there is room.
                producer.store(consumer.load(SeqCst) + u64::from(BYTES), SeqCst);
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(publish);
            while producer.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            let (unread, _) = setting.trace.close();
            is_over.store(true, SeqCst);
            assert!(unread <= u64::from(MOST_RECORDS), "{unread}");
        });
    }

    #[test]
    fn whatever_a_process_writes_is_a_line() {
        let setting = Setting::new();
        let mut pipe = setting.open();
        setting.print(b"");
        setting.print(&[0xff; 2000]);
        setting.print_line("good");
        assert!(read(&mut pipe).ends_with(": bpf_trace_printk: \n"));
        let mut garbage = Vec::new();
        pipe.read_until(b'\n', &mut garbage).unwrap();
        assert!(garbage.ends_with(&[0xff; LONGEST_TEXT]) || garbage.len() < 2000);
        assert_eq!(read(&mut pipe), shown("good"));
    }
}
