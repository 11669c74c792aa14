//! A tool on a host takes offsets from the host's files; in a guest they are valid only if its
//! files are the same.

use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use beeline_e2e::{
    PATIENCE, Scratch, Tool, beeline, beeline_wanted, find_program, kernel_available, need, until,
};

/// A proxy that sees a different version of one file; ended when dropped.
struct Proxy(Child);

impl Proxy {
    /// Starts a proxy that sees `other` at `path`, and listens at `socket`.
    fn start(socket: &str, path: &str, other: &str) -> Proxy {
        const SCRIPT: &str =
            r#"mount --bind "$2" "$1" && exec "$0" guest --listen "unix:$3" --audit /dev/null"#;
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", SCRIPT]);
        command.arg(beeline()).args([path, other, socket]);
        let child = command.stderr(Stdio::null()).spawn();
        let proxy = Proxy(child.expect("unshare is there"));
        let listens = until(PATIENCE, || UnixStream::connect(socket).is_ok());
        assert!(listens, "the proxy does not come up");
        proxy
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // It may have ended by itself; then the test has failed already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_probe_in_another_build_is_refused() {
    need!(beeline_wanted());
    need!(kernel_available());
    let bpftrace = need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let program = scratch.build("counts.c").display().to_string();
    let other = scratch.path().join("other").display().to_string();
    std::fs::copy(scratch.build("values.c"), &other).expect("room for a copy");
    let socket = scratch.path().join("socket").display().to_string();
    let _proxy = Proxy::start(&socket, &program, &other);

    let run = |script: &str| {
        let mut command = Command::new(beeline());
        command.args(["run", "--guest", &format!("unix:{socket}"), "--"]);
        command.arg(&bpftrace).args(["-e", script]);
        Tool::start(command).wait()
    };
    let refused = run(&format!("uprobe:{program}:main {{ @ = count(); }}"));
    assert!(!refused.status.success());
    let words = refused.stderr.join("\n");
    assert!(words.contains("is another file in the guest"), "{words}");

    let libc = "uprobe:/lib/x86_64-linux-gnu/libc.so.6:exit { @ = count(); } BEGIN { exit(); }";
    let same = run(libc);
    assert!(same.status.success(), "{:?}", same.stderr);
}
