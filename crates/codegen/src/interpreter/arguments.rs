//! Checks the arguments of helpers, and keeps track of them and of the result after the call.

use std::ptr;

use beeline_isa::helper::{Argument, Returned, Signature};
use beeline_maps::{Kind, Map};
use beeline_uapi::HelperId;
use beeline_uapi::flags;
use beeline_uapi::limits::BPF_MAX_VAR_SIZ;
use beeline_uapi::object::SpinLock;

use super::helper_calls::{Callee, DYNPTR_BYTES, Dynptr};
use super::machine::{Machine, Registers, Stop, fault};
use super::memory::{Span, What};

impl Machine<'_> {
    /// Checks that a value is good for an argument; the error says what is wrong with it.
    ///
    /// Notes the map for the arguments behind it.
    ///
    /// # Errors
    ///
    /// The words that say what is wrong with the value.
    pub fn check(
        &mut self,
        callee: &Callee,
        argument: Argument,
        value: u64,
        size: u64,
        map: &mut u64,
    ) -> Result<(), String> {
        use Argument::*;
        let refuse = |what: &str| Err(what.to_owned());
        match argument {
            Any => Ok(()),
            Context if value == self.context => Ok(()),
            Context => refuse("is not the context"),
            Map => {
                if !self.is_map(value) {
                    return refuse("is not a map of the program's");
                }
                *map = value;
                let spec = *map_at(value).spec();
                let map_type = spec.map_type.0;
                if map_type > 63 || callee.map_types >> map_type & 1 == 0 {
                    return Err(format!(
                        "is a map of type {map_type}, which the helper does not take"
                    ));
                }
                let changes = matches!(
                    callee.id,
                    HelperId::MAP_UPDATE_ELEM | HelperId::MAP_DELETE_ELEM | HelperId::MAP_PUSH_ELEM
                );
                if changes && spec.flags & flags::RDONLY_PROG != 0 {
                    return refuse("is a map that programs only read");
                }
                Ok(())
            }
            Key => self.check_memory::<false>(value, map_at(*map).spec().key_size.into()),
            Value => self.check_memory::<false>(value, map_at(*map).spec().value_size.into()),
            ValueOrNull if value == 0 => Ok(()),
            ValueOrNull => self.check_memory::<false>(value, map_at(*map).spec().value_size.into()),
            ValueRoom => self.check_memory::<true>(value, map_at(*map).spec().value_size.into()),
            ReadOrNull | WriteOrNull if value == 0 && size == 0 => Ok(()),
            Read | ReadOrNull => self.check_memory::<false>(value, size),
            Write | WriteOrNull => self.check_memory::<true>(value, size),
            Stored => match self.memory.span_of(value, size.max(1)) {
                Some(Span {
                    writable: true,
                    what: What::Value(_),
                    ..
                }) if size < BPF_MAX_VAR_SIZ => Ok(()),
                _ => refuse("is not in a map's value"),
            },
            Size if value == 0 => refuse("invalid zero-sized access"),
            Size | SizeOrZero if value < BPF_MAX_VAR_SIZ => Ok(()),
            Size | SizeOrZero => refuse("unbounded memory access"),
            Text => self.check_text(value),
            Long if !value.is_multiple_of(8) => refuse("is not aligned"),
            Long => self.check_memory::<true>(value, 8),
            Lock => self.check_lock(callee.id, value),
            Record if self.held.records.contains(&value) => Ok(()),
            Record => refuse("is not a reserved record"),
            Callback => match self.program.function_of(value) {
                Some(_) => Ok(()),
                None => refuse("is not a function"),
            },
            Task if self.held.has_task => Ok(()),
            Task => refuse("is not a task"),
            Dynptr => self.check_dynptr(value, false),
            RecordDynptr => self.check_dynptr(value, true),
            NewDynptr | NewRecordDynptr => self.check_dynptr_room(value),
            Timer | Kernel => refuse("is an object that programs in user space cannot have"),
        }
    }

    fn check_memory<const WRITE: bool>(&mut self, at: u64, bytes: u64) -> Result<(), String> {
        if bytes == 0 || (bytes < BPF_MAX_VAR_SIZ && self.memory.allows::<WRITE>(at, bytes)) {
            return Ok(());
        }
        let verb = if WRITE { "write to" } else { "read from" };
        Err(format!("invalid {verb} memory, {bytes} bytes at {at:#x}"))
    }

    /// Copies the text, so that nothing changes it while the helper reads it.
    fn check_text(&mut self, at: u64) -> Result<(), String> {
        let most = self.memory.readable_from(at);
        self.held.text.clear();
        for i in 0..most {
            // SAFETY: `readable_from` has said that so many bytes may be read.
            let byte = unsafe { ptr::with_exposed_provenance::<u8>((at + i) as usize).read() };
            self.held.text.push(byte);
            if byte == 0 {
                return Ok(());
            }
        }
        Err("is not a string that ends".to_owned())
    }

    fn check_lock(&mut self, helper: HelperId, at: u64) -> Result<(), String> {
        let refuse = |what: &str| Err(what.to_owned());
        if helper == HelperId::SPIN_UNLOCK {
            return match self.held.lock {
                Some(lock) if lock == at => Ok(()),
                _ => refuse("bpf_spin_unlock without taking a lock"),
            };
        }
        let Some(span) = self.memory.span_of(at, size_of::<SpinLock>() as u64) else {
            return refuse("is not a lock in a map's value");
        };
        let offset = match span.what {
            What::Value(map) => map_at(map).fields().spin_lock(),
            _ => None,
        };
        match offset {
            Some(offset) if span.start + u64::from(offset) == at => Ok(()),
            _ => refuse("is not a lock in a map's value"),
        }
    }

    fn check_dynptr(&mut self, at: u64, is_record: bool) -> Result<(), String> {
        let Some(known) = self.held.dynptrs.iter().find(|known| known.at == at) else {
            return Err("is not a dynptr".to_owned());
        };
        // SAFETY: the dynptr is on the program's stack, or where a helper has put it that still
        // runs.
        if unsafe { bytes_at(at) } != known.bytes {
            return Err("is a dynptr that was written over".to_owned());
        }
        if is_record && !known.is_record {
            return Err("is not the dynptr of a record".to_owned());
        }
        Ok(())
    }

    fn check_dynptr_room(&mut self, at: u64) -> Result<(), String> {
        let on_stack = self.memory.is_stack(at, DYNPTR_BYTES as u64) && at.is_multiple_of(8);
        let is_taken =
            |known: &Dynptr| known.is_record && known.at.abs_diff(at) < DYNPTR_BYTES as u64;
        match on_stack {
            false => Err("is no place on the stack for a dynptr".to_owned()),
            true if self.held.dynptrs.iter().any(is_taken) => {
                Err("cannot overwrite referenced dynptr".to_owned())
            }
            true => Ok(()),
        }
    }

    /// Updates the state of an argument after a call.
    pub fn settle(&mut self, argument: Argument, value: u64) {
        use Argument::*;
        match argument {
            Record => {
                self.held.records.retain(|record| *record != value);
                self.memory
                    .forget(|span| span.what == What::Record && span.start == value);
            }
            RecordDynptr => self.forget_dynptr(value),
            NewDynptr | NewRecordDynptr => {
                self.held
                    .dynptrs
                    .retain(|known| known.at.abs_diff(value) >= DYNPTR_BYTES as u64);
                self.know_dynptr(value, argument == NewRecordDynptr);
            }
            _ => {}
        }
    }

    pub fn know_dynptr(&mut self, at: u64, is_record: bool) {
        // SAFETY: the dynptr is on the program's stack, or where a helper has put it that still
        // runs.
        let bytes = unsafe { bytes_at(at) };
        self.held.dynptrs.push(Dynptr {
            at,
            bytes,
            is_record,
        });
    }

    pub fn forget_dynptr(&mut self, at: u64) {
        self.held.dynptrs.retain(|known| known.at != at);
        self.memory.forget(|span| span.what == What::Part(at));
    }

    /// Lets the program reach the memory that a helper has returned.
    pub fn take(&mut self, signature: &Signature, r: &Registers, map: u64, result: u64) {
        if result == 0 {
            return;
        }
        match signature.result {
            Returned::ValueOrNull => self.take_value(map, result),
            Returned::RecordOrNull => {
                self.held.records.push(result);
                self.memory.add(Span {
                    start: result,
                    bytes: r[2],
                    writable: true,
                    what: What::Record,
                });
            }
            Returned::PartOrNull if self.memory.span_of(result, r[3] & 0xffff_ffff).is_none() => {
                self.memory.add(Span {
                    start: result,
                    bytes: r[3] & 0xffff_ffff,
                    writable: true,
                    what: What::Part(r[1]),
                });
            }
            Returned::Task => self.held.has_task = true,
            _ => {}
        }
    }

    pub fn take_value(&mut self, map: u64, value: u64) {
        let spec = map_at(map).spec();
        if matches!(spec.kind(), Some(Kind::ArrayOfMaps | Kind::HashOfMaps)) {
            if !self.held.inner_maps.contains(&value) {
                self.held.inner_maps.push(value);
            }
            return;
        }
        self.memory.add(Span {
            start: value,
            bytes: spec.value_size.into(),
            writable: spec.flags & flags::RDONLY_PROG == 0,
            what: What::Value(map),
        });
    }

    /// Returns the handle of a map by its index.
    ///
    /// # Errors
    ///
    /// `Stop::Fault` if there is no such map.
    pub fn map(&self, slot: usize, index: u32) -> Result<u64, Stop> {
        // SAFETY: the run is whole, as the caller of `Runnable::run` promises.
        let (maps, count) = unsafe { ((*self.run).maps, (*self.run).map_count) };
        if index as usize >= count {
            return Err(fault(slot, format!("there is no map {index}")));
        }
        // SAFETY: the index is below `count`, and the table has so many entries.
        Ok(unsafe { *maps.add(index as usize) } as u64)
    }

    /// Returns an address in the first value of a map.
    ///
    /// # Errors
    ///
    /// `Stop::Fault` if there is no such map, or it has no values by address.
    pub fn map_value(&mut self, slot: usize, index: u32, offset: u64) -> Result<u64, Stop> {
        let handle = self.map(slot, index)?;
        // SAFETY: the run is whole, and this table is as long as the table of handles, in which the
        // index was found.
        let start = unsafe { *(*self.run).values.add(index as usize) } as u64;
        if start == 0 {
            return Err(fault(slot, format!("map {index} has no values by address")));
        }
        let spec = map_at(handle).spec();
        self.memory.add(Span {
            start,
            bytes: spec.value_size.into(),
            writable: spec.flags & flags::RDONLY_PROG == 0,
            what: What::Value(handle),
        });
        Ok(start.wrapping_add(offset))
    }

    pub fn is_map(&self, handle: u64) -> bool {
        // SAFETY: the run is whole, as the caller of `Runnable::run` promises.
        let maps = unsafe {
            match (*self.run).map_count {
                0 => &[],
                count => std::slice::from_raw_parts((*self.run).maps, count),
            }
        };
        maps.contains(&(handle as usize)) || self.held.inner_maps.contains(&handle)
    }
}

/// Returns the map behind a handle that [`Machine::is_map`] knows.
pub(super) fn map_at<'m>(handle: u64) -> &'m Map {
    // SAFETY: this is a map handle's address, and a handle begins with its map; it outlives the
    // run.
    unsafe { &*ptr::with_exposed_provenance(handle as usize) }
}

/// Reads a dynptr's bytes.
///
/// # Safety
/// The bytes can be read.
unsafe fn bytes_at(at: u64) -> [u8; DYNPTR_BYTES] {
    // SAFETY: the caller promises that the bytes can be read.
    unsafe { ptr::with_exposed_provenance::<[u8; DYNPTR_BYTES]>(at as usize).read_unaligned() }
}
