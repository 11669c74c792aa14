//! Rings in the guest with records that come over the wire.

use std::mem::offset_of;

use beeline_uapi::fields::u32_at;
use beeline_uapi::flags::RINGBUF_HDR_SZ;
use beeline_uapi::perf::{PERF_RECORD_LOST, PERF_RECORD_SAMPLE, PerfEventHeader};
use beeline_vm_protocol::messages::guest_message::Body as Said;
use beeline_vm_protocol::messages::host_message::Body as Asked;
use beeline_vm_protocol::messages::{Manner, Watch};

use crate::error::{Error, Refusal};
use crate::events::Event;
use crate::guest::Guest;
use crate::handle::Handle;
use crate::map::Map;
use crate::perf;

/// Pages of data of each CPU's ring of a perf event array.
const PAGES: u32 = 64;
/// Bytes of `struct perf_event_header`, and of a ring buffer's record header.
const HEADER: usize = RINGBUF_HDR_SZ as usize;
const _: () = assert!(size_of::<PerfEventHeader>() == HEADER);

/// A ring that is watched.
#[derive(Debug)]
pub(crate) struct Ring {
    map: usize,
    /// For a perf event array: the CPU, and the event that is its ring.
    event: Option<(u32, Handle)>,
}

/// Makes the guest send the content of a map's rings.
pub(crate) fn open(place: usize, map: &Map, guest: &Guest) -> Result<Vec<Ring>, Error> {
    let refused = |refusal| Error::Map {
        name: map.name().into(),
        refusal,
    };
    if map.ring_is_one() {
        let ring = Ring {
            map: place,
            event: None,
        };
        watch(guest, map.handle.number, 0, map.ring_bytes())?.map_err(refused)?;
        return Ok(vec![ring]);
    }
    let page = u64::from(guest.welcome().page_size.max(4096));
    let mut rings = Vec::new();
    for cpu in perf::online_cpus(&guest.line)? {
        let event = perf::output(&guest.line, cpu)?.map_err(refused)?;
        map.put(&cpu.to_ne_bytes(), &event.number.to_ne_bytes())?;
        watch(guest, event.number, PAGES, u64::from(PAGES) * page)?.map_err(refused)?;
        perf::enable(&event)?.map_err(refused)?;
        rings.push(Ring {
            map: place,
            event: Some((cpu, event)),
        });
    }
    Ok(rings)
}

/// Watches a ring. The guest may send as much as the ring holds.
fn watch(guest: &Guest, handle: u32, pages: u32, bytes: u64) -> Result<Result<(), Refusal>, Error> {
    guest.inbox.allow(handle, bytes);
    let request = Asked::Watch(Watch {
        handle,
        manner: Manner::Records.into(),
        pages,
        credit: bytes,
        interval: 0,
    });
    Ok(match guest.line.ask(request)? {
        Ok(Said::Done(_)) => Ok(()),
        Ok(_) => return Err(Error::Nonsense("an answer to another question")),
        Err(refusal) => Err(refusal),
    })
}

impl Ring {
    /// Returns the handle by which the guest names it.
    pub(crate) fn handle(&self, map: &Map) -> u32 {
        let event = self.event.as_ref();
        event.map_or(map.handle.number, |(_, event)| event.number)
    }

    /// Returns the records in the data received, each as it was in the ring.
    pub(crate) fn records(&self, data: &[u8]) -> Result<Vec<Event>, Error> {
        let cpu = self.event.as_ref().map(|(cpu, _)| *cpu);
        let split = match cpu {
            Some(cpu) => of_event(self.map, cpu, data),
            None => of_buffer(self.map, data),
        };
        split.ok_or(Error::Nonsense("records that do not end where they should"))
    }
}

