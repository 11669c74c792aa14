//! A target that measures itself, and a tool on it.

use anyhow::{Context, anyhow};
use beeline_e2e::{Engine, Scratch, TICK, Tool, Workload, file_offset, find_program};
use std::path::{Path, PathBuf};

/// The place of the C library on Debian x86-64.
pub const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";

/// The programs of one benchmark run.
pub struct Programs {
    meter: PathBuf,
    attach: PathBuf,
    bpftrace: PathBuf,
    _scratch: Scratch,
}

impl Programs {
    /// Builds them.
    pub fn build() -> anyhow::Result<Programs> {
        Programs::build_with(&[])
    }

    /// Builds them with a target at the addresses in its file, like Go's programs.
    pub fn at_fixed_addresses() -> anyhow::Result<Programs> {
        Programs::build_with(&["-no-pie"])
    }

    fn build_with(options: &[&str]) -> anyhow::Result<Programs> {
        let scratch = Scratch::new();
        Ok(Programs {
            meter: scratch.build_with("meter.c", options),
            attach: scratch.build("attach.c"),
            bpftrace: find_program("bpftrace").map_err(|why| anyhow!(why))?,
            _scratch: scratch,
        })
    }

    /// Starts the target.
    pub fn target(&self) -> Target<'_> {
        Target {
            programs: self,
            workload: Workload::start(&self.meter),
        }
    }
}

/// The running target.
pub struct Target<'a> {
    programs: &'a Programs,
    workload: Workload,
}

impl Target<'_> {
    /// Returns its process id.
    pub fn pid(&self) -> u32 {
        self.workload.pid()
    }

    /// Sends a command and reads a number in answer.
    pub fn number(&mut self, command: &str) -> anyhow::Result<f64> {
        let answer = self.tell(command)?;
        answer
            .parse()
            .with_context(|| format!("the target answered {answer} to {command}"))
    }

    /// Sends a command and returns its answer.
    pub fn tell(&mut self, command: &str) -> anyhow::Result<String> {
        self.workload.ask(command).map_err(|why| anyhow!(why))
    }

    /// Returns the CPU time of one call of a function, in nanoseconds: the best of some rounds.
    pub fn time(&mut self, function: &str, calls: u64, rounds: u32) -> anyhow::Result<f64> {
        Ok(self.number(&format!("time {function} {calls} {rounds}"))? / 1000.0)
    }

    /// Runs the smallest tool with empty programs at functions of the target ('p' entry, 'r'
    /// return) and waits until they are attached.
    pub fn attach(&self, engine: Engine, kind: char, functions: &[String]) -> anyhow::Result<Tool> {
        self.attach_in(engine, &self.programs.meter, kind, functions)
    }

    /// Attaches like [`Target::attach`], at functions of another file that the target maps.
    pub fn attach_in(
        &self,
        engine: Engine,
        file: &Path,
        kind: char,
        functions: &[String],
    ) -> anyhow::Result<Tool> {
        let mut command = engine.command(&self.programs.attach);
        command.arg(self.pid().to_string()).arg(file).arg("1");
        for function in functions {
            let offset = file_offset(file, function).map_err(|why| anyhow!(why))?;
            command.arg(format!("{kind}:{offset:#x}"));
        }
        let tool = Tool::start(command);
        tool.expect_line(|line| line == "attached")
            .map_err(|why| anyhow!(why))?;
        Ok(tool)
    }

    /// Runs bpftrace with a script, in which `{prog}` is the target's file, and waits until it is
    /// attached.
    pub fn bpftrace(&self, engine: Engine, script: &str) -> anyhow::Result<Tool> {
        let mut command = engine.command(&self.programs.bpftrace);
        command.args(["-p", &self.pid().to_string()]);
        let script = script.replace("{prog}", &self.programs.meter.display().to_string());
        let tool = Tool::bpftrace(command, &script);
        tool.expect_line(|line| line == TICK)
            .map_err(|why| anyhow!(why))?;
        Ok(tool)
    }
}
