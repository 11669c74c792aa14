//! Beeline's sessions, kernel probes, debuggers and killers, at random.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use beeline_e2e::{
    Dice, PATIENCE, Scratch, Tool, Workload, beeline, compile_anew, file_offset, find_program,
    remark, seed, soak, until,
};

use crate::clients::Clients;
use crate::servers::Server;

/// The duration by default.
const USUAL: Duration = Duration::from_secs(8);
/// The most concurrent sessions in a long run: as in `beside/stress.rs`.
const SESSIONS: usize = 2;
/// Kernel probes lie up to so many bytes behind a function's start, where the kernel allows them.
const INNER: u64 = 5;
/// The most bytes of an instruction.
const LONGEST: u64 = 15;
/// The most kernel probes at a time.
const KERNELS: usize = 12;
/// The disturbances, by a letter each; `BEELINE_STORM` selects fewer, to find the cause of a
/// failure: two (s)essions at once, (k)ills of whole sessions, kernel (u)probes, uprobes (i)nside
/// functions, (d)ebuggers, (f)orks.
const ALL: &str = "skuidf";
/// The number of latest actions to print when something fails.
const TOLD: usize = 40;

/// A place that the kernel may probe.
struct Place {
    name: &'static str,
    start: u64,
    instructions: Vec<u64>,
}

/// A server, and all disturbances at it.
pub struct Storm {
    what: &'static str,
    server: Server,
    clients: Clients,
    kernel: Workload,
    /// The numbers of the kernel's probes.
    kernels: Vec<u64>,
    sessions: Vec<Tool>,
    places: Vec<Place>,
    dice: Dice,
    seed: u64,
    begun: Instant,
    rounds: u32,
    killed: u32,
    attached: u32,
    doings: Vec<String>,
    who: String,
    strace: Option<PathBuf>,
    gdb: Option<PathBuf>,
    bpftrace: PathBuf,
    _scratch: Scratch,
}

impl Storm {
    /// Runs the storm over a server, and panics if the server behaves other than without it.
    pub fn over(what: &'static str, server: Server) {
        let bpftrace = match find_program("bpftrace") {
            Ok(bpftrace) => bpftrace,
            Err(why) => return beeline_e2e::skipped(&why),
        };
        let seed = seed();
        let scratch = Scratch::new();
        let mut storm = Storm {
            what,
            clients: Clients::start(&server.connect, server.is_kept, seed),
            places: places(&server),
            server,
            kernel: Workload::start(&scratch.build("kernel_probes.c")),
            kernels: Vec::new(),
            sessions: Vec::new(),
            dice: Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            seed,
            begun: Instant::now(),
            rounds: 0,
            killed: 0,
            attached: 0,
            doings: Vec::new(),
            who: std::env::var("BEELINE_STORM").unwrap_or_else(|_| ALL.to_owned()),
            strace: find_program("strace").ok(),
            gdb: find_program("gdb").ok(),
            bpftrace,
            _scratch: scratch,
        };
        while storm.begun.elapsed() < USUAL.max(soak()) {
            storm.round();
        }
        storm.calm();
    }

    fn round(&mut self) {
        self.rounds += 1;
        if self.may('u') {
            self.kernels_come();
        }
        self.sessions_come_and_go();
        match self.dice.below(12) {
            0 | 1 if self.may('d') => self.debug(),
            2 | 3 if self.may('f') && self.server.is_reloaded => self.reload(),
            _ => {}
        }
        std::thread::sleep(Duration::from_millis(self.dice.below(300)));
        self.kernels_go();
        self.check();
    }

    fn may(&self, who: char) -> bool {
        self.who.contains(who)
    }

    fn did(&mut self, what: String) {
        let at = self.begun.elapsed().as_secs_f64();
        self.doings.push(format!("{at:.3} {what}"));
    }

    /// Panics with all that is known if something has gone wrong.
    fn check(&mut self) {
        let right = self.server.check().and_then(|()| self.clients.check());
        if let Err(why) = right {
            self.fail(&why);
        }
    }

    fn fail(&mut self, why: &str) -> ! {
        // A process's fate may be known a moment later than its missing answer.
        std::thread::sleep(Duration::from_millis(500));
        let server = self.server.check();
        let alive = self.server.processes();
        let from = self.doings.len().saturating_sub(TOLD);
        panic!(
            "{}, round {}, BEELINE_SEED={}: {why}\nthe server: {server:?}, processes {alive:?}\n{}\n--- its words\n{}",
            self.what,
            self.rounds,
            self.seed,
            self.doings[from..].join("\n"),
            self.server.words()
        );
    }

