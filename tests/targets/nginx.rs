//! nginx keeps serving while tools attach and detach.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use beeline_e2e::{
    Engine, PATIENCE, Scratch, Tool, Turn, altered_text, engines, find_program, is_alive,
    map_counts, need, until,
};

/// An nginx of our own on a free port. Stopped when dropped.
struct Nginx {
    master: Child,
    port: u16,
    _scratch: Scratch,
}

impl Nginx {
    fn start() -> Result<Nginx, String> {
        let nginx = find_program("nginx")?;
        let scratch = Scratch::new();
        let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
        let port = listener
            .local_addr()
            .map_err(|error| error.to_string())?
            .port();
        drop(listener);
        let directory = scratch.path().display();
        let configuration = format!(
            "worker_processes 1; daemon off; user root; pid {directory}/pid; error_log {directory}/errors;\n\
             events {{ worker_connections 256; }}\n\
             http {{ access_log off; server {{ listen 127.0.0.1:{port}; location / {{ return 200 \"hello\"; }} }} }}\n"
        );
        let file = scratch.path().join("nginx.conf");
        std::fs::write(&file, configuration).map_err(|error| error.to_string())?;
        let mut command = Command::new(nginx);
        command
            .arg("-c")
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let master = command
            .spawn()
            .map_err(|error| format!("cannot start nginx: {error}"))?;
        let started = Nginx {
            master,
            port,
            _scratch: scratch,
        };
        let answers = || started.get().is_ok();
        assert!(until(PATIENCE, answers), "nginx does not answer");
        Ok(started)
    }

    /// Sends one request on a connection of its own.
    fn get(&self) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Returns the process that serves.
    fn worker(&self) -> u32 {
        let children = format!("/proc/{0}/task/{0}/children", self.master.id());
        let children = std::fs::read_to_string(children).expect("nginx runs");
        children
            .split_whitespace()
            .next()
            .and_then(|pid| pid.parse().ok())
            .expect("nginx has a worker")
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // SAFETY: kill touches no memory; the process is our child, not yet waited for.
        unsafe { libc::kill(self.master.id() as i32, libc::SIGTERM) };
        let _ = self.master.wait();
    }
}

fn trace_nginx(engine: Engine, bpftrace: &Path, worker: u32) -> Tool {
    let mut command = engine.command(bpftrace);
    command.args(["-p", &worker.to_string()]);
    let script = "uprobe:/usr/sbin/nginx:ngx_http_process_request { @requests = count(); @start[tid] = nsecs; } \
        uprobe:/usr/sbin/nginx:ngx_http_finalize_request /@start[tid]/ { @us = hist((nsecs - @start[tid]) / 1000); } \
        END { clear(@start); clear(@us); }";
    let tool = Tool::bpftrace(command, script);
    tool.wait_attached();
    tool
}

#[test]
fn every_request_of_nginx_is_counted() {
    let _turn = Turn::take();
    let bpftrace = need!(find_program("bpftrace"));
    for engine in need!(engines()) {
        let nginx = need!(Nginx::start());
        let tool = trace_nginx(engine, &bpftrace, nginx.worker());
        for _ in 0..200 {
            let answer = nginx.get().expect("nginx answers");
            assert!(answer.ends_with("hello"), "{engine}: {answer}");
        }
        tool.settle();
        let ended = tool.interrupt();
        assert_eq!(
            map_counts(&ended.stdout).get("@requests"),
            Some(&200),
            "{engine}: {ended:?}"
        );
    }
}

#[test]
fn nginx_under_load_loses_no_request_while_tools_come_and_go() {
    let _turn = Turn::take();
    let (bpftrace, wrk) = (need!(find_program("bpftrace")), need!(find_program("wrk")));
    for engine in need!(engines()) {
        let nginx = need!(Nginx::start());
        let worker = nginx.worker();
        let mut load = Command::new(&wrk);
        load.args([
            "-t1",
            "-c8",
            "-d4s",
            &format!("http://127.0.0.1:{}/", nginx.port),
        ]);
        let load = Tool::start(load);
        let mut seen = 0;
        while is_alive(load.pid()) && !load.processes().is_empty() {
            let tool = trace_nginx(engine, &bpftrace, worker);
            tool.settle();
            let ended = tool.interrupt();
            seen += map_counts(&ended.stdout)
                .get("@requests")
                .copied()
                .unwrap_or(0);
        }
        let report = load.wait().stdout.join("\n");
        assert!(seen > 0, "{engine} saw no request: {report}");
        assert!(
            !report.contains("Non-2xx") && !report.contains("Socket errors"),
            "{engine}: {report}"
        );
        assert_eq!(
            nginx.worker(),
            worker,
            "{engine}: the worker died and was replaced"
        );
        assert_eq!(altered_text(worker), [""; 0], "{engine}");
    }
}
