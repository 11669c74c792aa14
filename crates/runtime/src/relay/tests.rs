//! Sources of a tool's ring come and go, and one is broken.

use beeline_maps::relay::MOST_RECORDS;
use beeline_maps::{Spec, ringbuf::Ring};
use beeline_uapi::MapType;

use super::*;
use crate::backend::Id;
use crate::budget::Budget;
use crate::domain::{Credentials, Domains};
use crate::notifier::Source as _;
use crate::perf_ring;

/// Bytes of a ring's data.
const SIZE: u32 = 1 << 20;
/// Offset of the producer's position.
const PRODUCER: usize = 4096;

/// A ring buffer and its memory.
fn ring(size: u32) -> (Arc<Memory>, Map) {
    let spec = Spec {
        map_type: MapType::RINGBUF,
        key_size: 0,
        value_size: 0,
        max_entries: size,
        flags: 0,
        map_extra: 0,
    };
    let len = beeline_maps::Layout::new(&spec, 1).unwrap().len;
    let memory = Arc::new(Memory::new("relay-test", len as usize).unwrap());
    // SAFETY: mapped for the layout's length; the tests keep the memory beside the handle.
    let map = unsafe { Map::attach(&spec, 1, memory.base()) }.unwrap();
    (memory, map)
}

/// The domains that were cut off, with the reasons.
type Notes = Arc<Mutex<Vec<(u32, String)>>>;

/// Returns what notes that a domain is cut off.
fn noting(domain: u32, noted: &Notes) -> CutOff {
    let notes = noted.clone();
    Arc::new(move |why| notes.lock().push((domain, why.to_owned())))
}

fn put(map: &Map, data: &[u8]) {
    let ring = Ring::of(map).unwrap();
    ring.output(data, 0, &MapObject::caller()).unwrap();
}

/// Takes the records out of a tool's ring.
fn take(map: &Map) -> Vec<Vec<u8>> {
    let ring = Ring::of(map).unwrap();
    let mut all = Vec::new();
    while let Some(record) = ring.next_record() {
        // SAFETY: a finished record of a ring that nobody else writes.
        all.push(unsafe { std::slice::from_raw_parts(record.data, record.len) }.to_vec());
        ring.consumed(&record);
    }
    all
}

fn store(memory: &Memory, at: usize, value: u64) {
    // SAFETY: an aligned word of the ring's memory.
    unsafe { memory.base().add(at).cast::<u64>().write_volatile(value) };
}

/// A tool's ring with sources of the domains 0, 1, ...
struct Setting {
    relay: Relay<Map>,
    tools: (Arc<Memory>, Map),
    sources: Vec<(Arc<Memory>, Map)>,
    noted: Notes,
}

impl Setting {
    fn new(sources: u32, size: u32) -> Self {
        let (relay, tools, noted) = (Relay::default(), ring(size), Notes::default());
        assert!(relay.is_empty());
        let sources: Vec<_> = (0..sources).map(|_| ring(size)).collect();
        for (domain, (memory, _)) in sources.iter().enumerate() {
            let domain = domain as u32;
            let place = (memory.clone(), Charge::default());
            let cut_off = noting(domain, &noted);
            relay
                .add(DomainId(domain), place, &tools.1, cut_off)
                .unwrap();
        }
        Self {
            relay,
            tools,
            sources,
            noted,
        }
    }

    fn put(&self, domain: usize, data: &[u8]) {
        put(&self.sources[domain].1, data);
    }

    fn run(&self) -> (u64, u64, bool) {
        let done = self.relay.run(&self.tools.1);
        (done.relayed, done.dropped, done.more)
    }

    fn take(&self) -> Vec<Vec<u8>> {
        take(&self.tools.1)
    }
}

#[test]
fn records_of_all_sources_come_out() {
    let setting = Setting::new(2, SIZE);
    assert!(!setting.relay.is_empty() && !setting.relay.is_readable());
    setting.put(0, b"first");
    setting.put(1, b"second");
    setting.put(0, b"third");
    assert!(setting.relay.is_readable());
    assert_eq!(setting.run(), (3, 0, false));
    assert!(!setting.relay.is_readable());
    let mut got = setting.take();
    got.sort();
    assert_eq!(got, [&b"first"[..], b"second", b"third"]);
    put(&setting.tools.1, b"direct");
    setting.put(1, b"relayed");
    assert_eq!(setting.run(), (1, 0, false));
    assert_eq!(setting.take(), [&b"direct"[..], b"relayed"]);
}

