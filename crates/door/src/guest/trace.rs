//! `trace_pipe`: what programs print by `bpf_trace_printk`.
//!
//! The guest's own `trace_pipe` gives each line to one reader, and is left alone. Each line is an event of a raw tracepoint as well: a
//! reader here has a program of ours there, as the guest's policy allows it, and the lines are put together from its records as the kernel
//! does it. (A perf event of the tracepoint would not do: the kernel drops what programs at other tracepoints print.) Lines from before the
//! pipe was opened are not there.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::Builder;

use beeline_runtime::backend::Errno;
use beeline_wire::info::Kind;
use beeline_wire::layout::{MapFacts, command, long_at, number_at, put_number};
use beeline_wire::messages::{Bpf, Part};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{OFlags, fcntl_setfl};
use rustix::net::{SendFlags, send};

use super::Guest;
use super::commands::EPROTO;
use super::objects::Object;
use super::rings::{Memory, Shape};
use crate::call::{Answer, Call};
use crate::fds::{anchor, errno};
use crate::notify::Reply;

/// Bytes of records that wait to be read.
const DATA: usize = 1 << 18;
/// `BPF_MAP_TYPE_RINGBUF` and `BPF_PROG_TYPE_RAW_TRACEPOINT`.
const RING: u32 = 27;
const RAW_TRACEPOINT: u32 = 17;
const TRACEPOINT: &[u8] = b"bpf_trace_printk\0";

/// A record: the time, the thread, the CPU, the thread's name, and the text.
mod record {
    pub(super) const TIME: usize = 0;
    pub(super) const THREAD: usize = 8;
    pub(super) const CPU: usize = 12;
    pub(super) const NAME: usize = 16;
    pub(super) const TEXT: usize = 32;
    /// The kernel prints no longer text.
    pub(super) const LONGEST: usize = 1024;
    pub(super) const LEN: usize = TEXT + LONGEST;
}

/// What makes lines in the guest, for as long as this is there.
struct Source {
    memory: Arc<Memory>,
    _made: [Object; 3],
}

impl Call<'_, Guest> {
    /// A descriptor that gives lines as `trace_pipe` does.
    pub(super) fn open_trace_pipe(&self, flags: u64) -> Answer {
        let source = self.trace()?;
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

    fn trace(&self) -> Result<Source, Errno> {
        let mut attr = vec![0; 72];
        put_number(&mut attr, 0, RING);
        put_number(&mut attr, 12, DATA as u32);
        let facts = MapFacts::of_attr(&attr);
        let mut ring = self.make(command::MAP_CREATE, attr, vec![], Kind::Map)?;
        ring.facts = Some(facts);

        let insns = program(ring.handle);
        let mut attr = vec![0; 72];
        put_number(&mut attr, 0, RAW_TRACEPOINT);
        put_number(&mut attr, 4, insns.len() as u32);
        if let Some(name) = attr.get_mut(48..62) {
            name.copy_from_slice(b"beeline_printk");
        }
        let parts = vec![given(8, insns.concat()), given(16, b"GPL\0".to_vec())];
        let program = self.make(command::PROG_LOAD, attr, parts, Kind::Program)?;

        let mut attr = vec![0; 16];
        put_number(&mut attr, 8, program.handle);
        let parts = vec![given(0, TRACEPOINT.to_vec())];
        let link = self.make(command::RAW_TRACEPOINT_OPEN, attr, parts, Kind::Link)?;

        let connection = &self.door.connection;
        let shape = Shape::Ring { data: DATA };
        Ok(Source {
            memory: self.door.rings.memory(connection, None, &ring, shape)?,
            _made: [link, program, ring],
        })
    }

    /// Has the guest make an object.
    fn make(
        &self,
        command: u32,
        attr: Vec<u8>,
        parts: Vec<Part>,
        kind: Kind,
    ) -> Result<Object, Errno> {
        let done = self.ask_bpf(Bpf {
            command,
            attr,
            parts,
            ..Bpf::default()
        })?;
        match (done.errno, done.handle) {
            (0, 0) => Err(EPROTO),
            (0, handle) => Ok(Object::new(&self.door.connection, handle, kind)),
            (errno, _) => {
                let connection = &self.door.connection;
                connection.say("the guest's kernel does not tell what programs print");
                Err(Errno(errno as i32))
            }
        }
    }
}

fn given(at: u32, data: Vec<u8>) -> Part {
    Part { at, data, room: 0 }
}

