//! The operations of programs and the tool on a map.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use beeline_maps::ringbuf::Ring;
use beeline_maps::user_ringbuf::UserRing;
use beeline_maps::{Map, StackTraces, TaskStorage, spin_lock, spin_unlock};
use beeline_uapi::{Errno, flags};

use super::{CPUS, Done, ENTRIES, Step, Subject, assert_inside};
use crate::placed::Placed;

/// Values and all CPUs' values are shorter.
const LONGEST_VALUE: usize = 128;
/// Elements that are read at a time, and more than there are.
const ROOM: usize = 2 * ENTRIES as usize;
/// More turns than anything on so little memory takes.
const MOST_TURNS: usize = 1 << 17;

/// The flags of a step.
fn flags_of(step: &Step) -> u64 {
    let lock = if step.option & 4 != 0 { flags::LOCK } else { 0 };
    u64::from(step.option & 3) | lock
}

impl Subject {
    /// Makes one operation.
    pub(super) fn operate(&self, placed: &Placed<Map>, step: &Step) -> Done {
        match step.number {
            0..8 => self.as_program(placed, step),
            8..16 => self.as_tool(placed, step),
            16..22 => self.as_ring(placed, step),
            22..26 => self.as_only_some(placed, step),
            _ => {
                let owner = u32::from(step.option % 8);
                let dead = |tag: u32| tag == owner || owner == 0;
                placed.view.release(&dead, &step.caller).map(drop)
            }
        }
    }

    fn as_program(&self, placed: &Placed<Map>, step: &Step) -> Done {
        let (map, caller) = (&placed.view, &step.caller);
        let (key, mut value) = (self.key(step.key), [step.key; LONGEST_VALUE]);
        let cpu = step.caller.cpu % CPUS;
        // SAFETY: keys have at most 8 bytes, and values at most those of the buffer.
        unsafe {
            match step.number {
                0 => self.use_value(placed, map.lookup(key.as_ptr(), cpu)),
                1 => self.use_value(placed, map.lookup_percpu(key.as_ptr(), cpu)),
                2 | 3 => map.update(key.as_ptr(), value.as_ptr(), flags_of(step), caller),
                4 => map.delete(key.as_ptr(), caller),
                5 => map.push_elem(value.as_ptr(), flags_of(step), caller),
                6 if step.option & 1 == 0 => map.pop_elem(value.as_mut_ptr(), caller),
                6 => map.peek_elem(value.as_mut_ptr(), caller),
                _ => self.visit_all(placed, step),
            }
        }
    }

    /// Changes a value through the pointer that a program gets.
    fn use_value(&self, placed: &Placed<Map>, value: *mut u8) -> Done {
        if value.is_null() {
            return Err(Errno::ENOENT);
        }
        let size = placed.view.spec().value_size as usize;
        assert_inside(placed, value, size);
        if size >= 8 {
            // SAFETY: 8 bytes of a value, which is aligned.
            unsafe { AtomicU64::from_ptr(value.cast()) }.fetch_add(1, Relaxed);
        }
        Ok(())
    }

    /// Iterates over a map, and deletes what it meets.
    fn visit_all(&self, placed: &Placed<Map>, step: &Step) -> Done {
        let (map, mut met) = (&placed.view, 0);
        let key_size = map.spec().key_size as usize;
        let cpu = step.caller.cpu % CPUS;
        let visits = map.for_each(0, cpu, |key, value| {
            met += 1;
            assert!(met <= MOST_TURNS, "an iteration without end");
            let mut copy = [0; 8];
            // SAFETY: a key, of at most 8 bytes.
            unsafe { std::ptr::copy(key, copy.as_mut_ptr(), key_size) };
            let _ = self.use_value(placed, value);
            if step.option & 1 != 0 {
                // SAFETY: a key's bytes.
                let _ = unsafe { map.delete(copy.as_ptr(), &step.caller) };
            }
            step.option & 2 == 0
        })?;
        assert_eq!(visits as usize, met);
        Ok(())
    }

    fn as_tool(&self, placed: &Placed<Map>, step: &Step) -> Done {
        let (map, caller) = (&placed.view, &step.caller);
        let (key, mut value) = (self.key(step.key), [step.key; LONGEST_VALUE]);
        let key = &key[..map.spec().key_size as usize];
        let value = &mut value[..map.value_len()];
        let (mut next, lock) = (key.to_vec(), flags_of(step) & flags::LOCK);
        match step.number {
            8 => map.lookup_copy(key, value, lock, caller),
            9 | 10 if map.spec().kind().is_some_and(|kind| kind.holds_objects()) => {
                map.update_copy(key, &u32::from(step.key).to_ne_bytes(), 0, caller)?;
                // SAFETY: the key has the map's size.
                unsafe { map.object(key.as_ptr()) }
                    .map(drop)
                    .ok_or(Errno::ENOENT)
            }
            9 | 10 => map.update_copy(key, value, flags_of(step), caller),
            11 => map.delete_key(key, caller),
            12 => map.lookup_and_delete(key, value, lock, caller),
            13 if step.option & 1 == 0 => map.next_key(None, &mut next, caller),
            13 => map.next_key(Some(key), &mut next, caller),
            14 => self.read_all(placed, step, |at, keys, values| {
                map.read_batch(at, keys, values, step.option & 1 != 0, caller)
            }),
            _ => self.read_all(placed, step, |at, keys, values| {
                map.read_buckets(at..map.layout().buckets(), keys, values, caller)
            }),
        }
    }