#[test]
fn a_broken_source_is_cut_off_and_the_others_go_on() {
    let setting = Setting::new(3, SIZE);
    setting.put(0, b"a");
    setting.put(1, b"b");
    setting.put(2, b"c");
    store(&setting.sources[1].0, PRODUCER, 12);
    setting.put(2, b"broken behind this");
    store(&setting.sources[2].0, 2 * PRODUCER + 16, 1 << 20);
    assert!(!setting.run().2);
    let mut got = setting.take();
    got.sort();
    assert_eq!(got, [b"a", b"c"]);
    let mut noted = std::mem::take(&mut *setting.noted.lock());
    noted.sort();
    let whys = noted.iter().map(|(domain, why)| (*domain, why.as_str()));
    assert!(whys.eq([
        (1, "the producer's position is not aligned"),
        (2, "a record has an impossible length"),
    ]));
    setting.put(0, b"d");
    assert_eq!(setting.run(), (1, 0, false));
    assert!(setting.noted.lock().is_empty(), "told once");
    setting.put(1, b"not read");
    assert_eq!(setting.run(), (0, 0, false));
    setting.relay.retire(DomainId(1), &setting.tools.1);
    assert_eq!(Arc::strong_count(&setting.sources[1].0), 1, "let go");
}

#[test]
fn a_run_ends_with_much_to_relay() {
    let setting = Setting::new(1, SIZE);
    let once = TURNS as u64 * u64::from(MOST_RECORDS);
    for _ in 0..once + once / 4 {
        setting.put(0, b"");
    }
    assert_eq!(setting.run(), (once, 0, true));
    assert_eq!(setting.run(), (once / 4, 0, false));
    assert_eq!(setting.take().len() as u64, once + once / 4);
}

#[test]
fn sources_share_the_room_of_the_tools_ring() {
    let setting = Setting::new(3, SIZE);
    let kinds = [[0; 4096], [1; 4096], [2; 4096]];
    for _ in 0..250 {
        for (domain, data) in kinds.iter().enumerate() {
            setting.put(domain, data);
        }
    }
    let (relayed, dropped, more) = setting.run();
    assert_eq!((relayed + dropped, more), (750, false));
    let got = setting.take();
    assert_eq!(got.len() as u64, relayed);
    for kind in kinds {
        let count = got.iter().filter(|record| record[..] == kind).count();
        assert!((80..=90).contains(&count), "{count} of 255");
    }
    assert_eq!(Ring::of(&setting.tools.1).unwrap().dropped(), dropped);
}

#[test]
fn memory_of_a_source_is_large_enough_and_stays_so() {
    let setting = Setting::new(1, SIZE);
    let (file, len) = (setting.sources[0].0.share().unwrap(), 4096);
    assert!(rustix::fs::ftruncate(&file, len).is_err(), "it is sealed");
    let add = |memory| {
        let cut_off = noting(7, &setting.noted);
        let place = (memory, Charge::default());
        setting
            .relay
            .add(DomainId(7), place, &setting.tools.1, cut_off)
    };
    let small = Arc::new(Memory::new("relay-test", len as usize).unwrap());
    assert_eq!(add(small), Err(Errno::EINVAL));
    // Sealed before: a map's own memory.
    let (memory, _) = ring(SIZE);
    memory.seal_size().unwrap();
    assert_eq!(add(memory), Ok(()));
}

#[test]
fn a_perf_ring_relays_its_sources() {
    let tools = perf_ring::Ring::new(Id(5), 0, &Budget::default()).unwrap();
    let domains = Domains::new().unwrap();
    let stranger = Credentials::of(std::process::id() as i32).unwrap();
    let domain = domains.enter(&stranger, (1, 7), |_| {}).unwrap();
    let early = tools.source_of(&domain).map(drop);
    assert_eq!(early, Err(Errno::EINVAL), "the tool has not mapped it");
    tools.resize(4).unwrap();
    let memory = tools.source_of(&domain).unwrap();
    // SAFETY: memory of a ring of 4 pages, kept by this function.
    let ring = unsafe { perf::Ring::attach(4, memory.base()) }.unwrap();
    let output = || ring.output(b"sample", &MapObject::caller());
    assert_eq!(output(), Err(Errno::EOPNOTSUPP));
    tools.enable(true);
    assert!(!tools.news() && !tools.is_readable());
    output().unwrap();
    assert!(tools.is_readable());
    assert!(tools.news() && !tools.news());
    assert!(tools.is_readable(), "the tool has not read it");
    assert_eq!(domain.why_cut_off(), None);
    store(&memory, 1024, 7);
    assert!(!tools.news());
    assert!(domain.why_cut_off().is_some());
}
