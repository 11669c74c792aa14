//! Links, the agent's records of programs that run at a place, and lists of them.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Release;

use beeline_agent::abi;
use beeline_agent::abi::syscalls::{CONTEXT_MODIFY, CONTEXT_REGISTERS, CONTEXT_TRACEPOINT};
use beeline_hook::{Filter, Registers};
use beeline_isa::abi::Run;
use beeline_uapi::attr::BPF_OBJ_NAME_LEN;

use super::Environment;
use crate::engines::ProgramFilter;
use crate::error::{Error, os};
use crate::program::Program;

impl Environment {
    /// Places an [`abi::Link`] for a program with maps that are all known. `context` selects the
    /// program's context: [`abi::Link::context`].
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if the pool is full.
    pub fn place_link(
        &mut self,
        program: &Program,
        cookie: u64,
        context: usize,
    ) -> Result<u64, Error> {
        let placed = program.maps.iter().filter_map(|map| self.maps.get(&map.id));
        let (handles, values): (Vec<u64>, Vec<u64>) =
            placed.map(|placed| (placed.handle, placed.values)).unzip();
        if let Some(trace) = program.trace.and_then(|trace| self.maps.get(&trace)) {
            for record in self.records() {
                record.trace.store(trace.handle as usize, Release);
            }
        }
        let (code, at) = self.place_program(program)?;
        let maps = self.home.array(&handles).map_err(os("filling a pool"))?;
        let values = self.home.array(&values).map_err(os("filling a pool"))?;
        let run = Run {
            maps: maps as *const usize,
            values: values as *const usize,
            map_count: program.maps.len(),
            ..self.bare_run()
        };
        let mut name = [0; BPF_OBJ_NAME_LEN];
        let known = name.iter_mut().zip(program.name.bytes());
        known.for_each(|(to, from)| *to = from);
        // Where a thread's id has to be asked for, that would take a system call more.
        let knows_ids = self.record().tid_offset != abi::TID_UNKNOWN;
        let filter = match program.filter() {
            Some(filter) if knows_ids || !filter.asks_ids => {
                let maps = filter.maps.iter();
                let maps = maps.filter_map(|map| program.maps.get(*map as usize));
                self.read_by_filters.extend(maps.map(|map| map.id));
                self.place_filter(filter, run)?
            }
            _ => 0,
        };
        let link = self.link(abi::Link {
            run,
            cookie,
            context,
            filter: filter as *const abi::Filter,
            needs: needs(program, context),
            reads: program.needs.registers as usize,
            engine: word_of(&code.engine).into(),
            name,
            ..self.bare_link(at)
        })?;
        self.links.entry(program.id).or_default().push(link);
        Ok(link)
    }

    /// Places a filter, in the environment of its program, and returns its [`abi::Filter`].
    fn place_filter(&mut self, filter: &ProgramFilter, run: Run) -> Result<u64, Error> {
        let entry = self.place_code(&filter.code)?.1 as usize;
        let context = abi::Context {
            run,
            target: self.target as *const abi::Target,
            slot: std::ptr::null_mut(),
            regs: std::ptr::null(),
            site: std::ptr::null(),
            cpu: 0,
            tick: 0,
            cookie: 0,
            copied: 0,
            tail_calls: 0,
            signals: abi::PendingSignals::default(),
            unblocked: 0,
            overridden: abi::Overridden::default(),
            packet: std::ptr::null_mut(),
        };
        let filter = abi::Filter { context, entry };
        self.home.value(filter).map_err(os("filling a pool"))
    }

    /// Returns how a trampoline asks the filter of a link's program. `None` if there is none, or if
    /// a trampoline cannot show what the program looks at.
    pub fn trampoline_filter(&self, program: &Program, link: u64) -> Option<Filter> {
        let code = &program.filter()?.code.code;
        let reads = match program.needs.reads_context {
            true => program.needs.registers,
            false => 0,
        };
        // SAFETY: `place_link` placed a `Link` there, and its filter.
        let place = unsafe { self.home.get::<abi::Link>(link) }.filter as u64;
        if place == 0 || reads & !Filter::WORDS != 0 {
            return None;
        }
        // SAFETY: as above.
        let entry = unsafe { self.home.get::<abi::Filter>(place) }.entry as u64;
        Some(Filter {
            entry,
            argument: code.uses_run.then_some(place),
            reads,
            clobbers: Registers::of_numbers(code.clobbers.bits()),
        })
    }

