//! Test runs of programs for packets.

use std::mem::offset_of;
use std::sync::Arc;
use std::time::{Duration, Instant};

use beeline_agent::packet::Packet as Shown;
use beeline_uapi::ProgramType;

use super::{Here, Job, Runner, State};
use crate::error::Error;
use crate::packet::Packet;
use crate::program::Program;

/// The result of some runs on a packet.
#[derive(Debug)]
pub struct PacketResult {
    /// The packet, as the program left it.
    pub packet: Packet,
    /// r0 of the last run.
    pub value: u64,
    /// The time of all runs.
    pub duration: Duration,
}

/// Some runs that the runner's thread is asked for.
pub(super) struct PacketRun {
    pub program: Arc<Program>,
    pub packet: Packet,
    pub repeat: u32,
}

impl Runner {
    /// Runs a program so many times on a packet, each time on what the last run has left.
    ///
    /// # Errors
    ///
    /// [`Error::Runner`] if the thread is gone or has no slot free, [`Error::Os`] if memory or room
    /// in the pool is short.
    pub fn on_packet(
        &self,
        program: Arc<Program>,
        packet: Packet,
        repeat: u32,
    ) -> Result<PacketResult, Error> {
        let (result, wait) = std::sync::mpsc::channel();
        let run = PacketRun {
            program,
            packet,
            repeat,
        };
        self.send(Job::Packet { run, result });
        wait.recv().unwrap_or(Err(Error::Runner))
    }
}

impl State {
    pub(super) fn run_on_packet(&mut self, run: PacketRun) -> Result<PacketResult, Error> {
        let (shared, tool) = (self.shared.clone(), (self.tool)());
        let here = self.here()?;
        let link = here.link(&run.program, &shared)?;
        here.environment.refresh_cgroups(&shared.cgroups, tool)?;
        here.on_packet(link, run)
    }
}

impl Here {
    fn on_packet(&self, link: u64, run: PacketRun) -> Result<PacketResult, Error> {
        let PacketRun {
            program,
            mut packet,
            repeat,
        } = run;
        let context = match program.prog_type {
            ProgramType::XDP => offset_of!(Shown, xdp),
            _ => offset_of!(Shown, skb),
        };
        let start = Instant::now();
        let mut value = 0;
        for _ in 0..repeat.max(1) {
            packet.begin();
            let shown: *mut Shown = packet.shown();
            let argument = shown.cast::<u8>().wrapping_add(context);
            value = self.call_on(link, argument, shown)?;
        }
        Ok(PacketResult {
            packet,
            value,
            duration: start.elapsed(),
        })
    }
}
