//! `trace_pipe`: the lines that programs print by `bpf_trace_printk`.
//!
//! The guest's own `trace_pipe` gives each line to one reader, and is left alone. Each line is an
//! event of a raw tracepoint as well. A reader here attaches a program of ours there, as the
//! guest's policy allows it, and the lines are put together from its records as the kernel does it.
//! (A perf event of the tracepoint would not do: the kernel drops what programs at other
//! tracepoints print.)
//!
//! Lines from before the pipe was opened are not there. Lines for which there was no room while
//! nothing read are counted, and reported as the kernel does it: before the next line of their CPU.
//! The kernel loses the oldest lines, so there is always a next one. Here the last ones are lost,
//! so the count is asked for when no more lines come.

mod program;

use std::collections::HashMap;
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::Builder;

use beeline_supervisor::keys::{anchor, errno};
use beeline_supervisor::{Answer, Call, Reply};
use beeline_uapi::attr::{Element, MapCreate, ProgLoad, RawTracepoint};
use beeline_uapi::fields::{put_u32, u32_at, u64_at};
use beeline_uapi::flags::{RINGBUF_BUSY_BIT, RINGBUF_DISCARD_BIT, RINGBUF_HDR_SZ};
use beeline_uapi::{Command, Errno, MapType, ProgramType, offset_behind};
use beeline_vm_protocol::info::Kind;
use beeline_vm_protocol::layout::MapFacts;
use beeline_vm_protocol::messages::guest_message::Body as Said;
use beeline_vm_protocol::messages::host_message::Body as Asked;
use beeline_vm_protocol::messages::{Bpf, Part};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::net::{SendFlags, send};

use super::kernel::Kernel;
use crate::Guest;
use crate::connection::Connection;
use crate::memory::{Memory, Shape};
use crate::objects::Object;
use crate::rings::Rings;
use program::{program, record};

/// The bytes of records that wait to be read: some 3900 lines in the guest, and as many here.
const DATA: usize = 4 << 20;
const TRACEPOINT: &[u8] = b"bpf_trace_printk\0";

/// The most CPUs that the kernel supports.
const MOST_CPUS: u32 = 8192;

/// After this time without a line, the guest is asked whether others were lost behind the last one.
const QUIET: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 100_000_000,
};

/// The source of lines in the guest, which lives as long as this.
struct Source {
    memory: Arc<Memory>,
    connection: Arc<Connection>,
    /// The number of lines of each CPU for which there was no room.
    counts: Object,
    _made: [Object; 3],
}

impl Source {
    /// Returns how many lines each CPU has lost until now; nothing if the guest does not say.
    fn lost(&self) -> Vec<u64> {
        const KEY: usize = offset_of!(Element, key);
        const VALUES: u32 = offset_of!(Element, value) as u32;
        const COUNT: usize = size_of::<u64>();
        let mut attr = vec![0; size_of::<Element>()];
        put_u32(&mut attr, offset_of!(Element, map_fd), self.counts.handle);
        let cpus = self.connection.welcome().possible_cpus.min(MOST_CPUS);
        let values = Part {
            at: VALUES,
            data: Vec::new(),
            room: cpus * COUNT as u32,
        };
        let request = Asked::Bpf(Bpf {
            command: Command::MAP_LOOKUP_ELEM.0,
            attr,
            parts: vec![given(KEY, vec![0; 4]), values],
            ..Bpf::default()
        });
        let Ok(Said::BpfDone(done)) = self.connection.ask(request) else {
            return Vec::new();
        };
        let values = done.parts.into_iter().find(|part| part.at == VALUES);
        let values = values.map_or(Vec::new(), |part| part.data);
        let counts = values.as_chunks::<COUNT>().0.iter();
        counts.map(|count| u64::from_ne_bytes(*count)).collect()
    }
}

/// Opens `trace_pipe`.
pub(super) struct TracePipe<'a> {
    kernel: Kernel<'a>,
    rings: &'a Rings,
}

impl<'a> TracePipe<'a> {
    pub(super) fn new(guest: &'a Guest, call: &'a Call<'a>) -> Self {
        Self {
            kernel: Kernel::new(guest, call),
            rings: &guest.rings,
        }
    }