    fn kernels_come(&mut self) {
        for _ in 0..self.dice.below(4) {
            if self.kernels.len() >= KERNELS || self.places.is_empty() {
                return;
            }
            let place = &self.places[self.dice.below(self.places.len() as u64) as usize];
            let inner = self.dice.below(place.instructions.len() as u64) as usize;
            let inner = if self.who.contains('i') { inner } else { 0 };
            let at = place.instructions[inner];
            let is_start = at == place.start;
            let is_return = is_start && self.server.has_kernel_returns && self.dice.below(2) == 0;
            let how = if is_return { "ret" } else { "entry" };
            let answer = self
                .kernel
                .tell(&format!("on {} {at} {how}", self.server.alone.display()));
            let what = format!(
                "kernel on {}+{} {how}: {answer}",
                place.name,
                at - place.start
            );
            self.kernels.extend(answer.parse::<u64>());
            self.did(what);
        }
    }

    fn kernels_go(&mut self) {
        for _ in 0..self.dice.below(4) {
            if self.kernels.is_empty() {
                return;
            }
            let one = self.dice.below(self.kernels.len() as u64) as usize;
            let number = self.kernels.swap_remove(one);
            self.kernel.tell(&format!("off {number}"));
            self.did(format!("kernel off {number}"));
        }
        if self.dice.below(10) == 0 {
            self.kernel.tell("off all");
            self.kernels.clear();
            self.did("kernel off all".to_owned());
        }
    }

    fn sessions_come_and_go(&mut self) {
        let is_soak = !soak().is_zero();
        let most = if is_soak && self.may('s') {
            SESSIONS
        } else {
            1
        };
        let is_room = self.sessions.len() < most;
        if is_room && (self.sessions.is_empty() || self.dice.below(2) == 0) {
            let session = self.session();
            self.sessions.push(session);
            return;
        }
        if self.sessions.is_empty() {
            return;
        }
        let one = self.dice.below(self.sessions.len() as u64) as usize;
        match self.dice.below(5) {
            0 if is_soak && self.may('k') => {
                let session = self.sessions.swap_remove(one);
                self.did(format!("session {} killed", session.pid()));
                session.signal_group(libc::SIGKILL);
                let pid = session.pid();
                for line in session.wait().stderr {
                    self.did(format!("session {pid} had said: {line}"));
                }
                self.killed += 1;
            }
            1 => {
                let session = self.sessions.swap_remove(one);
                self.did(format!("the tool of session {} killed", session.pid()));
                kill_tool(&session);
                self.ended(session);
                self.killed += 1;
            }
            2 => {
                let session = self.sessions.swap_remove(one);
                self.interrupt(session);
            }
            _ => {}
        }
    }

    /// Waits for a session's end, and checks its messages.
    fn ended(&mut self, session: Tool) {
        let (pid, ended) = (session.pid(), session.wait());
        if ended.stdout.iter().any(|line| line == beeline_e2e::TICK) {
            self.attached += 1;
        }
        let panicked = ended.stderr.iter().any(|line| line.contains("panicked"));
        if panicked {
            self.fail(&format!("session {pid} panicked: {ended:?}"));
        }
        self.did(format!("session {pid} is gone: {}", ended.status));
        for line in &ended.stderr {
            self.did(format!("session {pid} said: {line}"));
        }
    }

    /// A session with probes at random functions, at system calls, or at both, on one of the
    /// server's processes.
    fn session(&mut self) -> Tool {
        let processes = self.server.processes();
        let pid = processes[self.dice.below(processes.len() as u64) as usize];
        let kind = self.dice.below(4);
        let mut probes = Vec::new();
        if kind != 0 {
            let common = self.server.common.iter();
            let common = common.map(|name| (self.server.alone.clone(), *name));
            for (file, name) in common.chain(self.server.functions.clone()) {
                let what = match self.dice.below(6) {
                    0 | 1 => "uprobe",
                    2 => "uretprobe",
                    _ => continue,
                };
                probes.push(format!("{what}:{}:\"{name}\"", file.display()));
            }
        }
        if kind <= 1 || probes.is_empty() {
            let calls =
                ["sys_enter", "sys_exit"].map(|one| format!("tracepoint:raw_syscalls:{one}"));
            probes.extend(calls);
        }
        let mut command = Command::new(beeline());
        let is_by_tool = kind > 1 && self.dice.below(2) == 0;
        command.arg("run");
        if !is_by_tool {
            command.args(["--pid", &pid.to_string()]);
        }
        command.arg("--").arg(&self.bpftrace);
        if is_by_tool {
            command.args(["-p", &pid.to_string()]);
        }
        compile_anew(&mut command);
        let script = format!("{} {{ @[probe] = count(); }}", probes.join(", "));
        let tool = Tool::bpftrace(command, &script);
        let short = script.replace(&format!("{}:", self.server.alone.display()), "");
        self.did(format!("session {} on {pid}: {short}", tool.pid()));
        tool
    }

