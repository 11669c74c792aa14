//! Real servers on the loopback interface, each with a directory and a C library of its own.

use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use beeline_e2e::{
    Lines, PATIENCE, Scratch, altered_text, beeline, beeline_wanted, find_program, is_alive, until,
    workload,
};

use crate::clients::{self, Connect};

/// Debian's path of the C library on x86-64.
const LIBC: &str = "/lib/x86_64-linux-gnu/libc.so.6";
/// A user that is not root.
const NOBODY: u32 = 65534;
/// The number of lines of a server's log to show: the first ones, where Go says why it ends, and
/// the last ones.
const FIRST_WORDS: usize = 40;
/// See [`FIRST_WORDS`].
const LAST_WORDS: usize = 60;
/// The names of Beeline's mappings.
const OURS: &str = "/memfd:beeline-";

/// A running server. Killed when dropped.
pub struct Server {
    root: Child,
    stdout: Lines,
    /// The log in which its processes report how others of them ended.
    log: PathBuf,
    /// The signal that ends it, and its status then.
    end: (i32, i32),
    /// Its own copy of the C library, or, for a static program, the program: kernel probes there
    /// reach no other process.
    pub alone: PathBuf,
    /// More files with functions, and their names; only Beeline probes these.
    pub functions: Vec<(PathBuf, &'static str)>,
    /// Functions of `alone`.
    pub common: &'static [&'static str],
    /// It survives the kernel's return probes: not where stacks move.
    pub has_kernel_returns: bool,
    /// Its first process takes SIGHUP for "replace your children".
    pub is_reloaded: bool,
    pub connect: Connect,
    /// A connection serves many requests.
    pub is_kept: bool,
    _scratch: Scratch,
}

/// Functions of the C library that servers call a lot.
const COMMON: &[&str] = &[
    "malloc",
    "free",
    "calloc",
    "realloc",
    "read",
    "write",
    "send",
    "recv",
    "writev",
    "epoll_wait",
    "poll",
    "close",
    "accept4",
    "pthread_mutex_lock",
    "pthread_mutex_unlock",
    "clock_gettime",
    "vsnprintf",
    "qsort",
];

/// Makes a directory, with the server's own C library in it.
struct Home {
    scratch: Scratch,
    libc: PathBuf,
}

impl Home {
    fn new() -> Result<Home, String> {
        beeline_wanted()?;
        let scratch = Scratch::new();
        let libraries = scratch.path().join("lib");
        let libc = libraries.join("libc.so.6");
        fs::create_dir(&libraries)
            .and_then(|()| fs::copy(LIBC, &libc))
            .map_err(|error| format!("cannot copy {LIBC}: {error}"))?;
        Ok(Home { scratch, libc })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    /// Copies a program, so that no other process runs the same file.
    fn copy(&self, program: &Path, name: &str) -> Result<PathBuf, String> {
        let copy = self.path(name);
        let copied = fs::copy(program, &copy);
        copied.map_err(|error| format!("cannot copy {}: {error}", program.display()))?;
        Ok(copy)
    }

    fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command.env("LD_LIBRARY_PATH", self.path("lib"));
        command.current_dir(self.scratch.path());
        command
    }

    /// Starts the server; its standard error goes to the log.
    fn start(self, mut command: Command, connect: Connect, end: (i32, i32)) -> Server {
        let log = self.path("log");
        let errors = fs::File::options().create(true).append(true).open(&log);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(errors.expect("the directory is writable"));
        let mut root = command
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        Server {
            stdout: Lines::collect(root.stdout.take().expect("stdout is piped")),
            root,
            log,
            end,
            alone: self.libc,
            functions: Vec::new(),
            common: COMMON,
            has_kernel_returns: true,
            is_reloaded: false,
            connect,
            is_kept: true,
            _scratch: self.scratch,
        }
    }
}

fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("there is a loopback");
    listener.local_addr().expect("it is bound").port()
}