    /// Returns a descriptor from which lines can be read as from `trace_pipe`.
    pub(super) fn open(&self, flags: u64) -> Answer {
        let source = self.source()?;
        let (into, file) = anchor().map_err(errno)?;
        if flags & libc::O_NONBLOCK as u64 != 0 {
            fcntl_setfl(&file, OFlags::NONBLOCK).map_err(|error| Errno(error.raw_os_error()))?;
        }
        let thread = Builder::new().name("beeline-trace".into());
        thread.spawn(move || carry(&source, &into)).map_err(errno)?;
        Ok(Reply::Descriptor {
            file,
            cloexec: flags & libc::O_CLOEXEC as u64 != 0,
        })
    }

    /// Attaches the program that makes records of lines.
    fn source(&self) -> Result<Source, Errno> {
        let attr = map_create(MapType::RINGBUF, 0, 0, DATA as u32);
        let facts = MapFacts::of_attr(&attr);
        let mut ring = self.make(Command::MAP_CREATE, attr, vec![], Kind::Map)?;
        ring.facts = Some(facts);

        let attr = map_create(MapType::PERCPU_ARRAY, 4, 8, 1);
        let counts = self.make(Command::MAP_CREATE, attr, vec![], Kind::Map)?;

        let insns = program(ring.handle, counts.handle);
        let mut attr = vec![0; offset_behind!(ProgLoad, expected_attach_type)];
        put_u32(
            &mut attr,
            offset_of!(ProgLoad, prog_type),
            ProgramType::RAW_TRACEPOINT.0,
        );
        put_u32(
            &mut attr,
            offset_of!(ProgLoad, insn_cnt),
            insns.len() as u32,
        );
        const NAME: &[u8] = b"beeline_printk";
        const NAME_AT: usize = offset_of!(ProgLoad, prog_name);
        if let Some(name) = attr.get_mut(NAME_AT..NAME_AT + NAME.len()) {
            name.copy_from_slice(NAME);
        }
        let parts = vec![
            given(offset_of!(ProgLoad, insns), insns.concat()),
            given(offset_of!(ProgLoad, license), b"GPL\0".to_vec()),
        ];
        let program = self.make(Command::PROG_LOAD, attr, parts, Kind::Program)?;

        let mut attr = vec![0; offset_of!(RawTracepoint, cookie)];
        put_u32(
            &mut attr,
            offset_of!(RawTracepoint, prog_fd),
            program.handle,
        );
        let parts = vec![given(offset_of!(RawTracepoint, name), TRACEPOINT.to_vec())];
        let link = self.make(Command::RAW_TRACEPOINT_OPEN, attr, parts, Kind::Link)?;

        let connection = self.kernel.connection;
        let shape = Shape::Ring { data: DATA };
        Ok(Source {
            memory: self.rings.memory(connection, None, &ring, shape)?,
            connection: Arc::clone(connection),
            counts,
            _made: [link, program, ring],
        })
    }

    /// Lets the guest make an object.
    fn make(
        &self,
        command: Command,
        attr: Vec<u8>,
        parts: Vec<Part>,
        kind: Kind,
    ) -> Result<Object, Errno> {
        let done = self.kernel.bpf(Bpf {
            command: command.0,
            attr,
            parts,
            ..Bpf::default()
        })?;
        if done.errno != 0 {
            let connection = self.kernel.connection;
            connection.say("the guest's kernel does not tell what programs print");
        }
        self.kernel.made(&done, kind)
    }
}

fn given(at: usize, data: Vec<u8>) -> Part {
    let at = at as u32;
    Part { at, data, room: 0 }
}

/// Returns the attribute of `BPF_MAP_CREATE`.
fn map_create(map_type: MapType, key_size: u32, value_size: u32, max_entries: u32) -> Vec<u8> {
    let mut attr = vec![0; offset_behind!(MapCreate, map_extra)];
    put_u32(&mut attr, offset_of!(MapCreate, map_type), map_type.0);
    put_u32(&mut attr, offset_of!(MapCreate, key_size), key_size);
    put_u32(&mut attr, offset_of!(MapCreate, value_size), value_size);
    put_u32(&mut attr, offset_of!(MapCreate, max_entries), max_entries);
    attr
}

