//! Links, the agent's records of programs that run at a place, and lists of them.

use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Release;

use beeline_agent::abi;
use beeline_agent::abi::syscalls::{CONTEXT_MODIFY, CONTEXT_REGISTERS, CONTEXT_TRACEPOINT};
use beeline_hook::{Filter, Registers};
use beeline_isa::abi::Run;
use beeline_uapi::attr::BPF_OBJ_NAME_LEN;

use super::Environment;
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
        let link = self.link(abi::Link {
            run,
            cookie,
            context,
            needs: needs(program, context),
            reads: program.needs.registers as usize,
            engine: word_of(&code.engine).into(),
            name,
            ..self.bare_link(at)
        })?;
        self.links.entry(program.id).or_default().push(link);
        Ok(link)
    }

    /// Places the filter of a link's program for a site, and what the filter looks at. Returns
    /// `None` if the program has none.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if the pool is full.
    pub fn place_filter(
        &mut self,
        program: &Program,
        link: u64,
        site: u64,
    ) -> Result<Option<Filter>, Error> {
        let Some(filter) = program.filter() else {
            return Ok(None);
        };
        let entry = self.place_code(filter)?.1;
        // SAFETY: `place_link` placed a `Link` there.
        let run = unsafe { self.home.get::<abi::Link>(link) }.run;
        let argument = match filter.code.uses_run {
            true => Some(self.place_context(run, site)?),
            false => None,
        };
        Ok(Some(Filter {
            entry,
            argument,
            reads: program.needs.registers,
            clobbers: Registers::of_numbers(filter.code.clobbers.bits()),
        }))
    }

    /// Places the context of a run without a slot, which is the same for every hit.
    fn place_context(&mut self, run: Run, site: u64) -> Result<u64, Error> {
        let context = abi::Context {
            run,
            target: self.target as *const abi::Target,
            slot: std::ptr::null_mut(),
            regs: std::ptr::null(),
            site: site as *const abi::Site,
            cpu: 0,
            tick: 0,
            cookie: 0,
            tail_calls: 0,
            signals: abi::PendingSignals::default(),
            unblocked: 0,
            overridden: abi::Overridden::default(),
            packet: std::ptr::null_mut(),
        };
        self.home.value(context).map_err(os("filling a pool"))
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
            false => self.place_list(links),
        }
    }

    /// True if any of a list's programs needs all registers.
    pub fn needs_registers(&self, list: u64) -> bool {
        // SAFETY: `place_list` placed the list.
        list != 0
            && unsafe { self.home.get::<abi::LinkList>(list) }.needs & abi::NEEDS_REGISTERS != 0
    }

    /// Places a list of links; 0 for none.
    ///
    /// # Errors
    ///
    /// [`Error::Os`] if the pool is full.
    pub fn place_list(&mut self, links: &[u64]) -> Result<u64, Error> {
        if links.is_empty() {
            return Ok(0);
        }
        // SAFETY: `place_link` placed a `Link` there.
        let needs = |link: &u64| unsafe { self.home.get::<abi::Link>(*link) }.needs;
        let head = [
            links.len(),
            links.iter().map(needs).fold(0, |all, one| all | one),
        ]
        .map(|word| word as u64);
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
