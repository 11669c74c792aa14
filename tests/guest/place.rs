//! A tool that looks at a guest's kernel: inside the guest, or on this machine through Beeline.

use crate::proxy::Proxy;
use beeline_e2e::{
    Answer, Ended, Engine, GUEST_PATIENCE, Guest, Job, TICK, Tool, engines, find_program, until,
};
use std::fmt;
use std::time::Duration;

/// The place where a tool runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the guest: the yardstick.
    Inside,
    /// On this machine, behind `beeline run --guest`.
    Host,
    /// The same, with access to the guest's memory.
    Memory,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Place::Inside => "inside the guest",
            Place::Host => "by beeline",
            Place::Memory => "by beeline, in the guest's memory",
        })
    }
}

/// A program in the guest that gives another program a terminal for its output.
pub const TERMINAL: &str = "/test/terminal";

/// A guest, and both ways to its kernel, or the one that `BEELINE_E2E_ENGINE` selects.
pub struct Setting<'a> {
    /// The guest.
    pub guest: &'a Guest,
    /// The places where tools run.
    pub places: Vec<Place>,
    proxy: Option<Proxy<'a>>,
}

/// A started tool.
pub struct Running<'a> {
    place: Place,
    tool: Process<'a>,
    guest: &'a Guest,
    /// The programs attached in the guest without it.
    before: Option<u32>,
}

enum Process<'a> {
    Job(Job<'a>),
    Tool(Tool),
}

/// A finished tool's result.
#[derive(Debug)]
pub struct Output {
    pub code: Option<i32>,
    pub stdout: Vec<String>,
    pub stderr: Vec<String>,
}

impl<'a> Setting<'a> {
    /// Starts a proxy in the guest, if tools are to run on this machine. An error says why nothing
    /// can run.
    pub fn new(guest: &'a Guest) -> Result<Setting<'a>, String> {
        Setting::with(guest, Place::Host)
    }

    /// Does the same, with the guest's memory shared.
    pub fn sharing(guest: &'a Guest) -> Result<Setting<'a>, String> {
        Setting::with(guest, Place::Memory)
    }

    fn with(guest: &'a Guest, here: Place) -> Result<Setting<'a>, String> {
        let places = engines()?.into_iter().map(|engine| match engine {
            Engine::Kernel => Place::Inside,
            Engine::Beeline => here,
        });
        let places: Vec<_> = places.collect();
        Ok(Setting {
            guest,
            proxy: places.contains(&here).then(|| Proxy::start(guest)),
            places,
        })
    }

    /// Starts one of the libbpf tools, and waits until its programs are attached.
    pub fn start(&self, place: Place, command: &[&str]) -> Running<'a> {
        // They are attached when no more are added for a while.
        const QUIET: Duration = Duration::from_millis(700);
        let before = attached(self.guest);
        let mut running = self.begin(place, command, Screen::Terminal);
        running.before = Some(before);
        let mut last = before;
        let is_attached = until(GUEST_PATIENCE, || {
            std::thread::sleep(QUIET);
            let now = attached(self.guest);
            std::mem::replace(&mut last, now) == now && now > before
        });
        if !is_attached {
            let output = running.interrupt();
            panic!("{command:?} {place} attaches nothing: {output:?}");
        }
        running
    }

    /// Starts bpftrace with a script, and waits until it is attached.
    pub fn bpftrace(&self, place: Place, script: &str) -> Running<'a> {
        let script = format!("{script} interval:ms:50 {{ printf(\"{TICK}\\n\") }}");
        let running = self.begin(place, &["bpftrace", "-e", &script], Screen::None);
        running.wait_for(1);
        running
    }

    /// Runs a tool that ends by itself.
    pub fn run(&self, place: Place, command: &[&str]) -> Output {
        match self.begin(place, command, Screen::None).tool {
            Process::Job(job) => Output::inside(job.wait()),
            Process::Tool(tool) => Output::on_host(tool.wait()),
        }
    }

    fn begin(&self, place: Place, command: &[&str], screen: Screen) -> Running<'a> {
        let tool = match place {
            Place::Inside => {
                let command = quoted(command);
                Process::Job(match screen {
                    Screen::None => self.guest.start(&command),
                    Screen::Terminal => self.guest.start(&format!("{TERMINAL} {command}")),
                })
            }
            Place::Host | Place::Memory => {
                let program = find_program(command[0]).unwrap_or_else(|why| panic!("{why}"));
                let proxy = self.proxy.as_ref().expect("it was started for this place");
                let mut host = match place {
                    Place::Memory => proxy.sharing_command(&program),
                    _ => proxy.command(&program),
                };
                host.args(&command[1..]);
                Process::Tool(match screen {
                    Screen::None => Tool::start(host),
                    Screen::Terminal => Tool::start_on_terminal(host),
                })
            }
        };
        Running {
            place,
            tool,
            guest: self.guest,
            before: None,
        }
    }
}

