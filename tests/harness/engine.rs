//! The two ways to run a tool: on the kernel, and under Beeline.

use std::fmt;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use crate::{PATIENCE, Scratch, until};

/// The engine that runs a tool's programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Engine {
    /// The unmodified tool: the yardstick.
    Kernel,
    /// The same command behind `beeline run --`.
    Beeline,
}

impl fmt::Display for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Engine::Kernel => "kernel",
            Engine::Beeline => "beeline",
        })
    }
}

impl Engine {
    /// Returns the command that runs `tool` on this engine; the caller adds the tool's arguments.
    pub fn command(self, tool: impl AsRef<std::ffi::OsStr>) -> Command {
        match self {
            Engine::Kernel => Command::new(tool),
            Engine::Beeline => {
                let mut command = match is_wanted("sandbox") {
                    true => sandboxed(beeline()),
                    false => Command::new(beeline()),
                };
                command.arg("run");
                if in_guest() {
                    command.args(["--guest", proxy()]);
                }
                command.arg("--").arg(tool);
                compile_anew(&mut command);
                command
            }
        }
    }

    /// Checks that this engine can be used here.
    ///
    /// # Errors
    /// The reason why it cannot.
    pub fn available(self) -> Result<(), String> {
        match self {
            Engine::Kernel => kernel_available(),
            Engine::Beeline => Ok(()),
        }
    }
}

/// Returns the command that runs a tool on the kernel and shows it the kernel's tracepoints in both
/// places where tools look.
///
/// It has a mount namespace of its own, so this works even if they are not mounted.
pub fn with_tracefs(tool: impl AsRef<std::ffi::OsStr>) -> Command {
    const SCRIPT: &str = r#"cd /sys/kernel
        test -e tracing/events || mount -t tracefs nodev tracing
        test -e debug/tracing/events || { mount -t tmpfs nodev debug && mkdir debug/tracing && mount -t tracefs nodev debug/tracing; }
        cd "$OLDPWD" && exec "$0" "$@""#;
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", SCRIPT]);
    command.arg(tool);
    command
}

/// Returns whether this machine's kernel is a session's own, for programs at its events.
///
/// # Errors
/// The text says why it is not.
pub fn has_host_kernel() -> Result<(), String> {
    if in_guest() || in_sandbox() {
        return Err("the session has no kernel of its own".to_owned());
    }
    kernel_available()
}

/// Returns the id of a function in the kernel's BTF.
///
/// # Errors
/// The text says what the kernel lacks.
pub fn kernel_function(name: &str) -> Result<u32, String> {
    let data = std::fs::read("/sys/kernel/btf/vmlinux");
    let data = data.map_err(|error| format!("the kernel has no BTF: {error}"))?;
    let types = beeline_btf::Btf::parse(&data).ok_or("the kernel's BTF cannot be read")?;
    match types.find([(beeline_btf::kind::FUNC, name)]) {
        [0] => Err(format!("the kernel has no {name}")),
        [id] => Ok(id),
    }
}

/// Shows a command a kernel's headers in the place where bcc looks for those of the running one,
/// which may not be installable.
///
/// The headers of any kernel for this machine's architecture do for programs that look at system
/// calls. The command has a mount namespace of its own.
///
/// # Errors
/// The text says what to install.
pub fn with_kernel_headers(command: Command) -> Result<Command, String> {
    const SCRIPT: &str = r#"test -e /lib/modules/$(uname -r)/build && exec "$@"
        mount -t tmpfs nodev /lib/modules && mkdir /lib/modules/$(uname -r) && cd /lib/modules/$(uname -r) &&
        ln -s "$0" build && ln -s "${0%-*}-common" source && cd "$OLDPWD" && exec "$@""#;
    let headers = std::fs::read_dir("/usr/src")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .find(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with("linux-headers-") && path.join("include/generated").is_dir()
        })
        .ok_or("no kernel headers are installed (scripts/deps.sh installs what there is)")?;
    let mut within = Command::new("unshare");
    within.args(["--mount", "--propagation", "private", "sh", "-c", SCRIPT]);
    within
        .arg(headers)
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => within.env(name, value),
            None => within.env_remove(name),
        };
    }
    Ok(within)
}

/// Makes Beeline compile all code that it runs, regardless of what it has compiled in earlier
/// tests.
pub fn compile_anew(command: &mut Command) {
    command.env("BEELINE_CACHE", "");
}

/// Returns the engines that this run covers and that the machine has.
///
/// Both, unless `BEELINE_E2E_ENGINE` is `kernel` (which tries the tests themselves, without
/// Beeline) or `beeline`. With `guest` it is both, and this machine's own kernel carries out the
/// tool's calls for Beeline, through the proxy for guests. With `sandbox` it is both, and Beeline
/// and the tool are [`sandboxed`].
///
/// A missing kernel costs the comparison, not the test: the known counts are still checked.
///
/// # Errors
/// Fails if none of them is here: the text says why.
pub fn engines() -> Result<Vec<Engine>, String> {
    let wanted = std::env::var("BEELINE_E2E_ENGINE").unwrap_or_default();
    let wanted = match wanted.as_str() {
        "" => vec![Engine::Kernel, Engine::Beeline],
        "kernel" => vec![Engine::Kernel],
        "beeline" => vec![Engine::Beeline],
        "guest" | "sandbox" => vec![Engine::Kernel, Engine::Beeline],
        other => {
            return Err(format!(
                "BEELINE_E2E_ENGINE={other} is neither kernel, beeline, guest nor sandbox"
            ));
        }
    };
    let usable: Vec<_> = wanted
        .iter()
        .copied()
        .filter(|e| e.available().is_ok())
        .collect();
    if usable.is_empty() {
        return Err(kernel_available().err().unwrap_or_default());
    }
    Ok(usable)
}

