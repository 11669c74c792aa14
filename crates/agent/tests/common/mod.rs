//! Shared parts of the tests: the kernel as an oracle, and an environment to call helpers in.
#![allow(dead_code)] // Each test uses its part.

#[path = "../../../maps/tests/common/mod.rs"]
pub mod maps;

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use beeline_agent::abi::{Context, Control, FAULTS_CAUGHT, MapHandle, Session, Site, Slot, Target};
use beeline_agent::helpers;
use beeline_codegen::{Context as Argument, Executable, Fault, Runnable};
use beeline_isa::abi::Run;

/// The tables that helpers use when a program runs.
pub struct Environment {
    context: Context,
    target: Box<Target>,
    maps: Vec<usize>,
    values: Vec<usize>,
    argument: *mut u8,
    _slot: Box<Slot>,
    /// Leases of other processes; waiters for a lock check them.
    slots: Vec<Slot>,
    control: Box<Control>,
    _session: Box<Session>,
}

impl Environment {
    /// Makes an environment of this process, without maps and without a handler for faults.
    pub fn new() -> Self {
        // SAFETY: all are integers, pointers and atomics, for which zero is good.
        let (mut target, mut slot, mut context): (Box<Target>, Box<Slot>, Context) = unsafe {
            (
                Box::new(std::mem::zeroed()),
                Box::new(std::mem::zeroed()),
                std::mem::zeroed(),
            )
        };
        let pid = std::process::id();
        let mut control = Box::new(Control {
            pid: AtomicU32::new(pid),
            own_pid: pid,
            locks: AtomicU32::new(0),
            children: AtomicU32::new(0),
            orphan: AtomicU32::new(0),
            users: AtomicU32::new(0),
            user_changes: AtomicU32::new(0),
            names: AtomicU32::new(0),
            disturbed: AtomicU32::new(0),
            awaits_data: AtomicU32::new(0),
        });
        // SAFETY: all atomics.
        let session: Box<Session> = unsafe { Box::new(std::mem::zeroed()) };
        target.session = &raw const *session;
        target.control = &raw mut *control;
        target.cpus = 1;
        target.owner = 2;
        target.tid_offset = beeline_agent::abi::TID_UNKNOWN;
        context.target = &raw const *target;
        context.slot = &raw mut *slot;
        Self {
            context,
            target,
            maps: Vec::new(),
            values: Vec::new(),
            argument: std::ptr::null_mut(),
            _slot: slot,
            slots: Vec::new(),
            control,
            _session: session,
        }
    }

    /// Makes a map the program's own; returns the value that a program would load for it.
    pub fn add_map(&mut self, map: beeline_maps::Map) -> u64 {
        let rings = std::ptr::null();
        // A test's few handles live as long as it does.
        let id = 1;
        let handle = Box::leak(Box::new(MapHandle { map, rings, id }));
        self.maps.push(std::ptr::from_ref(handle) as usize);
        self.context.run.maps = self.maps.as_ptr();
        self.values
            .push(map.base() as usize + map.layout().values as usize);
        self.context.run.values = self.values.as_ptr();
        self.context.run.map_count = self.maps.len();
        std::ptr::from_ref(handle) as u64
    }

    /// Makes these maps the program's own, and no others, by the values from
    /// [`Environment::add_map`].
    pub fn use_maps(&mut self, handles: &[u64]) {
        self.maps.clear();
        self.values.clear();
        for &handle in handles {
            // SAFETY: a handle that was leaked above.
            let map = unsafe { (*(handle as *const MapHandle)).map };
            self.maps.push(handle as usize);
            self.values
                .push(map.base() as usize + map.layout().values as usize);
        }
        self.context.run.maps = self.maps.as_ptr();
        self.context.run.values = self.values.as_ptr();
        self.context.run.map_count = self.maps.len();
    }

    /// Returns the device and inode of the namespace that this process is said to be in.
    pub fn set_pid_namespace(&mut self, namespace: [u64; 2]) {
        self.target.pid_namespace = namespace;
        self.context.target = &raw const *self.target;
    }

    /// Runs compiled code on this environment; returns r0.
    pub fn run(&mut self, code: &Executable) -> u64 {
        // SAFETY: the tests' programs do what verified ones would, and the context is this run's.
        unsafe { code.call(self.argument, self.prepare()) }
    }

    /// Runs a program of any engine on this environment and some memory; returns r0.
    pub fn run_on(&mut self, program: &dyn Runnable, memory: &mut [u8]) -> Result<u64, Fault> {
        let argument = Argument {
            start: memory.as_mut_ptr(),
            bytes: memory.len(),
        };
        let run = self.prepare();
        // SAFETY: as above.
        unsafe { program.run(argument, &*run) }
    }

    /// Has `run` run a program on this environment and some memory; returns its result.
    pub fn run_by<T>(&mut self, memory: &mut [u8], run: impl FnOnce(Argument, &Run) -> T) -> T {
        let argument = Argument {
            start: memory.as_mut_ptr(),
            bytes: memory.len(),
        };
        let prepared = self.prepare();
        // SAFETY: as above.
        run(argument, unsafe { &*prepared })
    }

    /// Fills in the tables at the start of a run.
    fn prepare(&mut self) -> *const Run {
        // SAFETY: the table has room for all.
        unsafe { helpers::beeline_helpers(self.target.helpers.as_mut_ptr()) };
        self.context.target = &raw const *self.target;
        self.context.run.helpers = self.target.helpers.as_ptr();
        (&raw mut self.context).cast()
    }

    /// Sets the context of programs, which must live as long as they run.
    pub fn set_argument(&mut self, argument: *mut u8) {
        self.argument = argument;
    }

    /// Sets the CPU that programs see as theirs, and the number of CPUs.
    pub fn set_cpu(&mut self, cpu: u32, cpus: u32) {
        (self.context.cpu, self.target.cpus) = (cpu, cpus);
        // SAFETY: integers, pointers and atomics, for which zero is good.
        self.slots
            .resize_with(cpus as usize, || unsafe { std::mem::zeroed() });
        self.target.slots = self.slots.as_mut_ptr();
    }

    /// Sets the attachment that programs see.
    pub fn set_attachment(&mut self, cookie: u64, site: Option<&'static Site>) {
        self.context.cookie = cookie;
        self.context.site = site.map_or(std::ptr::null(), std::ptr::from_ref);
    }

    /// Sets the task that programs see.
    pub fn set_ids(&mut self, pid: u32, tid_offset: i32) {
        self.target.tid_offset = tid_offset;
        self.control.pid.store(pid, Relaxed);
    }

    /// Catches faults of reads from now on, by this process's handler.
    pub fn catch_faults(&mut self) {
        self.target.flags.fetch_or(FAULTS_CAUGHT, Relaxed);
    }

    /// Calls a helper; returns r0.
    pub fn call(&mut self, number: u32, args: [u64; 5]) -> u64 {
        let helper = helpers::ALL.iter().find(|helper| helper.number == number);
        let [a, b, c, d, e] = args;
        // SAFETY: the tests pass what the helpers' programs would, and the context is this run's.
        unsafe {
            (helper.expect("a helper of the table").helper)(
                a,
                b,
                c,
                d,
                e,
                (&raw mut self.context).cast(),
            )
        }
    }
}

/// xorshift64*.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, end: usize) -> usize {
        (self.next() >> 11) as usize % end
    }

    pub fn one_of<T: Clone>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())].clone()
    }
}