/// The destination of a tool's output. Most tools buffer their output unless it goes to a terminal.
#[derive(Clone, Copy)]
enum Screen {
    None,
    Terminal,
}

impl Running<'_> {
    /// Waits until bpftrace has ticked at least this often.
    fn wait_for(&self, ticks: usize) {
        let ticked = until(GUEST_PATIENCE, || self.ticks() >= ticks);
        assert!(
            ticked,
            "{} bpftrace does not tick: {:?}",
            self.place,
            self.stdout()
        );
    }

    fn ticks(&self) -> usize {
        self.stdout().iter().filter(|line| *line == TICK).count()
    }

    /// Returns the lines of its standard output so far.
    pub fn stdout(&self) -> Vec<String> {
        match &self.tool {
            Process::Job(job) => job.stdout(),
            Process::Tool(tool) => tool.stdout.so_far(),
        }
    }

    /// Waits for two more ticks of bpftrace; it has then printed everything that has happened in
    /// the guest so far.
    pub fn settle(&self) {
        self.wait_for(self.ticks() + 2);
    }

    /// Ends the tool as Ctrl-C does. Its programs are detached then, wherever it ran.
    pub fn interrupt(self) -> Output {
        let output = match self.tool {
            Process::Job(job) => Output::inside(job.interrupt()),
            Process::Tool(tool) => Output::on_host(tool.interrupt()),
        };
        if let Some(before) = self.before {
            let left = attached(self.guest);
            assert_eq!(left, before, "attached behind {}: {output:?}", self.place);
        }
        output
    }
}

impl Output {
    fn inside(answer: Answer) -> Output {
        Output {
            code: Some(answer.code),
            stdout: lines(&answer.stdout),
            stderr: lines(&answer.stderr),
        }
    }

    fn on_host(ended: Ended) -> Output {
        Output {
            code: ended.status.code(),
            stdout: ended.stdout,
            stderr: ended
                .stderr
                .into_iter()
                .filter(|line| is_not_connected(line))
                .collect(),
        }
    }
}

/// True for a line that does not say what Beeline is connected to, as no tool inside does.
fn is_not_connected(line: &str) -> bool {
    !(line.starts_with("beeline: guest ") && line.contains(", policy "))
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(str::to_owned).collect()
}

/// Returns a command as a shell reads it.
fn quoted(command: &[&str]) -> String {
    let words = command
        .iter()
        .map(|word| format!("'{}'", word.replace('\'', "'\\''")));
    words.collect::<Vec<_>>().join(" ")
}

/// Returns the number of programs attached in the guest, counted by the descriptors that hold them.
pub fn attached(guest: &Guest) -> u32 {
    let count =
        "ls -l /proc/[0-9]*/fd 2>/dev/null | grep -c -E 'bpf_link|bpf-link|\\[perf_event\\]'";
    guest.run(count).stdout.trim().parse().unwrap_or(0)
}