/// Sends lines until the tool closes its end.
fn carry(source: &Source, into: &OwnedFd) {
    let mut lost = HashMap::new();
    // True if lines have come since the last question about lost ones.
    let mut has_news = false;
    loop {
        let mut ready = [
            PollFd::new(&source.memory.wakeup, PollFlags::IN),
            // A closed end is always reported.
            PollFd::new(into, PollFlags::empty()),
        ];
        let text = match poll(&mut ready, has_news.then_some(&QUIET)) {
            Err(_) => continue,
            Ok(0) => {
                has_news = false;
                losses(&source.lost(), &mut lost)
            }
            Ok(_) if !ready[1].revents().is_empty() => return,
            Ok(_) => {
                has_news = true;
                let _ = rustix::io::read(&source.memory.wakeup, &mut [0; 8]);
                lines(&source.memory.drain(), &mut lost)
            }
        };
        if send_all(into, &text).is_err() {
            return;
        }
    }
}

fn send_all(into: &OwnedFd, mut text: &[u8]) -> rustix::io::Result<()> {
    while !text.is_empty() {
        match send(into, text, SendFlags::NOSIGNAL) {
            Ok(count) => text = text.get(count..).unwrap_or_default(),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Returns the lines for the records of a ring buffer. `told`: the number of lines of each CPU that
/// are known to be lost.
fn lines(mut records: &[u8], told: &mut HashMap<u32, u64>) -> Vec<u8> {
    const HEADER: usize = RINGBUF_HDR_SZ as usize;
    // Records that are still being written or were given up are not sent.
    const LENGTH: u32 = !(RINGBUF_BUSY_BIT | RINGBUF_DISCARD_BIT);
    let mut lines = Vec::new();
    while records.len() >= HEADER {
        let len = (u32_at(records, 0) & LENGTH) as usize;
        let whole = (HEADER + len).next_multiple_of(8);
        let Some((record, rest)) = records.split_at_checked(whole) else {
            break;
        };
        records = rest;
        if len == record::LEN {
            let record = &record[HEADER..];
            let (cpu, lost) = (u32_at(record, record::CPU), u64_at(record, record::LOST));
            lines.extend(loss(cpu, lost, told).bytes());
            lines.extend(line(record).bytes());
        }
    }
    lines
}

/// Returns the text on so many lost lines of each CPU, if it has not been told.
fn losses(lost: &[u64], told: &mut HashMap<u32, u64>) -> Vec<u8> {
    let each = lost.iter().zip(0..);
    let each = each.map(|(&lost, cpu)| loss(cpu, lost, told));
    each.collect::<String>().into_bytes()
}

/// Returns the text that the kernel prints before a line if others of its CPU were lost since that
/// CPU's last.
fn loss(cpu: u32, lost: u64, told: &mut HashMap<u32, u64>) -> String {
    if lost == 0 || cpu >= MOST_CPUS {
        return String::new();
    }
    let told = told.entry(cpu).or_default();
    match lost.saturating_sub(*told) {
        0 => String::new(),
        new => {
            *told = lost;
            format!("CPU:{cpu} [LOST {new} EVENTS]\n")
        }
    }
}

/// Returns one line as the kernel prints it, without the state of the CPU, which is not known.
fn line(record: &[u8]) -> String {
    const SECOND: u64 = 1_000_000_000;
    let time = u64_at(record, record::TIME);
    let (seconds, micros) = (time / SECOND, time % SECOND / 1000);
    let thread = u32_at(record, record::THREAD);
    let cpu = u32_at(record, record::CPU);
    let name = text_of(record.get(record::NAME..record::LOST));
    let text = text_of(record.get(record::TEXT..));
    format!(
        "{name:>16}-{thread:<7} [{cpu:03}] ..... {seconds:5}.{micros:06}: bpf_trace_printk: {text}\n"
    )
}

/// Returns the text up to the zero that ends it.
fn text_of(bytes: Option<&[u8]>) -> String {
    let bytes = bytes.unwrap_or_default();
    let end = bytes.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default())
        .into_owned()
}

#[cfg(test)]
mod tests {
    use std::os::fd::{AsRawFd, FromRawFd};

    use beeline_uapi::fields::put_u64;

    use super::*;
    use crate::memory::PAGE;

    fn printed(text: &str) -> Vec<u8> {
        printed_on(3, 0, text)
    }

    fn printed_on(cpu: u32, lost: u64, text: &str) -> Vec<u8> {
        let mut bytes = (record::LEN as u64).to_ne_bytes().to_vec();
        bytes.extend(12_345_678_901u64.to_ne_bytes());
        bytes.extend(77u32.to_ne_bytes());
        bytes.extend(cpu.to_ne_bytes());
        bytes.extend(b"a task\0\0\0\0\0\0\0\0\0\0");
        bytes.extend(lost.to_ne_bytes());
        bytes.extend(text.as_bytes());
        bytes.resize(8 + record::LEN, 0);
        bytes
    }

    #[test]
    fn records_become_lines_as_the_kernel_has_them() {
        let records = [printed("one"), printed("two")].concat();
        let lines = lines(&records, &mut HashMap::new());
        assert_eq!(
            String::from_utf8(lines).unwrap(),
            "          a task-77      [003] .....    12.345678: bpf_trace_printk: one\n\
             \x20         a task-77      [003] .....    12.345678: bpf_trace_printk: two\n"
        );
    }

    #[test]
    fn truncated_lines_are_left_out() {
        let whole = printed("text");
        for end in 0..whole.len() {
            assert!(lines(&whole[..end], &mut HashMap::new()).is_empty());
        }
        assert!(lines(&[0; 64], &mut HashMap::new()).is_empty());
        assert!(lines(&[0xff; 64], &mut HashMap::new()).is_empty());
    }

    #[test]
    fn each_loss_is_told_once_before_the_next_line_of_its_cpu() {
        let records = [
            (0, 0),
            (0, 2),
            (1, 0),
            (0, 2),
            (1, 7),
            (0, 3),
            (MOST_CPUS, 1),
        ];
        let mut told = HashMap::new();
        let text: Vec<u8> = records
            .iter()
            .flat_map(|&(cpu, lost)| lines(&printed_on(cpu, lost, "x"), &mut told))
            .collect();
        let text = String::from_utf8(text).unwrap();
        let told = text.lines().map(|line| match line.starts_with("CPU:") {
            true => line,
            false => "line",
        });
        assert_eq!(
            told.collect::<Vec<_>>(),
            [
                "line",
                "CPU:0 [LOST 2 EVENTS]",
                "line",
                "line",
                "line",
                "CPU:1 [LOST 7 EVENTS]",
                "line",
                "CPU:0 [LOST 1 EVENTS]",
                "line",
                "line",
            ]
        );
    }

    #[test]
    fn losses_behind_the_last_line_are_reported() {
        let mut told = HashMap::new();
        assert!(losses(&[0, 0], &mut told).is_empty());
        let line = lines(&printed_on(1, 3, "x"), &mut told);
        assert!(line.starts_with(b"CPU:1 [LOST 3 EVENTS]\n"));
        let text = losses(&[4, 5], &mut told);
        let expected = "CPU:0 [LOST 4 EVENTS]\nCPU:1 [LOST 2 EVENTS]\n";
        assert_eq!(String::from_utf8(text).unwrap(), expected);
        // It is not told again by a line that was printed before the question either.
        let line = lines(&printed_on(0, 2, "x"), &mut told);
        assert!(!String::from_utf8(line).unwrap().contains("LOST"));
        assert!(losses(&[4, 5], &mut told).is_empty());
    }

    fn bpf(command: Command, attr: &mut [u8]) -> i32 {
        // SAFETY: the attribute is passed with its own length, and what it points to lives as long.
        let result = unsafe {
            libc::syscall(libc::SYS_bpf, command.0, attr.as_mut_ptr(), attr.len()) as i32
        };
        let error = std::io::Error::last_os_error();
        assert!(result >= 0, "command {command}: {error}");
        result
    }

    fn map(kind: u32, key: u32, value: u32, entries: u32) -> OwnedFd {
        let mut attr = vec![0; 72];
        for (at, number) in [(0, kind), (4, key), (8, value), (12, entries)] {
            put_u32(&mut attr, at, number);
        }
        // SAFETY: the call has just returned this new descriptor, which nothing else owns.
        unsafe { OwnedFd::from_raw_fd(bpf(Command::MAP_CREATE, &mut attr)) }
    }

    #[test]
    fn the_kernel_runs_the_program_and_what_has_no_room_is_counted() {
        const ON_CPU: u32 = 1;
        const ROOM: usize = PAGE / (record::LEN + 8);
        if !rustix::process::geteuid().is_root() {
            return println!("skipped: it takes root to load programs");
        }
        let (ring, counts) = (
            map(MapType::RINGBUF.0, 0, 0, PAGE as u32),
            map(MapType::PERCPU_ARRAY.0, 4, 8, 1),
        );
        let insns = program(ring.as_raw_fd() as u32, counts.as_raw_fd() as u32).concat();
        let mut attr = vec![0; 72];
        put_u32(&mut attr, 0, ProgramType::RAW_TRACEPOINT.0);
        put_u32(&mut attr, 4, insns.len() as u32 / 8);
        put_u64(&mut attr, 8, insns.as_ptr() as u64);
        put_u64(&mut attr, 16, c"GPL".as_ptr() as u64);
        // SAFETY: the call has just returned this new descriptor, which nothing else owns.
        let program = unsafe { OwnedFd::from_raw_fd(bpf(Command::PROG_LOAD, &mut attr)) };
        // There is no line: its text is empty.
        let context = [0u64; 1];
        let run = || {
            let mut attr = vec![0; 80];
            put_u32(&mut attr, 0, program.as_raw_fd() as u32);
            put_u32(&mut attr, 40, 8);
            put_u64(&mut attr, 48, context.as_ptr() as u64);
            put_u32(&mut attr, 64, ON_CPU);
            bpf(Command::PROG_TEST_RUN, &mut attr);
        };
        for _ in 0..ROOM + 2 {
            run();
        }
        // SAFETY: these are the ring's pages, which stay mapped: the consumer's position, the
        // producer's, and the data.
        let (consumer, rest) = unsafe {
            let map = |flags, len, at| {
                let none = std::ptr::null_mut();
                let shared = libc::MAP_SHARED;
                let address = libc::mmap(none, len, flags, shared, ring.as_raw_fd(), at as i64);
                assert_ne!(address, libc::MAP_FAILED);
                address.cast::<u8>()
            };
            let both = libc::PROT_READ | libc::PROT_WRITE;
            (map(both, PAGE, 0), map(libc::PROT_READ, 3 * PAGE, PAGE))
        };
        let read = |at: usize, len: usize| {
            // SAFETY: the range is inside the three pages, and nothing writes there now.
            unsafe { std::slice::from_raw_parts(rest.add(at), len) }.to_vec()
        };
        let written = || u64_at(&read(0, 8), 0) as usize;
        let mut told = HashMap::new();
        let text = |from, told: &mut _| {
            let text = lines(&read(PAGE + from, written() - from), told);
            String::from_utf8(text).unwrap()
        };
        let all = text(0, &mut told);
        assert_eq!(all.lines().count(), ROOM, "{all}");
        assert!(
            all.lines()
                .all(|line| line.ends_with(": bpf_trace_printk: "))
        );
        let from = written();
        // SAFETY: this is the consumer's position in the mapped pages.
        unsafe { consumer.cast::<u64>().write_volatile(from as u64) };
        run();
        let more = text(from, &mut told);
        assert!(more.starts_with("CPU:0 [LOST 2 EVENTS]\n"), "{more}");
        assert!(
            more.contains("[000]") && more.lines().count() == 2,
            "{more}"
        );
    }
}
