//! A script with the known parts of its output, checked on every engine.

use crate::output::holds_word;
use crate::{
    Ended, Engine, Scratch, Tool, Workload, beeline_wanted, engines, file_offset, find_program,
    shape, tidy,
};
use std::path::Path;
use std::process::Command;

/// The required agreement of one engine's output with the other's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compare {
    /// The same lines in the same order.
    Exact,
    /// The same lines; events of several CPUs may arrive in another order.
    Sorted,
    /// The same form, apart from the figures: for times and random numbers.
    Shape,
}

/// A bpftrace script for a workload.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// Options for bpftrace, besides `-p` and `-e`.
    pub options: &'a [&'a str],
    /// The script.
    ///
    /// `{prog}` is the workload's path, `{pid}` its process id, `{libc}` the C library's path, and
    /// `{at FUNCTION+OFFSET}` that place's address in the workload's file.
    pub script: &'a str,
    /// The way in which outputs are compared.
    pub compare: Compare,
    /// Lines that must be there on every engine; PID and ADDR stand for the parts that differ from
    /// run to run.
    pub known: &'a [&'a str],
}

/// The place of the C library on Debian x86-64.
const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";

impl Case<'_> {
    /// Builds a file of `workloads/`, and runs the script for it on every engine.
    ///
    /// # Errors
    /// The reason why it cannot be tried here.
    pub fn check(&self, workload: &str) -> Result<(), String> {
        self.check_built(workload, &[])
    }

    /// Checks like [`Case::check`], with more options for gcc.
    ///
    /// # Errors
    /// As for [`Case::check`].
    pub fn check_built(&self, workload: &str, options: &[&str]) -> Result<(), String> {
        let scratch = Scratch::new();
        let program = scratch.build_with(workload, options);
        self.check_on(&program, || Command::new(&program))
    }

    /// Runs the script on every engine, each for a new process of `target`; `{prog}` is `program`.
    ///
    /// # Errors
    /// As for [`Case::check`].
    pub fn check_on(&self, program: &Path, target: impl Fn() -> Command) -> Result<(), String> {
        self.check_by(&engines()?, program, target)
    }

    /// Checks like [`Case::check_on`], on Beeline alone, for output that is known to differ on the
    /// kernel.
    ///
    /// Only the known parts of the output are checked.
    ///
    /// # Errors
    /// As for [`Case::check`].
    pub fn check_beeline(
        &self,
        program: &Path,
        target: impl Fn() -> Command,
    ) -> Result<(), String> {
        beeline_wanted()?;
        self.check_by(&[Engine::Beeline], program, target)
    }

    fn check_by(
        &self,
        engines: &[Engine],
        program: &Path,
        target: impl Fn() -> Command,
    ) -> Result<(), String> {
        let bpftrace = find_program("bpftrace")?;
        let honest = unprobed_answer(target());
        let run = |&engine: &Engine| self.run(engine, &bpftrace, program, &target, &honest);
        let outputs: Vec<_> = engines.iter().map(run).collect();
        if let [kernel, beeline] = outputs.as_slice() {
            let (kernel, beeline) = (self.comparable(kernel), self.comparable(beeline));
            let script = self.script;
            assert_eq!(
                beeline, kernel,
                "beeline (left) and the kernel (right) disagree on {script}"
            );
        }
        Ok(())
    }

    fn run(
        &self,
        engine: Engine,
        bpftrace: &Path,
        program: &Path,
        target: impl Fn() -> Command,
        honest: &str,
    ) -> Vec<String> {
        let mut workload = self.start_apart(target);
        let pid = workload.pid();
        let script = with_addresses(self.script, program)
            .replace("{prog}", &program.display().to_string())
            .replace("{libc}", LIBC)
            .replace("{pid}", &pid.to_string());
        let mut command = engine.command(bpftrace);
        command.args(self.options).args(["-p", &pid.to_string()]);
        let tool = Tool::bpftrace(command, &script);
        tool.wait_attached();
        assert_eq!(
            workload.go(),
            honest,
            "{engine} changed the target's results"
        );
        tool.settle();
        let ended = tool.interrupt();
        assert!(ended.status.success(), "{engine}: {script}: {ended:?}");
        workload.finish();
        let output = tidy(&ended.stdout, self.names_processes().then_some(pid));
        self.assert_known(engine, &output, &ended);
        output
    }

    /// Starts a target with a process id that is none of the numbers in the script or its known
    /// output.
    fn start_apart(&self, target: impl Fn() -> Command) -> Workload {
        loop {
            let workload = Workload::start_command(target());
            let mut texts = self.known.iter().chain([&self.script]);
            if !texts.any(|text| holds_word(text, workload.pid())) {
                return workload;
            }
        }
    }

    /// Returns whether the script uses `pid` or `tid`, so that its maps' keys may hold them.
    fn names_processes(&self) -> bool {
        let mut words = self.script.split(|c: char| !c.is_ascii_alphanumeric());
        words.any(|word| matches!(word, "pid" | "tid"))
    }

    fn assert_known(&self, engine: Engine, output: &[String], ended: &Ended) {
        let all = output.join("\n");
        for known in self.known {
            let found = output.iter().any(|line| line.trim() == *known);
            let said = &ended.stderr;
            assert!(
                found,
                "{engine}: no line \"{known}\" from {}:\n{all}\n{said:?}",
                self.script
            );
        }
    }

    fn comparable(&self, output: &[String]) -> Vec<String> {
        match self.compare {
            Compare::Exact => output.to_vec(),
            Compare::Sorted => {
                let mut lines = output.to_vec();
                lines.sort();
                lines
            }
            Compare::Shape => shape(output),
        }
    }
}

/// Replaces each `{at FUNCTION+OFFSET}` by its address.
fn with_addresses(script: &str, program: &Path) -> String {
    let Some((before, rest)) = script.split_once("{at ") else {
        return script.to_owned();
    };
    let (place, after) = rest.split_once('}').expect("a closing brace");
    let (function, offset) = place.split_once('+').expect("a function and an offset");
    let offset: u64 = offset.parse().expect("a decimal offset");
    let address = file_offset(program, function).expect("a symbol of the workload") + offset;
    format!("{before}{address:#x}{}", with_addresses(after, program))
}

/// Returns the workload's answer without probes.
fn unprobed_answer(target: Command) -> String {
    let mut workload = Workload::start_command(target);
    let answer = workload.go();
    workload.finish();
    answer
}
