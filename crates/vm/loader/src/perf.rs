//! Perf events in the guest: probes, tracepoints, samples, and rings that programs write.

use std::sync::Arc;

use beeline_uapi::attr::PerfEvent;
use beeline_uapi::attr_offset as at;
use beeline_uapi::fields::{put_u32, put_u64};
use beeline_uapi::perf::*;
use beeline_vm_protocol::messages::guest_message::Body as Said;
use beeline_vm_protocol::messages::host_message::Body as Asked;
use beeline_vm_protocol::messages::{PerfEventControl, PerfEventOpen};

use crate::error::Error;
use crate::guest::read_line;
use crate::handle::{Answer, Handle, Line};

/// Bytes of `struct perf_event_attr` that all kernels know that can be guests
/// (`PERF_ATTR_SIZE_VER5`), and offsets in it.
const ATTR: usize = PerfEvent::SIZE_VER5 as usize;
const TYPE: usize = at!(PerfEvent.r#type);
const SIZE: usize = at!(PerfEvent.size);
const CONFIG: usize = at!(PerfEvent.config);
const PERIOD: usize = at!(PerfEvent.sample_period);
const SAMPLE_TYPE: usize = at!(PerfEvent.sample_type);
const FLAGS: usize = at!(PerfEvent.bits);
const WAKEUP: usize = at!(PerfEvent.wakeup_events);
const CONFIG2: usize = at!(PerfEvent.config2);
/// All processes.
const ANY: i32 = -1;

/// The source of an event.
pub(crate) struct Event {
    attr: Vec<u8>,
    name: String,
    build_id: Vec<u8>,
    cpu: u32,
}

impl Event {
    fn new(kind: u32, config: u64) -> Self {
        let mut attr = vec![0; ATTR];
        put_u32(&mut attr, TYPE, kind);
        put_u32(&mut attr, SIZE, ATTR as u32);
        put_u64(&mut attr, CONFIG, config);
        Self {
            attr,
            name: String::new(),
            build_id: Vec::new(),
            cpu: 0,
        }
    }

    /// Describes a tracepoint by its number.
    pub(crate) fn tracepoint(id: u64) -> Self {
        Self::new(PERF_TYPE_TRACEPOINT, id)
    }

    /// Describes a probe of a source (`kprobe`, `uprobe`), at a place of a function or file.
    pub(crate) fn probe(source: &Source, at: &str, offset: u64, build_id: Vec<u8>) -> Self {
        let mut event = Self::new(source.kind, source.config);
        put_u64(&mut event.attr, CONFIG2, offset);
        event.name = at.to_owned();
        event.build_id = build_id;
        event
    }

    /// Describes a sample at a frequency per second of a CPU's time.
    pub(crate) fn clock(cpu: u32, frequency: u64) -> Self {
        let mut event = Self::new(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_CPU_CLOCK);
        put_u64(&mut event.attr, PERIOD, frequency);
        put_u64(&mut event.attr, FLAGS, PerfEvent::FREQ);
        event.cpu = cpu;
        event
    }

    pub(crate) fn open(self, line: &Arc<Line>) -> Answer<Handle> {
        let request = Asked::PerfEventOpen(PerfEventOpen {
            attr: self.attr,
            name: self.name,
            pid: ANY,
            cpu: self.cpu.cast_signed(),
            build_id: self.build_id,
            ..PerfEventOpen::default()
        });
        Ok(match line.ask(request)? {
            Ok(Said::Opened(opened)) => Ok(line.handle(opened.handle)?),
            Ok(_) => return Err(Error::Nonsense("an answer to another question")),
            Err(refusal) => Err(refusal),
        })
    }
}

/// A source of probes, by its number in the guest's kernel.
pub(crate) struct Source {
    kind: u32,
    config: u64,
}

impl Source {
    /// Finds `kprobe` or `uprobe`, of returns or not.
    pub(crate) fn of(line: &Line, name: &str, returns: bool) -> Result<Self, Error> {
        let path = |file| format!("/sys/bus/event_source/devices/{name}/{file}");
        let kind = read_line(line, &path("type"))?;
        let kind = kind.parse();
        let kind =
            kind.map_err(|_| Error::Nonsense("a source of events whose type is no number"))?;
        let mut config = 0;
        if returns {
            let bit = read_line(line, &path("format/retprobe"))?;
            let bit = bit.strip_prefix("config:").and_then(|bit| bit.parse().ok());
            let bit = bit.filter(|bit: &u32| *bit < 64);
            config = 1 << bit.ok_or(Error::Nonsense("a flag of probes that is no bit"))?;
        }
        Ok(Self { kind, config })
    }
}

/// Opens an event with a ring that programs write to, on a CPU.
pub(crate) fn output(line: &Arc<Line>, cpu: u32) -> Answer<Handle> {
    let mut event = Event::new(PERF_TYPE_SOFTWARE, PERF_COUNT_SW_BPF_OUTPUT);
    put_u64(&mut event.attr, PERIOD, 1);
    put_u64(&mut event.attr, SAMPLE_TYPE, PERF_SAMPLE_RAW);
    put_u32(&mut event.attr, WAKEUP, 1);
    event.cpu = cpu;
    event.open(line)
}

/// Makes a program run at an event from now on.
pub(crate) fn run_at(event: &Handle, program: &Handle) -> Answer<()> {
    match control(event, ioc::SET_BPF, program.number)? {
        Ok(()) => enable(event),
        refused => Ok(refused),
    }
}

pub(crate) fn enable(event: &Handle) -> Answer<()> {
    control(event, ioc::ENABLE, 0)
}

fn control(event: &Handle, command: u32, argument: u32) -> Answer<()> {
    let request = Asked::PerfEventControl(PerfEventControl {
        handle: event.number,
        command,
        argument: argument.into(),
        text: String::new(),
    });
    Ok(event.line.ask(request)?.map(drop))
}

/// Returns the guest's CPUs that are online.
pub(crate) fn online_cpus(line: &Line) -> Result<Vec<u32>, Error> {
    let list = read_line(line, "/sys/devices/system/cpu/online")?;
    cpus(&list).ok_or(Error::Nonsense("a list of CPUs that is none"))
}

/// Parses `0-2,5`. A list with more CPUs than any machine has is none.
fn cpus(list: &str) -> Option<Vec<u32>> {
    const MOST: u32 = 8192;
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse().ok()?, last.parse::<u32>().ok()?);
        if last >= MOST || first > last {
            return None;
        }
        cpus.extend(first..=last);
    }
    (cpus.len() <= MOST as usize).then_some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(cpus("0"), Some(vec![0]));
        assert_eq!(cpus("0-2,5,7-8"), Some(vec![0, 1, 2, 5, 7, 8]));
        for bad in ["", "x", "2-1", "0-99999999", "-1", "0,,1"] {
            assert_eq!(cpus(bad), None, "{bad}");
        }
    }
}