    /// Places an [`abi::Link`] for a function of the agent itself, at an offset in it.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if the pool is full.
    pub fn place_native(&mut self, offset: u64) -> Result<u64, Error> {
        self.link(self.bare_link(self.agent + offset))
    }

    /// The same for a function that is [`abi::ALWAYS`].
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if the pool is full.
    pub fn place_always(&mut self, offset: u64) -> Result<u64, Error> {
        let link = self.bare_link(self.agent + offset);
        self.link(abi::Link {
            needs: abi::ALWAYS,
            ..link
        })
    }

    fn link(&mut self, link: abi::Link) -> Result<u64, Error> {
        self.home.value(link).map_err(os("filling a pool"))
    }

    /// Returns a link that needs everything and has no maps.
    fn bare_link(&self, code: u64) -> abi::Link {
        abi::Link {
            entry: AtomicUsize::new(code as usize),
            run: self.bare_run(),
            cookie: 0,
            needs: abi::NEEDS_SLOT | abi::NEEDS_REGISTERS,
            reads: usize::MAX,
            context: CONTEXT_REGISTERS,
            filter: std::ptr::null(),
            enabled: 1.into(),
            engine: word_of(AGENT).into(),
            name: [0; BPF_OBJ_NAME_LEN],
        }
    }

    fn bare_run(&self) -> Run {
        let helpers = self.target as usize + std::mem::offset_of!(abi::Target, helpers);
        Run {
            helpers: helpers as *const usize,
            maps: std::ptr::null(),
            values: std::ptr::null(),
            map_count: 0,
            context: std::ptr::null(),
        }
    }

    /// Returns a list that [`Self::place_list`] has placed.
    fn list_at(&self, list: usize) -> &[u64] {
        if list == 0 {
            return &[];
        }
        // SAFETY: the runtime placed the list: its length, its needs, and as many words as it says.
        unsafe {
            let head = self.home.get::<abi::LinkList>(list as u64);
            std::slice::from_raw_parts(core::ptr::from_ref(head).add(1).cast(), head.count)
        }
    }

    /// Places a list of links if it differs from `old`, which was placed earlier; 0 for none.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if the pool is full.
    pub fn place_list_anew(&mut self, links: &[u64], old: usize) -> Result<u64, Error> {
        match self.list_at(old) == links {
            true => Ok(old as u64),
            false => self.place_list(links, true),
        }
    }

    /// True if any of a list's programs needs all registers.
    pub fn needs_registers(&self, list: u64) -> bool {
        // SAFETY: `place_list` placed the list.
        list != 0
            && unsafe { self.home.get::<abi::LinkList>(list) }.needs & abi::NEEDS_REGISTERS != 0
    }

    /// Places a list of links; 0 for none. `is_asked` says that the agent is to ask their filters.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if the pool is full.
    pub fn place_list(&mut self, links: &[u64], is_asked: bool) -> Result<u64, Error> {
        if links.is_empty() {
            return Ok(0);
        }
        // SAFETY: `place_link` placed a `Link` there.
        let placed = |link: &u64| unsafe { self.home.get::<abi::Link>(*link) };
        let needs = |all, link| all | placed(link).needs;
        let mut needs = links.iter().fold(0, needs);
        if is_asked && links.iter().all(|link| !placed(link).filter.is_null()) {
            needs |= abi::FILTERED;
        }
        let head = [links.len(), needs].map(|word| word as u64);
        let words: Vec<u64> = head.into_iter().chain(links.iter().copied()).collect();
        self.home.array(&words).map_err(os("filling a pool"))
    }
}

/// Returns [`abi::Link::needs`] of a program with this [`abi::Link::context`].
fn needs(program: &Program, context: usize) -> usize {
    let registers = match context {
        CONTEXT_TRACEPOINT => program.needs.walks_stack,
        // Its result may become the call's, which is among the registers.
        CONTEXT_MODIFY => true,
        _ => program.needs.reads_context,
    };
    let slot = program.needs.slot;
    (if slot { abi::NEEDS_SLOT } else { 0 }) | (if registers { abi::NEEDS_REGISTERS } else { 0 })
}

/// [`abi::Link::engine`] of the agent's own functions.
pub const AGENT: &str = "agent";

/// Returns the first eight bytes of a name as [`abi::Link::engine`] holds them.
pub(super) fn word_of(name: &str) -> u64 {
    let mut word = [0; 8];
    word.iter_mut()
        .zip(name.bytes())
        .for_each(|(to, from)| *to = from);
    u64::from_ne_bytes(word)
}
