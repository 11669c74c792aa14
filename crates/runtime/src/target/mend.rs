//! Mending what kernel uprobes have made of sites, and staying out of their way.
//!
//! A thread that comes to one of a site's traps ([`beeline_image::abi::SiteTrap`]) says so. Then it is looked which kernel uprobes there are: where
//! there is none any more the patch is stored again; where one is at the site itself both are served as it is, by the trap; and a site that
//! one is inside of becomes a breakpoint, so that the kernel sees its instruction run where it is.

use std::collections::BTreeSet;
use std::mem::offset_of;
use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use beeline_hook::Kind;
use beeline_image::abi::{Control, Site};

use super::{Hold, Target};
use crate::error::Error;
use crate::uprobes::{Text, beside, kernel_uprobes};

/// How often sites beside kernel uprobes are looked at, as those go without a word.
const AGAIN: Duration = Duration::from_secs(1);

/// How often it is looked for kernel uprobes where ours see nothing beside them.
const WATCHED: Duration = Duration::from_secs(2);

/// How often it is looked for those inside of jumps.
const INSIDE: Duration = Duration::from_secs(10);

/// What is known of kernel uprobes at the sites of a target.
#[derive(Debug, Default)]
pub(super) struct Neighbours {
    /// `Session::disturbed` when the target was last looked at.
    seen: u64,
    /// When it was looked at, if some site was not as it was left.
    looked: Option<Instant>,
    /// When it was last looked for kernel uprobes at sites that they blind.
    watched: Option<Instant>,
    /// When it was last looked for some inside of jumps.
    inside: Option<Instant>,
    /// Such sites that have been told of.
    told: BTreeSet<u64>,
}

/// A site as it is now.
struct Looked {
    address: u64,
    now: Vec<u8>,
    patch: Vec<u8>,
    original: Vec<u8>,
}

impl Looked {
    fn range(&self) -> Range<u64> {
        self.address..self.address + self.now.len() as u64
    }
}

impl Target {
    /// Looks at the sites if a thread says that somebody has changed one, and mends what can be mended.
    pub(super) fn mend(&mut self) -> Result<(), Error> {
        let disturbances = self.shared.page().disturbed.load(SeqCst);
        let is_again = self
            .neighbours
            .looked
            .is_some_and(|looked| looked.elapsed() > AGAIN);
        if !is_again && (disturbances == self.neighbours.seen || !self.is_disturbed()) {
            self.neighbours.seen = disturbances;
            return Ok(());
        }
        // Its thread cannot be stopped until the child has run another program, and that may wait for us.
        if self.waits_for_child() {
            return Ok(());
        }
        let inside = self.store_again()?;
        self.neighbours.seen = disturbances;
        for address in inside {
            self.demote(address, &mut Hold::Brief)?;
        }
        Ok(())
    }

    /// Looks for kernel uprobes that no thread tells of: at sites where ours see nothing beside them, because an instruction leads
    /// elsewhere or nothing behind it can be caught; and inside of jumps. Gives what is new, for people.
    pub(super) fn blinded(&mut self) -> Vec<String> {
        let is_due = |last: Option<Instant>, pause| last.unwrap_or(self.since).elapsed() > pause;
        let is_inside_due = is_due(self.neighbours.inside, INSIDE);
        let is_blind_due = is_due(self.neighbours.watched, WATCHED);
        let mut ranges = Vec::new();
        for (address, site) in &self.sites {
            if is_blind_due && site.is_blind_beside_kernel() {
                ranges.push(*address..*address + 1);
            } else if is_inside_due && matches!(site.plan.kind, Kind::Jump) {
                ranges.push(*address + 1..*address + site.plan.window_len as u64);
            }
        }
        if ranges.is_empty() || self.waits_for_child() {
            return Vec::new();
        }
        let now = Some(Instant::now());
        self.neighbours.watched = now.filter(|_| is_blind_due).or(self.neighbours.watched);
        self.neighbours.inside = now.filter(|_| is_inside_due).or(self.neighbours.inside);
        let probed = Hold::Brief.with(&self.process, |stopped| {
            self.check_same(stopped)?;
            kernel_uprobes(stopped, &ranges)
        });
        // What fails is tried again.
        let mut probed = probed.unwrap_or_default();
        let is_inside = |address: &u64| !self.sites.contains_key(address);
        let inside: Vec<u64> = probed
            .extract_if(.., |address| is_inside(address))
            .collect();
        for address in inside {
            let around = self.sites.range(..address).next_back();
            if let Some((site, _)) = around {
                let _ = self.demote(*site, &mut Hold::Brief);
            }
        }
        let pid = self.process.pid();
        let told = &mut self.neighbours.told;
        let new = probed.into_iter().filter(|address| told.insert(*address));
        let say = |address| {
            format!(
                "process {pid}: a kernel uprobe is at {address:#x}, too: as long as it is there this session does not count hits there"
            )
        };
        new.map(say).collect()
    }

