//! Calls of helpers: arguments are checked before, and results belong to the program from then on.

use std::cell::Cell;
use std::ptr;

use beeline_isa::abi::{Entry, HELPER_SLOTS, Helper, Run};
use beeline_isa::helper::{self, Argument, Signature};
use beeline_uapi::helper::maps::suits;
use beeline_uapi::{HelperId, MapType, object};

use super::Decoded;
use super::arguments::map_at;
use super::machine::{Machine, Registers, Stop, Tail, fault};
use super::memory::{Span, What};
use super::written::{ARGUMENTS, bit};

/// The bytes of a `struct bpf_dynptr`; it is 8-aligned.
pub(super) const DYNPTR_BYTES: usize = size_of::<object::Dynptr>();

/// A helper that a program calls.
#[derive(Debug, Clone, Copy)]
pub(super) struct Callee {
    pub id: HelperId,
    /// `None` if it cannot be called, as nothing is known of its arguments.
    signature: Option<Signature>,
    /// Bit n is set if it takes maps of type n.
    pub map_types: u64,
}

impl Callee {
    pub fn new(id: HelperId) -> Self {
        let map_types = (0..64).filter(|&map_type| takes(id, MapType(map_type)));
        Self {
            id,
            signature: helper::signature(id),
            map_types: map_types.fold(0, |set, map_type| set | 1 << map_type),
        }
    }
}

/// Returns whether a map of this type can be the helper's argument. The kernel iterates only over
/// hashes and arrays, and refuses to load a program that iterates over others.
fn takes(helper: HelperId, map_type: MapType) -> bool {
    let is_iterable = || {
        matches!(
            map_type,
            MapType::HASH
                | MapType::PERCPU_HASH
                | MapType::LRU_HASH
                | MapType::LRU_PERCPU_HASH
                | MapType::ARRAY
                | MapType::PERCPU_ARRAY
        )
    };
    suits(helper, map_type) && (helper != HelperId::FOR_EACH_MAP_ELEM || is_iterable())
}

/// The objects that helpers have given to a program.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// The handles of maps that were elements of maps.
    pub inner_maps: Vec<u64>,
    pub dynptrs: Vec<Dynptr>,
    /// Records of ring buffers that are not handed back yet.
    pub records: Vec<u64>,
    pub lock: Option<u64>,
    /// The text that the helper is called with.
    pub text: Vec<u8>,
    /// True if the program has a task's address, and so may read the memory behind it.
    pub has_task: bool,
    callback: Option<Callback>,
    /// The reason why a callback, and so the program, does not continue.
    stopped: Option<Stop>,
}

/// A dynptr on the program's stack. Helpers believe its bytes, so they must be those that a helper
/// left there.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dynptr {
    pub at: u64,
    pub bytes: [u8; DYNPTR_BYTES],
    /// True if it is a record's, and must be handed back.
    pub is_record: bool,
}

/// The function that the running helper may call, and the helper.
#[derive(Debug, Clone, Copy)]
struct Callback {
    start: usize,
    helper: HelperId,
    map: u64,
}

thread_local! {
    /// The machine of the program that has called the running helper.
    static CALLER: Cell<*mut ()> = const { Cell::new(ptr::null_mut()) };
}

// The function that helpers call in place of a function of the program.
beeline_isa::platform_fn! {
    unsafe fn call_back(a: u64, b: u64, c: u64, d: u64, e: u64, _run: *const Run) -> u64 {
        let machine = CALLER.get().cast::<Machine<'_>>();
        // SAFETY: a helper that has got this address runs, and until it is done the machine that
        // called it only waits.
        match unsafe { machine.as_mut() } {
            Some(machine) => machine.called_back([a, b, c, d, e]),
            None => 1,
        }
    }
}