/// Returns whether tools are to be run as if this machine were a guest.
pub fn in_guest() -> bool {
    is_wanted("guest")
}

/// Returns whether Beeline and its tools are to be [`sandboxed`].
pub fn in_sandbox() -> bool {
    is_wanted("sandbox")
}

fn is_wanted(engine: &str) -> bool {
    std::env::var("BEELINE_E2E_ENGINE").is_ok_and(|wanted| wanted == engine)
}

/// Returns the command that runs `program` under a filter like that of a container without
/// capabilities: `bpf(2)` and others fail (`workloads/sandbox.c`). The caller adds the arguments.
pub fn sandboxed(program: impl AsRef<std::ffi::OsStr>) -> Command {
    // Nothing is left of it when this process ends.
    static LAUNCHER: OnceLock<File> = OnceLock::new();
    let build = || File::open(Scratch::new().build("sandbox.c")).expect("it has been built");
    let launcher = LAUNCHER.get_or_init(build).as_raw_fd();
    let path = format!("/proc/{}/fd/{launcher}", std::process::id());
    let mut command = Command::new(path);
    command.arg(program);
    command
}

/// Returns the policy for guests that lets tools do what these tests do.
pub fn packaged_policy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../packaging/policies/observe-and-uprobes.toml")
}

/// Returns the address of a proxy on this machine with the packaged policy, started for the whole
/// test and ended with it.
pub fn proxy() -> &'static str {
    static PROXY: OnceLock<(String, Child)> = OnceLock::new();
    let start = || {
        let socket = std::env::temp_dir().join(format!("beeline-e2e-guest-{}", std::process::id()));
        // The proxy ends with this process, however that ends: then nothing holds the other end of
        // its input.
        const SCRIPT: &str = r#""$@" & read -r nothing; kill $!"#;
        let address = format!("unix:{}", socket.display());
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "sh"]).arg(beeline());
        command.args(["guest", "--listen", &address, "--audit", "/dev/null"]);
        command.arg("--policy").arg(packaged_policy());
        command.stdin(Stdio::piped());
        let child = command.spawn().expect("sh is there");
        let listens = until(PATIENCE, || UnixStream::connect(&socket).is_ok());
        assert!(listens, "the proxy does not come up");
        (address, child)
    };
    &PROXY.get_or_init(start).0
}

/// Checks for tests of Beeline alone, which do not run when only the kernel is requested.
///
/// # Errors
/// Fails if only the kernel or a guest is wanted; otherwise as for [`engines`].
pub fn beeline_wanted() -> Result<(), String> {
    match engines()?.contains(&Engine::Beeline) && !in_guest() {
        true => Ok(()),
        false => Err("only the kernel is asked for".to_owned()),
    }
}

/// Returns the Beeline command: `BEELINE`, or the release build beside these tests' sources.
///
/// Panics if it is not there: a missing Beeline is a failure, not a reason to skip.
pub fn beeline() -> PathBuf {
    let path = match (
        std::env::var_os("BEELINE"),
        std::env::var_os("CARGO_TARGET_DIR"),
    ) {
        (Some(path), _) => PathBuf::from(path),
        (None, Some(target)) => PathBuf::from(target).join("release/beeline"),
        (None, None) => PathBuf::from(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../target/release/beeline"
        )),
    };
    let built = path.is_file();
    assert!(
        built,
        "no {}: run cargo build --release first, or name another in BEELINE",
        path.display()
    );
    path
}

/// Returns the place of `name`: on the path or where Debian keeps system tools.
///
/// # Errors
/// The text names the package to install.
pub fn find_program(name: &str) -> Result<PathBuf, String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/usr/bin", "/sbin"].map(PathBuf::from))
        .map(|directory| directory.join(name))
        .find(|file| file.is_file())
        .ok_or_else(|| format!("{name} is not installed (scripts/deps.sh installs what there is)"))
}

/// Checks that bpftrace runs on this kernel as this user; tried once.
///
/// # Errors
/// Fails if bpftrace is not installed, or does not run: the text says why.
pub fn kernel_available() -> Result<(), String> {
    static ANSWER: OnceLock<Result<(), String>> = OnceLock::new();
    ANSWER.get_or_init(try_kernel).clone()
}

fn try_kernel() -> Result<(), String> {
    let bpftrace = find_program("bpftrace")?;
    let output = Command::new(bpftrace)
        .args(["-e", "BEGIN { exit() }"])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("cannot run bpftrace: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    let reason = words.lines().next_back().unwrap_or("no reason given");
    Err(format!("the kernel does not run bpftrace here: {reason}"))
}