/// The program that makes a record of each line; its context begins with the line's address.
fn program(ring: u32) -> Vec<[u8; 8]> {
    // Codes of instructions, and of helpers.
    const LOAD: u8 = 0x79;
    const ADDRESS: u8 = 0x18;
    const SET: u8 = 0xb7;
    const COPY: u8 = 0xbf;
    const ADD: u8 = 0x07;
    const STORE: u8 = 0x7b;
    const STORE_HALF: u8 = 0x63;
    const IF_ZERO: u8 = 0x15;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    const RESERVE: i32 = 131;
    const SUBMIT: i32 = 132;
    const TIME: i32 = 5;
    const THREAD: i32 = 14;
    const CPU: i32 = 8;
    const NAME: i32 = 16;
    const READ_TEXT: i32 = 115;
    let insn = |code: u8, to: u8, from: u8, offset: usize, number: i32| {
        let mut bytes = [code, from << 4 | to, offset as u8, 0, 0, 0, 0, 0];
        bytes[4..].copy_from_slice(&number.to_ne_bytes());
        bytes
    };
    let call = |helper| insn(CALL, 0, 0, 0, helper);
    let set = |to, number: usize| insn(SET, to, 0, 0, number as i32);
    let part = |offset: usize| [insn(COPY, 1, 7, 0, 0), insn(ADD, 1, 0, 0, offset as i32)];
    let [name, name_at] = part(record::NAME);
    let [text, text_at] = part(record::TEXT);
    vec![
        insn(LOAD, 6, 1, 0, 0),
        insn(ADDRESS, 1, 1, 0, ring as i32),
        [0; 8],
        set(2, record::LEN),
        set(3, 0),
        call(RESERVE),
        // To the end.
        insn(IF_ZERO, 0, 0, 19, 0),
        insn(COPY, 7, 0, 0, 0),
        call(TIME),
        insn(STORE, 7, 0, record::TIME, 0),
        call(THREAD),
        insn(STORE_HALF, 7, 0, record::THREAD, 0),
        call(CPU),
        insn(STORE_HALF, 7, 0, record::CPU, 0),
        name,
        name_at,
        set(2, record::TEXT - record::NAME),
        call(NAME),
        text,
        text_at,
        set(2, record::LONGEST),
        insn(COPY, 3, 6, 0, 0),
        call(READ_TEXT),
        insn(COPY, 1, 7, 0, 0),
        set(2, 0),
        call(SUBMIT),
        set(0, 0),
        insn(EXIT, 0, 0, 0, 0),
    ]
}

/// Sends lines until the tool closes its end.
fn carry(source: &Source, into: &OwnedFd) {
    loop {
        let mut ready = [
            PollFd::new(&source.memory.wakeup, PollFlags::IN),
            // That it is closed is always told.
            PollFd::new(into, PollFlags::empty()),
        ];
        if poll(&mut ready, None).is_err() {
            continue;
        }
        if !ready[1].revents().is_empty() {
            return;
        }
        let _ = rustix::io::read(&source.memory.wakeup, &mut [0; 8]);
        if send_all(into, &lines(&source.memory.drain())).is_err() {
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

/// What the records of a ring buffer say.
fn lines(mut records: &[u8]) -> Vec<u8> {
    const HEADER: usize = 8;
    // The upper two bits say if it is being written or was given up; such are not sent.
    const LENGTH: u32 = (1 << 30) - 1;
    let mut lines = Vec::new();
    while records.len() >= HEADER {
        let len = (number_at(records, 0) & LENGTH) as usize;
        let whole = (HEADER + len).next_multiple_of(8);
        let Some((record, rest)) = records.split_at_checked(whole) else {
            break;
        };
        records = rest;
        if len == record::LEN {
            lines.extend(line(&record[HEADER..]).bytes());
        }
    }
    lines
}

/// One line as the kernel prints it, but for what the CPU was about, of which nothing is known.
fn line(record: &[u8]) -> String {
    const SECOND: u64 = 1_000_000_000;
    let time = long_at(record, record::TIME);
    let (seconds, micros) = (time / SECOND, time % SECOND / 1000);
    let thread = number_at(record, record::THREAD);
    let cpu = number_at(record, record::CPU);
    let name = text_of(record.get(record::NAME..record::TEXT));
    let text = text_of(record.get(record::TEXT..));
    format!(
        "{name:>16}-{thread:<7} [{cpu:03}] ..... {seconds:5}.{micros:06}: bpf_trace_printk: {text}\n"
    )
}

/// Up to the zero that ends it.
fn text_of(bytes: Option<&[u8]>) -> String {
    let bytes = bytes.unwrap_or_default();
    let end = bytes.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default())
        .into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(text: &str) -> Vec<u8> {
        let mut bytes = (record::LEN as u64).to_ne_bytes().to_vec();
        bytes.extend(12_345_678_901u64.to_ne_bytes());
        bytes.extend(77u32.to_ne_bytes());
        bytes.extend(3u32.to_ne_bytes());
        bytes.extend(b"a task\0\0\0\0\0\0\0\0\0\0");
        bytes.extend(text.as_bytes());
        bytes.resize(8 + record::LEN, 0);
        bytes
    }

    #[test]
    fn records_become_lines_as_the_kernel_has_them() {
        let lines = lines(&[printed("one"), printed("two")].concat());
        assert_eq!(
            String::from_utf8(lines).unwrap(),
            "          a task-77      [003] .....    12.345678: bpf_trace_printk: one\n\
             \x20         a task-77      [003] .....    12.345678: bpf_trace_printk: two\n"
        );
    }

    #[test]
    fn what_is_cut_off_is_left_out() {
        let whole = printed("text");
        for end in 0..whole.len() {
            assert!(lines(&whole[..end]).is_empty());
        }
        assert!(lines(&[0; 64]).is_empty());
        assert!(lines(&[0xff; 64]).is_empty());
    }
}