impl Machine<'_> {
    /// Computes `r0 = helper(r1..r5)`.
    ///
    /// # Errors
    ///
    /// `Stop::Fault` if there is no such helper, an argument does not fit, a lock is held, or a
    /// function that the helper calls back faults.
    pub fn call_helper(&mut self, slot: usize, index: u64, r: &Registers) -> Result<u64, Stop> {
        let program: &Decoded = self.program;
        let Some(&callee) = program.callees.get(index as usize) else {
            return Err(fault(slot, "no such helper"));
        };
        let Some(signature) = callee.signature else {
            return Err(fault(
                slot,
                format!("the arguments of helper {} are not known", callee.id.0),
            ));
        };
        if self.held.lock.is_some() && callee.id != HelperId::SPIN_UNLOCK {
            return Err(fault(
                slot,
                "function calls are not allowed while holding a lock",
            ));
        }
        let mut arguments = [r[1], r[2], r[3], r[4], r[5]];
        let mut map = 0;
        for (at, &argument) in signature.arguments().iter().enumerate() {
            let value = arguments[at];
            let size = arguments.get(at + 1).copied().unwrap_or(0);
            self.check(&callee, argument, value, size, &mut map)
                .map_err(|what| fault(slot, format!("R{} {what}", at + 1)))?;
            if argument == Argument::Text {
                arguments[at] = self.held.text.as_ptr().expose_provenance() as u64;
            }
            if argument == Argument::Callback {
                self.held.callback = Some(Callback {
                    start: program.function_of(value).unwrap_or(0),
                    helper: callee.id,
                    map,
                });
                arguments[at] = call_back as *const () as u64;
            }
        }
        let result = self.invoke(slot, callee.id, arguments)?;
        self.held.callback = None;
        if let Some(stop) = self.held.stopped.take() {
            return Err(stop);
        }
        for (at, &argument) in signature.arguments().iter().enumerate() {
            self.settle(argument, r[1 + at]);
        }
        match callee.id {
            HelperId::SPIN_LOCK => self.held.lock = Some(r[1]),
            HelperId::SPIN_UNLOCK => self.held.lock = None,
            _ => {}
        }
        self.take(&signature, r, map, result);
        Ok(result)
    }

    /// Calls a helper by its number.
    fn invoke(
        &mut self,
        slot: usize,
        helper: HelperId,
        [a, b, c, d, e]: [u64; 5],
    ) -> Result<u64, Stop> {
        let HelperId(id) = helper;
        let run = self.run;
        // SAFETY: the run is whole, and its table has so many entries.
        let address = unsafe { *(*run).helpers.add(id as usize % HELPER_SLOTS) };
        if address == 0 {
            return Err(fault(slot, format!("there is no helper {id} here")));
        }
        let before = CALLER.replace(ptr::from_mut(self).cast());
        // SAFETY: an entry of the table that is not 0 is a helper's address, and its arguments were
        // checked.
        let result = unsafe { std::mem::transmute::<usize, Helper>(address)(a, b, c, d, e, run) };
        CALLER.set(before);
        Ok(result)
    }

    /// Makes the program's own tail call, in the frame of the function that makes it.
    ///
    /// # Errors
    ///
    /// `Stop::Fault` if an argument does not fit, the program holds an object, or there is no such
    /// helper.
    pub fn tail_call(&mut self, slot: usize, r: &Registers) -> Result<Tail, Stop> {
        if r[1] != self.context {
            return Err(fault(slot, "R1 is not the context"));
        }
        if !self.is_map(r[2]) {
            return Err(fault(slot, "R2 is not a map of the program's"));
        }
        if self.held.is_anything() {
            return Err(fault(slot, "tail_call would lead to reference leak"));
        }
        let run = self.run.cast_mut();
        // SAFETY: the run is whole, as the caller of `Runnable::run` promises.
        let (tables, context) = unsafe { (run.read_volatile(), (*run).context) };
        let next = self.invoke(slot, HelperId::TAIL_CALL, [r[1], r[2], r[3], r[4], r[5]])?;
        if next == 0 {
            return Ok(Tail::GoesOn);
        }
        // SAFETY: the helper returns the entry of a program, and the tables are that program's.
        let result = unsafe {
            let entry = std::mem::transmute::<usize, Entry>(next as usize);
            entry(context, run)
        };
        // SAFETY: the run is whole, and unchanged except for the tables, which become this
        // program's again.
        unsafe {
            (&raw mut (*run).maps).write_volatile(tables.maps);
            (&raw mut (*run).values).write_volatile(tables.values);
            (&raw mut (*run).map_count).write_volatile(tables.map_count);
        }
        Ok(Tail::Returned(result))
    }

    /// Runs the function that a helper calls back. Objects that it gets stay its own until it
    /// returns; 1 tells the helper to stop.
    fn called_back(&mut self, arguments: [u64; 5]) -> u64 {
        let Some(callback) = self.held.callback.filter(|_| self.held.stopped.is_none()) else {
            return 1;
        };
        let depth = self.depth;
        let outcome = self.call_frame(callback.start).and_then(|()| {
            let given = self.give(&callback, arguments);
            let mut r: Registers = [0; 16];
            for (register, argument) in r.iter_mut().skip(1).zip(arguments) {
                *register = argument;
            }
            self.run_function(callback.start, r, given)
        });
        self.held.callback = Some(callback);
        while self.depth > depth {
            self.return_frame();
        }
        self.memory.forget(|span| span.what == What::Given(depth));
        if callback.helper == HelperId::USER_RINGBUF_DRAIN {
            self.forget_dynptr(arguments[0]);
        }
        outcome.unwrap_or_else(|stop| {
            if let Stop::Fault(_) = stop {
                self.held.stopped = Some(stop);
            }
            1
        })
    }

    /// Lets a callback reach its arguments; returns the registers that are set.
    fn give(&mut self, callback: &Callback, [first, key, value, ..]: [u64; 5]) -> u16 {
        let two = bit(1) | bit(2);
        match callback.helper {
            HelperId::FOR_EACH_MAP_ELEM => {
                let spec = *map_at(callback.map).spec();
                self.take_value(callback.map, value);
                self.memory.add(Span {
                    start: key,
                    bytes: spec.key_size.into(),
                    writable: false,
                    what: What::Given(self.depth - 1),
                });
                ARGUMENTS & !bit(5)
            }
            HelperId::USER_RINGBUF_DRAIN => {
                self.know_dynptr(first, false);
                two
            }
            _ => two,
        }
    }

    /// Reads the kernel's memory for a program that has a task, as in the kernel: 0 where there is
    /// none.
    #[cold]
    pub fn read_of_kernel(&mut self, address: u64, bytes: u64) -> Option<u64> {
        if !self.held.has_task {
            return None;
        }
        let mut value = 0_u64;
        let to = (&raw mut value).expose_provenance() as u64;
        let read = self.invoke(0, HelperId::PROBE_READ_KERNEL, [to, bytes, address, 0, 0]);
        matches!(read, Ok(0)).then_some(value).or(Some(0))
    }

    /// Gives back the objects that a program should have given back; returns whether there were
    /// any.
    pub fn release(&mut self) -> bool {
        let was_anything = self.held.is_anything();
        for record in std::mem::take(&mut self.held.records) {
            let _ = self.invoke(0, HelperId::RINGBUF_DISCARD, [record, 0, 0, 0, 0]);
        }
        for dynptr in std::mem::take(&mut self.held.dynptrs) {
            if dynptr.is_record {
                let copy = Aligned(dynptr.bytes);
                let at = (&raw const copy).expose_provenance() as u64;
                let _ = self.invoke(0, HelperId::RINGBUF_DISCARD_DYNPTR, [at, 0, 0, 0, 0]);
            }
        }
        if let Some(lock) = self.held.lock.take() {
            let _ = self.invoke(0, HelperId::SPIN_UNLOCK, [lock, 0, 0, 0, 0]);
        }
        was_anything
    }
}

impl Held {
    /// Returns whether there is anything that must be given back.
    fn is_anything(&self) -> bool {
        !self.records.is_empty()
            || self.lock.is_some()
            || self.dynptrs.iter().any(|known| known.is_record)
    }
}

/// A dynptr with the alignment that a helper expects.
#[repr(C, align(8))]
struct Aligned([u8; DYNPTR_BYTES]);