    /// Reads a map in batches: the cursor goes on, and the elements fit.
    fn read_all(
        &self,
        placed: &Placed<Map>,
        step: &Step,
        mut read: impl FnMut(u32, &mut [u8], &mut [u8]) -> Result<beeline_maps::Batch, Errno>,
    ) -> Done {
        let room = 1 + usize::from(step.option >> 1) % ROOM;
        let mut keys = vec![0; room * placed.view.spec().key_size as usize];
        let mut values = vec![0; room * placed.view.value_len()];
        let mut cursor = 0;
        loop {
            let batch = read(cursor, &mut keys, &mut values)?;
            assert!(batch.count as usize <= room, "{batch:?} of {room}");
            match batch.next {
                None => return Ok(()),
                Some(next) => assert!(next > cursor, "{batch:?} at {cursor}"),
            }
            cursor = batch.next.unwrap_or(u32::MAX);
        }
    }

    /// Works on a ring.
    fn as_ring(&self, placed: &Placed<Map>, step: &Step) -> Done {
        if let Some(ring) = UserRing::of(&placed.view) {
            return drain(placed, ring, step);
        }
        let ring = Ring::of(&placed.view).ok_or(Errno::EINVAL)?;
        let len = usize::from(step.option) * usize::from(step.key);
        let sample = vec![step.key; len];
        match step.number {
            16 => ring.output(&sample, 0, &step.caller).map(drop),
            17 => {
                let room = ring.reserve(len as u64, 0, &step.caller)?;
                assert_inside(placed, room, len);
                // SAFETY: room for the sample, in the ring.
                unsafe { std::ptr::copy(sample.as_ptr(), room, len) };
                ring.commit(room, step.key & 1 != 0, 0);
                Ok(())
            }
            18 => {
                // A record that is never finished, and one that is not the ring's.
                ring.reserve(8, 0, &step.caller)?;
                assert!(!ring.commit(std::ptr::null_mut(), false, 0));
                Ok(())
            }
            19 => {
                let _ = (ring.query(step.key.into()), ring.dropped());
                ring.readable().map(drop).ok_or(Errno::ENOENT)
            }
            _ => {
                let record = ring.next_record().ok_or(Errno::ENOENT)?;
                assert_inside(placed, record.data, record.len);
                ring.consumed(&record);
                Ok(())
            }
        }
    }

    /// Operations of one type alone.
    fn as_only_some(&self, placed: &Placed<Map>, step: &Step) -> Done {
        let (map, caller) = (&placed.view, &step.caller);
        let thread = u32::from(step.key);
        let value = [step.key; LONGEST_VALUE];
        if let Some(stacks) = StackTraces::of(map) {
            let stack = [thread.into(); 12];
            let flags = [0, flags::REUSE_STACKID, flags::FAST_STACK_CMP, 3];
            let flags = flags[usize::from(step.option % 4)];
            return stacks.id_of(&stack, flags, caller).map(drop);
        }
        match (TaskStorage::of(map), self.lock) {
            (Some(storage), _) if step.number == 22 => {
                let is_gone = |tid: u32| tid.is_multiple_of(2);
                storage.forget(&is_gone, caller).map(drop)
            }
            (Some(storage), _) => {
                let first = match step.option & 1 {
                    0 => std::ptr::null(),
                    _ => value.as_ptr(),
                };
                // SAFETY: a value's bytes, or none.
                self.use_value(placed, unsafe { storage.value(thread, first, caller) })
            }
            (None, Some(lock)) => {
                // SAFETY: keys have at most 8 bytes.
                let value = unsafe { map.lookup(self.key(step.key).as_ptr(), 0) };
                self.use_value(placed, value)?;
                // SAFETY: the lock is there in each value.
                let is_taken = unsafe { spin_lock(value.add(lock as usize), caller) };
                if step.option & 1 == 0 {
                    // SAFETY: as above.
                    unsafe { spin_unlock(value.add(lock as usize), caller) };
                }
                is_taken.then_some(()).ok_or(Errno::EBUSY)
            }
            (None, None) => Err(Errno::EINVAL),
        }
    }
}

/// Produces a sample in a user ring as a tool does, and drains it as a program does.
fn drain(placed: &Placed<Map>, ring: UserRing<'_>, step: &Step) -> Done {
    if step.number == 16 {
        const CONSUMER: usize = 0;
        const PRODUCER: usize = beeline_maps::PAGE as usize;
        let at = placed.half(CONSUMER).load(Relaxed) & !7;
        let len = u32::from(step.option);
        let mask = placed.view.layout().mask;
        let header = placed.view.layout().values as usize + (at & mask) as usize;
        placed.half(header).store(len, Relaxed);
        placed
            .half(PRODUCER)
            .store(at.wrapping_add((len + 15) & !7), Relaxed);
        return Ok(());
    }
    let drain = ring.drain(&step.caller)?;
    let sample = drain.peek()?;
    assert_inside(placed, sample.data, sample.len as usize);
    drain.release(sample);
    Ok(())
}