    /// Attaches and detaches a debugger. Not where Beeline is: gdb takes the SIGTRAP of sites
    /// hooked by a breakpoint for its own, and strace loses any that comes while it detaches.
    fn debug(&mut self) {
        if self.dice.below(2) == 0 {
            for session in std::mem::take(&mut self.sessions) {
                self.interrupt(session);
            }
        }
        if !self.sessions.is_empty() || self.server.cleaned().is_err() {
            return;
        }
        let processes = self.server.processes();
        let pid = processes[self.dice.below(processes.len() as u64) as usize];
        let is_strace = self.dice.below(2) == 0;
        let (Some(program), pid) = (
            if is_strace {
                self.strace.clone()
            } else {
                self.gdb.clone()
            },
            pid.to_string(),
        ) else {
            return;
        };
        self.did(format!("{} at {pid}", program.display()));
        let mut command = Command::new(program);
        if is_strace {
            command.args(["-f", "-o", "/dev/null", "-p", &pid]);
            let tool = Tool::start(command);
            std::thread::sleep(Duration::from_millis(50 + self.dice.below(400)));
            tool.interrupt();
        } else {
            command.args(["-nx", "-batch", "-ex", "info threads", "-ex", "detach"]);
            command.args(["-p", &pid]);
            Tool::start(command).wait();
        }
        self.did("it is gone".to_owned());
    }

    fn interrupt(&mut self, session: Tool) {
        self.did(format!("session {} interrupted", session.pid()));
        session.signal_group(libc::SIGINT);
        self.ended(session);
    }

    fn reload(&mut self) {
        self.did("reload".to_owned());
        // SAFETY: kill touches no memory; the process is our child, not yet waited for.
        unsafe { libc::kill(self.server.pid() as i32, libc::SIGHUP) };
    }

    /// Ends all disturbances; checks that the server is as before, still answers, and ends as it
    /// should.
    fn calm(mut self) {
        for session in std::mem::take(&mut self.sessions) {
            self.interrupt(session);
        }
        self.kernel.tell("off all");
        self.did("calm".to_owned());
        let mut cleaned = Ok(());
        until(PATIENCE / 3, || {
            cleaned = self.server.cleaned();
            cleaned.is_ok()
        });
        if let Err(why) = cleaned {
            self.fail(&why);
        }
        let before = self.clients.answered();
        let goes_on = || self.clients.answered() > before + 10 || self.clients.check().is_err();
        if !until(PATIENCE, goes_on) {
            self.fail("it answers no more");
        }
        self.check();
        let stopped = std::mem::replace(&mut self.clients, Clients::none()).stop();
        let answered = match stopped {
            Ok(answered) => answered,
            Err(why) => self.fail(&why),
        };
        if let Err(why) = self.server.end() {
            self.fail(&why);
        }
        self.kernel.finish();
        remark(&format!(
            "{}: {} rounds, {} sessions were attached, {} killed, {answered} requests answered, BEELINE_SEED={}",
            self.what, self.rounds, self.attached, self.killed, self.seed
        ));
    }
}

fn kill_tool(session: &Tool) {
    for pid in session.processes() {
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        if name.is_ok_and(|name| name.trim() == "bpftrace") {
            // SAFETY: kill touches no memory; the process is of a group that we started.
            unsafe { libc::kill(pid as i32, libc::SIGKILL) };
        }
    }
    // Before the tool starts, and after it ends, the signal has to end Beeline itself.
    session.signal_group(libc::SIGINT);
}

/// Returns the places where the kernel's probes may go: the starts of functions and their further
/// instructions near that, but not around a system call's, where they harm a process that Beeline
/// traces.
fn places(server: &Server) -> Vec<Place> {
    let bytes = std::fs::read(&server.alone).expect("the server's own file");
    let place = |name: &&'static str| {
        let start = file_offset(&server.alone, name).ok()?;
        let end = start + INNER + 2 * LONGEST;
        let code = bytes.get(start as usize..end as usize)?;
        let decoder = iced_x86::Decoder::with_ip(64, code, start, 0);
        let all: Vec<_> = decoder.into_iter().collect();
        let call = all
            .iter()
            .find(|one| one.mnemonic() == iced_x86::Mnemonic::Syscall);
        let near = all.iter().map(|one| one.ip());
        let limit = if call.is_some() { 1 } else { INNER };
        let instructions = near.filter(|at| *at < start + limit).collect();
        Some(Place {
            name,
            start,
            instructions,
        })
    };
    server.common.iter().filter_map(place).collect()
}
