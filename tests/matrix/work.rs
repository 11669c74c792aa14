//! The traced processes, and their work while a tool looks.

use std::path::{Path, PathBuf};
use std::process::Command;

use beeline_e2e::{Scratch, Workload, find_program, workload};

use crate::entry::Work;

/// A traced process that works when it is told to.
pub struct Worker {
    workload: Option<Workload>,
    words: Vec<String>,
    program: PathBuf,
}

/// The languages whose programs have probes for tools: name, interpreter, what is before the
/// program, the program's file in `workloads/languages`.
const LANGUAGES: &[(&str, &str, &[&str], &str)] = &[
    (
        "java",
        "java",
        &["-XX:+ExtendedDTraceProbes", "-XX:-UsePerfData"],
        "Work.java",
    ),
    ("php", "php", &[], "work.php"),
    ("python", "/usr/bin/python3", &[], "work.py"),
    ("ruby", "ruby", &[], "work.rb"),
    ("tcl", "tclsh", &[], "work.tcl"),
    ("perl", "/usr/bin/perl", &[], "work.pl"),
    ("node", "node", &[], "work.js"),
    ("resolver", "/usr/bin/python3", &[], "resolver.py"),
];

/// A shell that starts a TLS client for each line.
const TLS: &str = r#"cd "$1" && openssl req -x509 -newkey rsa:2048 -nodes -keyout key -out cert -days 2 -subj /CN=localhost 2>/dev/null
openssl s_server -accept 127.0.0.1:4488 -cert cert -key key -www -quiet >/dev/null 2>&1 & server=$!
trap 'kill $server' EXIT
until openssl s_client -connect 127.0.0.1:4488 </dev/null >/dev/null 2>&1; do sleep 0.05; done
echo ready
while read line; do
    printf 'GET /matrix HTTP/1.0\r\n\r\n' | openssl s_client -connect 127.0.0.1:4488 -quiet -ign_eof >/dev/null 2>&1
    echo done
done
exit 7"#;

impl Worker {
    /// Starts the process and waits until it is ready. `programs` keeps what was built for others.
    ///
    /// # Errors
    /// The machine lacks the program.
    pub fn start(work: Work, scratch: &Scratch, programs: &Scratch) -> Result<Worker, String> {
        let go = || vec!["go".to_owned()];
        let (command, program, words) = match work {
            Work::None => {
                return Ok(Worker {
                    workload: None,
                    words: Vec::new(),
                    program: PathBuf::new(),
                });
            }
            Work::Calls(scenes) => {
                let program = built(programs, "calls/tools.c");
                let words = scenes.iter().map(|&scene| scene.to_owned()).collect();
                (on_one_cpu(&program), program, words)
            }
            Work::Functions => {
                let program = built(programs, "counts.c");
                (on_one_cpu(&program), program, go())
            }
            Work::Leaks => {
                let program = built(programs, "leaky.c");
                (on_one_cpu(&program), program, go())
            }
            Work::Language(name) => {
                let (command, program) = language(name, scratch)?;
                (command, program, go())
            }
            Work::Shell => {
                let words = ["one", "two", "three"].map(|word| format!("echo {word}"));
                (shell(), PathBuf::from("/bin/bash"), words.to_vec())
            }
            Work::Tls => {
                let program = find_program("openssl")?;
                let mut command = Command::new("bash");
                command.args(["-c", TLS, "bash"]).arg(scratch.path());
                (command, program, go())
            }
        };
        let mut workload = Workload::start_command(command);
        if work == Work::Shell {
            // Its first answer shows that it is the interactive shell by now.
            typed(&mut workload, "echo awake")?;
        }
        Ok(Worker {
            workload: Some(workload),
            words,
            program,
        })
    }

    /// Returns whether there is a process at all.
    pub fn works(&self) -> bool {
        self.workload.is_some()
    }

    /// Returns whether all that tools look for happens in this one process and its children. The TLS
    /// client is a program that a shell starts, which maps none of the probed files.
    pub fn is_one(&self) -> bool {
        self.works() && !self.program.ends_with("openssl")
    }

    /// Returns its process id; 0 if there is none.
    pub fn pid(&self) -> u32 {
        self.workload.as_ref().map_or(0, Workload::pid)
    }

    /// Returns the file of its program.
    pub fn program(&self) -> String {
        self.program.display().to_string()
    }

    /// Does its work.
    ///
    /// # Errors
    /// The process has died, or says that something went wrong.
    pub fn work(&mut self) -> Result<(), String> {
        let Some(workload) = &mut self.workload else {
            return Ok(());
        };
        for word in &self.words {
            let answer = match word.starts_with("echo ") {
                true => typed(workload, word)?,
                false => workload.ask(word)?,
            };
            if answer.starts_with("failed") {
                return Err(format!("the traced process says: {answer}"));
            }
        }
        Ok(())
    }

    /// Lets it end.
    ///
    /// # Errors
    /// It does not end as it should.
    pub fn finish(self) -> Result<(), String> {
        let Some(mut workload) = self.workload else {
            return Ok(());
        };
        let is_shell = self.program == Path::new("/bin/bash");
        let status = workload.wait();
        match status.code() {
            Some(beeline_e2e::EXIT_CODE) => Ok(()),
            Some(0) if is_shell => Ok(()),
            _ => Err(format!("the traced process ended with {status}")),
        }
    }
}

/// Returns a workload that is built once.
fn built(programs: &Scratch, source: &str) -> PathBuf {
    let name = Path::new(source).file_stem().unwrap_or_default();
    let program = programs.path().join(name);
    match program.is_file() {
        true => program,
        false => programs.build(source),
    }
}

/// Tools show the events of several CPUs in no order.
fn on_one_cpu(program: &Path) -> Command {
    let mut command = Command::new("taskset");
    command.args(["--cpu-list", "0"]).arg(program);
    command
}

/// bcc's `pythonstat` looks for processes named `python`.
fn language(name: &str, scratch: &Scratch) -> Result<(Command, PathBuf), String> {
    let known = LANGUAGES.iter().find(|(known, ..)| *known == name);
    let (_, interpreter, options, file) = known.ok_or(format!("no language {name}"))?;
    let interpreter = match interpreter.starts_with('/') {
        true => PathBuf::from(interpreter),
        false => find_program(interpreter)?,
    };
    let named = scratch.path().join(name);
    let started = match name {
        "python" => std::os::unix::fs::symlink(&interpreter, &named).map(|()| named),
        _ => Ok(interpreter.clone()),
    };
    let started = started.map_err(|error| error.to_string())?;
    let mut command = Command::new(started);
    command.args(*options).arg(workload("languages").join(file));
    command.env("USE_ZEND_DTRACE", "1"); // php has its probes only if it is told so
    Ok((command, interpreter))
}

/// Echoed commands and prompts go to stderr; the answers are on stdout.
fn shell() -> Command {
    let mut shell = Command::new("/bin/bash");
    let script = "echo ready; exec bash --norc --noprofile -i 2>/dev/null";
    shell.args(["--norc", "--noprofile", "-c", script]);
    shell
        .env("HISTFILE", "/dev/null")
        .env("PS1", "")
        .env("TERM", "dumb");
    shell
}

/// Types `echo WORD` to a shell that may echo its input; returns the answer.
fn typed(workload: &mut Workload, line: &str) -> Result<String, String> {
    let wanted = line.trim_start_matches("echo ");
    let mut answer = workload.ask(line)?;
    while answer != wanted {
        answer = workload.answer();
    }
    Ok(answer)
}