    fn disturbed_at(&self) -> Option<u64> {
        let environment = self.environment.as_ref()?;
        Some(environment.private.control() + offset_of!(Control, disturbed) as u64)
    }

    fn is_disturbed(&self) -> bool {
        let mut word = [0; 4];
        let at = self.disturbed_at();
        at.is_some_and(|at| self.process.read_memory(at, &mut word).is_ok()) && word != [0; 4]
    }

    /// Stores the patches again that kernel uprobes have left incomplete. Gives the sites that kernel uprobes are inside of.
    fn store_again(&mut self) -> Result<Vec<u64>, Error> {
        let disturbed_at = self.disturbed_at();
        let sites = self.patches()?;
        let mut inside = Vec::new();
        let mut is_beside = false;
        Hold::Brief.with(&self.process, |stopped| {
            self.check_same(stopped)?;
            let mut mixed = Vec::new();
            for mut site in sites {
                // What cannot be read has been unmapped.
                let is_read = stopped.read(site.address, &mut site.now).is_ok();
                if is_read && Text::of(&site.now, &site.patch, &site.original) == Text::Mixed {
                    mixed.push(site);
                }
            }
            let ranges: Vec<_> = mixed.iter().map(Looked::range).collect();
            let probed = match ranges.is_empty() {
                true => BTreeSet::new(),
                false => kernel_uprobes(stopped, &ranges)?,
            };
            let mut code = Vec::new();
            for site in &mixed {
                let range = site.range();
                is_beside |= probed.contains(&site.address);
                if probed.range(range.start + 1..range.end).next().is_some() {
                    inside.push(site.address);
                    continue;
                }
                // A breakpoint that is not the kernel's is a debugger's, and stays.
                let mut theirs = probed.clone();
                if site.now[0] == beeline_hook::INT3 {
                    theirs.insert(site.address);
                    is_beside = true;
                }
                let bytes = beside(
                    site.address,
                    &site.now,
                    &site.patch,
                    &site.original,
                    &theirs,
                );
                code.push((site.address, bytes));
            }
            stopped.write_code(code)?;
            // As long as there is one beside us nobody need say so again: it is looked at now and then.
            if let Some(at) = disturbed_at.filter(|_| !is_beside) {
                stopped.write(at, &0u32.to_ne_bytes())?;
            }
            Ok(())
        })?;
        self.neighbours.looked = is_beside.then(Instant::now);
        Ok(inside)
    }

    /// The sites that a jump is at, and what was stored there.
    fn patches(&self) -> Result<Vec<Looked>, Error> {
        let environment = self.environment()?;
        let sites = self.sites.iter();
        let sites = sites.map(|(address, site)| {
            // SAFETY: placed as a `Site`.
            let record = unsafe { environment.home.get::<Site>(site.record) };
            let len = record.original_len as usize;
            Looked {
                address: *address,
                now: vec![0; len],
                patch: record.patch[..len].to_vec(),
                original: record.original[..len].to_vec(),
            }
        });
        Ok(sites.collect())
    }

    /// Has a site hooked by a breakpoint in place of a jump.
    pub(super) fn demote(&mut self, address: u64, hold: &mut Hold<'_>) -> Result<(), Error> {
        match self.sites.get(&address) {
            Some(site) if matches!(site.plan.kind, Kind::Jump) => {
                self.make_breakpoint(address, hold)
            }
            _ => Ok(()),
        }
    }
}