/// Returns the names of those of `file`'s functions that exist.
fn existing(file: &Path, names: &[&'static str]) -> Vec<(PathBuf, &'static str)> {
    let exists = |name: &&&str| beeline_e2e::file_offset(file, name).is_ok();
    let names = names.iter().filter(exists);
    names.map(|name| (file.to_owned(), *name)).collect()
}

pub fn nginx() -> Result<Server, String> {
    let program = find_program("nginx")?;
    let home = Home::new()?;
    let program = home.copy(&program, "nginx")?;
    let (port, directory) = (free_port(), home.scratch.path().display().to_string());
    let file: Vec<u8> = (0..100_000_u32).flat_map(u32::to_be_bytes).collect();
    fs::write(home.path("file"), &file).expect("the directory is writable");
    let configuration = format!(
        "worker_processes 2; daemon off; user root; pid {directory}/pid; error_log {directory}/log notice;\n\
         events {{ worker_connections 256; }}\n\
         http {{ access_log off; client_body_temp_path {directory}/b; proxy_temp_path {directory}/p;\n\
         fastcgi_temp_path {directory}/f; uwsgi_temp_path {directory}/u; scgi_temp_path {directory}/s;\n\
         server {{ listen 127.0.0.1:{port}; root {directory}; location /say/ {{ return 200 \"hello $uri\"; }} }} }}\n"
    );
    let path = home.path("nginx.conf");
    fs::write(&path, configuration).expect("the directory is writable");
    let mut command = home.command(&program);
    command.arg("-c").arg(path);
    let connect = clients::Nginx::connect(port, Arc::new(file));
    let mut server = home.start(command, connect, (libc::SIGTERM, 0));
    let names = [
        "ngx_http_process_request",
        "ngx_http_finalize_request",
        "ngx_palloc",
    ];
    server.functions = existing(&program, &names);
    (server.is_reloaded, server.is_kept) = (true, false);
    server.wait_for_answers();
    Ok(server)
}

/// Debian's redis-check-rdb and redis-server are one program, which acts by its name.
pub fn redis() -> Result<Server, String> {
    let program = find_program("redis-server").or_else(|_| find_program("redis-check-rdb"))?;
    let home = Home::new()?;
    let program = home.copy(&program, "redis-server")?;
    let port = free_port();
    let mut command = home.command(&program);
    command.args(["--port", &port.to_string(), "--bind", "127.0.0.1"]);
    command.args(["--save", "", "--appendonly", "yes", "--appendfsync", "no"]);
    // Those threads block all signals, including SIGTRAP: they die where a kernel uprobe and
    // Beeline's meet.
    command.args(["--jemalloc-bg-thread", "no"]);
    command.args(["--logfile", "log", "--auto-aof-rewrite-min-size", "200kb"]);
    let connect = clients::Redis::connect(port);
    let mut server = home.start(command, connect, (libc::SIGTERM, 0));
    let names = ["processCommand", "lookupKeyRead", "zmalloc", "addReply"];
    server.functions = existing(&program, &names);
    server.wait_for_answers();
    Ok(server)
}

/// It does not run as root.
pub fn postgres() -> Result<Server, String> {
    let versions = fs::read_dir("/usr/lib/postgresql").map_err(|_| "there is no postgres")?;
    let programs = versions.flatten().map(|version| version.path().join("bin"));
    let programs = programs
        .filter(|path| path.join("postgres").exists())
        .max()
        .ok_or("there is no postgres")?;
    let home = Home::new()?;
    let data = home.path("data");
    let owned = fs::create_dir(&data)
        .and_then(|()| std::os::unix::fs::chown(&data, Some(NOBODY), Some(NOBODY)));
    owned.map_err(|error| format!("cannot give a directory away: {error}"))?;
    let mut initialize = home.command(programs.join("initdb"));
    initialize.args([
        "-U",
        "storm",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--locale=C",
        "-N",
        "-D",
    ]);
    initialize.arg(&data).uid(NOBODY).gid(NOBODY);
    let done = initialize.output().map_err(|error| error.to_string())?;
    assert!(done.status.success(), "{done:?}");
    let (port, program) = (free_port(), programs.join("postgres"));
    let mut command = home.command(&program);
    command.arg("-D").arg(&data);
    for setting in [
        &format!("port={port}"),
        "listen_addresses=127.0.0.1",
        "unix_socket_directories=",
        "fsync=off",
        "shared_buffers=16MB",
        "autovacuum_naptime=1",
    ] {
        command.args(["-c", setting]);
    }
    command.uid(NOBODY).gid(NOBODY);
    let connect = clients::Postgres::connect(port);
    let mut server = home.start(command, connect, (libc::SIGINT, 0));
    let names = [
        "palloc",
        "pfree",
        "ExecProcNode",
        "pq_getbyte",
        "heap_insert",
    ];
    server.functions = existing(&program, &names);
    server.wait_for_answers();
    Ok(server)
}

pub fn node() -> Result<Server, String> {
    let program = fs::canonicalize(find_program("node")?).map_err(|error| error.to_string())?;
    let home = Home::new()?;
    let mut command = home.command(&program);
    command.arg(workload("storm_server.js"));
    let mut server = turning(home, command, 0);
    let names = ["uv__io_poll", "uv_write", "uv_read_start", "SSL_new"];
    server.functions = existing(&program, &names);
    Ok(server)
}

pub fn java() -> Result<Server, String> {
    let (compiler, program) = (find_program("javac")?, find_program("java")?);
    let home = Home::new()?;
    let mut compile = Command::new(compiler);
    compile.arg("-d").arg(home.scratch.path());
    compile.arg(workload("StormServer.java"));
    let compiled = compile.output().map_err(|error| error.to_string())?;
    assert!(compiled.status.success(), "{compiled:?}");
    let mut command = home.command(program);
    command.args([
        "-Xmx64m",
        "-Dsun.net.httpserver.nodelay=true",
        "-cp",
        ".",
        "StormServer",
    ]);
    // 143: its own status for an end by SIGTERM.
    Ok(turning(home, command, 143))
}

pub fn go() -> Result<Server, String> {
    let compiler = find_program("go")?;
    let home = Home::new()?;
    let program = home.scratch.build_go(&compiler, "storm_server.go");
    let command = home.command(&program);
    let mut server = turning(home, command, 0);
    server.alone = program;
    server.has_kernel_returns = false;
    server.common = &[
        "runtime.mallocgc",
        "runtime.newobject",
        "runtime.growslice",
        "net/http.(*conn).serve",
        "net/http.readRequest",
        "net.(*conn).Read",
        "net.(*conn).Write",
        "main.answer",
        "io.ReadAll",
        "runtime.netpoll",
    ];
    Ok(server)
}

/// Starts a server that prints the port at which it answers.
fn turning(home: Home, command: Command, code: i32) -> Server {
    let connect: Connect = Arc::new(|| Err("not started yet".to_owned()));
    let mut server = home.start(command, connect, (libc::SIGTERM, code));
    let ready = server
        .stdout
        .wait_for(0, PATIENCE, |line| line.starts_with("ready "));
    let (_, ready) = ready.unwrap_or_else(|| panic!("it does not come up: {}", server.words()));
    let port = ready["ready ".len()..].parse().expect("a port");
    server.connect = clients::Turning::connect(port);
    server
}

impl Server {
    fn wait_for_answers(&self) {
        let mut dice = beeline_e2e::Dice(1);
        let mut answers = || (self.connect)().is_ok_and(|mut one| one.ask(0, &mut dice).is_ok());
        let it_does = until(PATIENCE, &mut answers);
        assert!(it_does, "it does not answer: {}", self.words());
    }

    pub fn pid(&self) -> u32 {
        self.root.id()
    }

    /// Returns its first process and all descendants, the first one first.
    pub fn processes(&self) -> Vec<u32> {
        let mut all = vec![self.pid()];
        let mut at = 0;
        while let Some(pid) = all.get(at) {
            let children = format!("/proc/{pid}/task/{pid}/children");
            let children = fs::read_to_string(children).unwrap_or_default();
            let children = children.split_whitespace().flat_map(str::parse::<u32>);
            all.extend(children);
            at += 1;
        }
        all
    }

    /// Returns an error that names a process that has ended wrongly.
    pub fn check(&mut self) -> Result<(), String> {
        if let Ok(Some(status)) = self.root.try_wait() {
            return Err(format!("it ended with {status}: {}", self.words()));
        }
        self.check_log()
    }

    fn check_log(&self) -> Result<(), String> {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let bad = [
            "exited on signal",
            "exited with fatal",
            "terminated by signal",
            "crashed by signal",
            "PANIC",
            "panic:",
            "fatal error",
        ];
        let line = log
            .lines()
            .find(|line| bad.iter().any(|words| line.contains(words)));
        line.map_or(Ok(()), |line| Err(format!("its log: {line}")))
    }

    /// Returns its output and its log, without the middle of a long one.
    pub fn words(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let mut lines: Vec<_> = log.lines().collect();
        let unhookable = lines.len().saturating_sub(LAST_WORDS);
        if unhookable > FIRST_WORDS {
            lines.splice(FIRST_WORDS..unhookable, ["[...]"]);
        }
        format!("{}\n{}", self.stdout.so_far().join("\n"), lines.join("\n"))
    }

    /// Detaches Beeline from all its processes, and returns what is left.
    pub fn cleaned(&self) -> Result<(), String> {
        for pid in self.processes() {
            let detached = Command::new(beeline())
                .args(["detach", &pid.to_string()])
                .output();
            let detached = detached.map_err(|error| error.to_string())?;
            let maps = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
            if !is_alive(pid) {
                continue; // ended meanwhile, as such processes do
            }
            if let Some(left) = maps.lines().find(|line| line.contains(OURS)) {
                return Err(format!("{pid} still maps {left}: {detached:?}"));
            }
            let altered = std::panic::catch_unwind(|| altered_text(pid));
            let altered = match altered {
                Ok(altered) => altered,
                Err(_) if !is_alive(pid) => continue,
                Err(_) => return Err(format!("the text of {pid} cannot be read")),
            };
            if !altered.is_empty() {
                return Err(format!("{pid} is altered at {altered:?}: {detached:?}"));
            }
        }
        Ok(())
    }

    /// Ends the server as its administrators do.
    pub fn end(&mut self) -> Result<(), String> {
        let (signal, expected) = self.end;
        // SAFETY: kill touches no memory; the process is our child, not yet waited for.
        unsafe { libc::kill(self.pid() as i32, signal) };
        let mut status = None;
        until(PATIENCE, || {
            status = self.root.try_wait().ok().flatten();
            status.is_some()
        });
        let status = status.ok_or("it does not end")?;
        match status.code() == Some(expected) {
            true => self.check_log(),
            false => Err(format!("it ended with {status}: {}", self.words())),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Ok(None) = self.root.try_wait() {
            for pid in self.processes().into_iter().rev() {
                // SAFETY: kill touches no memory; the process descends from our child, which has
                // not been waited for.
                unsafe { libc::kill(pid as i32, libc::SIGKILL) };
            }
            let _ = self.root.wait();
        }
    }
}