/// Parses a ring buffer's data: 4 bytes with the length, 4 that are the kernel's, the record, up to
/// whole 8 bytes.
fn of_buffer(map: usize, mut data: &[u8]) -> Option<Vec<Event>> {
    let mut events = Vec::new();
    while !data.is_empty() {
        data.get(HEADER - 1)?;
        let len = u32_at(data, 0) as usize;
        let record = data.get(HEADER..HEADER.checked_add(len)?)?.to_vec();
        data = data.get((HEADER + len).next_multiple_of(8)..)?;
        events.push(Event::Record {
            map,
            cpu: None,
            data: record,
        });
    }
    Some(events)
}

/// Parses a perf event's data: `struct perf_event_header`; then a sample is a length and as many
/// bytes, and a loss an id and a count.
fn of_event(map: usize, cpu: u32, mut data: &[u8]) -> Option<Vec<Event>> {
    let mut events = Vec::new();
    while !data.is_empty() {
        let size = usize::from(u16::from_ne_bytes(
            *data
                .get(offset_of!(PerfEventHeader, size)..)?
                .first_chunk()?,
        ));
        let record = data.get(..size).filter(|_| size >= HEADER)?;
        let body = &record[HEADER..];
        match u32_at(record, 0) {
            PERF_RECORD_SAMPLE => {
                let len = u32::from_ne_bytes(*body.first_chunk()?) as usize;
                let data = body.get(4..len.checked_add(4)?)?.to_vec();
                let cpu = Some(cpu);
                events.push(Event::Record { map, cpu, data });
            }
            PERF_RECORD_LOST => {
                let count = u64::from_ne_bytes(*body.get(8..)?.first_chunk()?);
                events.push(Event::Lost { map, cpu, count });
            }
            // Other records do not appear unless requested; they are meant for other readers.
            _ => {}
        }
        data = &data[size..];
    }
    Some(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(cpu: Option<u32>, data: &[u8]) -> Event {
        let data = data.to_vec();
        Event::Record { map: 3, cpu, data }
    }

    #[test]
    fn a_buffers_records_are_told_apart() {
        let mut data = vec![3, 0, 0, 0, 9, 9, 9, 9, 1, 2, 3, 0, 0, 0, 0, 0];
        data.extend([8, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]);
        let found = of_buffer(3, &data).expect("they are whole");
        let first = record(None, &[1, 2, 3]);
        assert_eq!(found, [first, record(None, &[1, 2, 3, 4, 5, 6, 7, 8])]);
        assert_eq!(of_buffer(3, &[]), Some(Vec::new()));
    }

    #[test]
    fn an_events_records_are_told_apart() {
        let mut data = vec![9, 0, 0, 0, 0, 0, 24, 0, 12, 0, 0, 0];
        data.extend([1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        data.extend([2, 0, 0, 0, 0, 0, 24, 0]);
        data.extend([1, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        data.extend([14, 0, 0, 0, 0, 0, 8, 0]);
        let found = of_event(3, 1, &data).expect("they are whole");
        let sample = record(Some(1), &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
        let lost = Event::Lost {
            map: 3,
            cpu: 1,
            count: 7,
        };
        assert_eq!(found, [sample, lost]);
    }

    #[test]
    fn records_with_a_wrong_end_are_refused() {
        for data in [
            &[8, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3][..],
            &[8, 0, 0, 0],
            &[0xff; 16],
            &[1, 0, 0, 0, 0, 0, 0, 0, 5], // not padded
        ] {
            assert_eq!(of_buffer(0, data), None, "{data:?}");
        }
        for data in [
            &[9, 0, 0, 0, 0, 0, 0, 0][..], // would never end
            &[9, 0, 0, 0, 0, 0, 4, 0],
            &[9, 0, 0, 0, 0, 0, 16, 0, 5, 0, 0, 0, 1, 2, 3, 4],
            &[9, 0, 0, 0, 0, 0, 32, 0, 4, 0, 0, 0, 1, 2, 3, 4],
            &[9, 0, 0, 0, 0, 0, 8, 0],
            &[2, 0, 0, 0, 0, 0, 16, 0, 1, 2, 3, 4, 5, 6, 7, 8],
        ] {
            assert_eq!(of_event(0, 0, data), None, "{data:?}");
        }
    }
}
