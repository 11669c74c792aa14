//! Errands: the operations of programs in processes on maps that are all in the kernel. A thread makes
//! them, with `bpf(2)`, so that both sides have one map with the kernel's own semantics. See
//! [`beeline_agent::abi::errands`].
//!
//! Processes need neither a descriptor nor leave to call `bpf(2)` for that. Only those of the home
//! domain get such maps, and can do to them whatever they like, as to all memory of their domain.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{
    AtomicBool, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use beeline_agent::abi::errands::{
    DELETE, DONE, Errand, Errands, LOOK_UP, POSTED, RUNNING, UPDATE,
};
use beeline_uapi::Errno;
use parking_lot::Mutex;
use rustix::thread::futex;

use crate::backend::Id;
use crate::domain::{self, Domain};
use crate::map::MapObject;

/// The interval between two looks without a call.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// The maps that are all in the kernel, and in processes.
type Maps = Mutex<HashMap<Id, Weak<MapObject>>>;

/// The thread that runs errands.
#[derive(Debug)]
pub struct ErrandRunner {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    home: Arc<Domain>,
    cpus: u32,
    maps: Maps,
    is_over: AtomicBool,
}

impl ErrandRunner {
    /// Starts the thread, for the slots of the home domain.
    ///
    /// # Errors
    ///
    /// Those of pthread_create(3).
    pub fn start(home: Arc<Domain>, cpus: u32) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            home,
            cpus,
            maps: Mutex::default(),
            is_over: AtomicBool::new(false),
        });
        let thread = std::thread::Builder::new()
            .name("beeline-errands".into())
            .spawn({
                let shared = shared.clone();
                move || shared.run()
            })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Serves a map, too. Programs that have asked for it already get their answers.
    pub fn add(&self, map: &Arc<MapObject>) {
        self.shared.maps.lock().insert(map.id, Arc::downgrade(map));
        self.shared.call();
    }
}

impl Drop for ErrandRunner {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Release);
        self.shared.call();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn errands(&self) -> &Errands {
        &self.home.page().errands
    }

    /// Makes the thread look.
    fn call(&self) {
        domain::wake(&self.errands().posted);
    }

    fn run(&self) {
        let errands = self.errands();
        while !self.is_over.load(Acquire) {
            let posted = errands.posted.load(Acquire);
            // Processes that have given up wait again from now on.
            errands.deaf.store(0, Relaxed);
            let mine = errands.all.iter().take(self.cpus as usize);
            let run = mine.filter(|errand| self.run_one(errand)).count();
            if run == 0 {
                domain::wait_for_any(&[(&errands.posted, posted)], LOOK_AGAIN);
            }
        }
    }

    /// Runs an errand, if there is one for a map that is known here.
    fn run_one(&self, errand: &Errand) -> bool {
        if errand.state.load(Acquire) != POSTED {
            return false;
        }
        let map = Id(errand.map.load(Relaxed));
        let map = self.maps.lock().get(&map).and_then(Weak::upgrade);
        // Others may be in the kernel only, where no process may change them.
        let Some(map) = map.filter(|map| map.is_elsewhere()) else {
            return false;
        };
        // Whoever has given up has taken it back.
        let began = errand
            .state
            .compare_exchange(POSTED, RUNNING, AcqRel, Relaxed);
        if began.is_err() {
            return false;
        }
        let error = operate(&map, errand).err().map_or(0, |errno| errno.0);
        errand.error.store(error, Relaxed);
        let _ = errand
            .state
            .compare_exchange(RUNNING, DONE, AcqRel, Relaxed);
        let _ = futex::wake(&errand.state, futex::Flags::empty(), 1);
        true
    }
}

fn operate(map: &MapObject, errand: &Errand) -> Result<(), Errno> {
    let key = copied(&errand.key, map.spec.key_size)?;
    let flags = errand.flags.load(Relaxed);
    match errand.operation.load(Relaxed) {
        LOOK_UP => {
            let mut value = vec![0; map.spec.value_size as usize];
            map.lookup(&key, &mut value, 0)?;
            store(&errand.value, &value);
            Ok(())
        }
        UPDATE => map.update(&key, &copied(&errand.value, map.spec.value_size)?, flags),
        DELETE => map.delete(&key),
        _ => Err(Errno::EINVAL),
    }
}

fn copied(words: &[AtomicU64], len: u32) -> Result<Vec<u8>, Errno> {
    let bytes: Vec<u8> = words
        .iter()
        .flat_map(|word| word.load(Relaxed).to_ne_bytes())
        .collect();
    bytes
        .get(..len as usize)
        .map(<[u8]>::to_vec)
        .ok_or(Errno::EINVAL)
}

fn store(words: &[AtomicU64], bytes: &[u8]) {
    for (word, part) in words.iter().zip(bytes.chunks(size_of::<u64>())) {
        let mut whole = [0; size_of::<u64>()];
        if let Some(begin) = whole.get_mut(..part.len()) {
            begin.copy_from_slice(part);
        }
        word.store(u64::from_ne_bytes(whole), Relaxed);
    }
}
