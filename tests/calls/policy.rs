//! Programs that change the effect of system calls.

use std::io::{BufRead, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use beeline_e2e::{
    PATIENCE, Tool, Turn, Workload, beeline, beeline_wanted, find_program, need, until,
};

/// Tries to connect for each line, a host and a port, and prints the results. Also runs curl.
const CONNECTS: &str = "
import errno, socket, subprocess, sys
print('ready', flush=True)
for line in sys.stdin:
    host, port = line.split()
    try:
        socket.create_connection((host, int(port)), 2).close()
        said = 'connected'
    except OSError as error:
        said = errno.errorcode.get(error.errno, str(error))
    curl = subprocess.run(['curl', '-s', '-m', '2', f'http://{host}:{port}/'], capture_output=True)
    print(said, curl.returncode, flush=True)
sys.exit(7)
";

/// Curl's `CURLE_COULDNT_CONNECT`.
const REFUSED: &str = "7";
/// An address for examples (RFC 5737), which is on no list.
const ELSEWHERE: &str = "192.0.2.1 9";

fn python() -> Result<Command, String> {
    beeline_wanted()?;
    find_program("curl")?;
    let mut command = Command::new(find_program("python3")?);
    command.args(["-c", CONNECTS]);
    Ok(command)
}

/// bpftrace with the example's policy, for one process and its children.
fn policy(pid: u32, options: &[&str]) -> Result<Command, String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/connect-policy.bt");
    let mut command = Command::new(beeline());
    command
        .arg("run")
        .args(options)
        .args(["--pid", &pid.to_string(), "--"])
        .arg(find_program("bpftrace")?)
        .arg("--unsafe")
        .arg(script);
    Ok(command)
}

/// A server on the loopback interface that answers every request, for as long as the test runs.
fn serve() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            // A client that only connects sends nothing.
            let mut line = String::new();
            let _ = std::io::BufReader::new(&stream).read_line(&mut line);
            let _ = stream.write_all(b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n");
        }
    });
    port
}

#[test]
fn connections_outside_a_list_are_refused() {
    let _turn = Turn::take();
    let mut target = Workload::start_command(need!(python()));
    let tool = Tool::start_on_terminal(need!(policy(target.pid(), &["--unsafe"])));
    tool.wait_for_line(|line| line.starts_with("Attaching"));
    // It is attached once it has refused something.
    let refused = |line: &str| line == format!("EACCES {REFUSED}");
    let is_refused = until(PATIENCE, || refused(&target.tell(ELSEWHERE)));
    assert!(is_refused, "never refused; {}", tool.words(ELSEWHERE));
    tool.wait_for_line(|line| line.contains("curl") && line.contains("192.0.2.1:9"));
    let here = format!("127.0.0.1 {}", serve());
    assert_eq!(target.tell(&here), "connected 0");
    let ended = tool.interrupt();
    assert!(ended.status.success(), "{ended:?}");
    assert!(!refused(&target.tell(ELSEWHERE)), "refused for ever");
    target.finish();
}

#[test]
fn nothing_is_changed_without_leave() {
    let _turn = Turn::take();
    let mut target = Workload::start_command(need!(python()));
    let ended = Tool::start(need!(policy(target.pid(), &[]))).wait();
    assert!(!ended.status.success(), "{ended:?}");
    let said = ended.stderr.join("\n");
    assert!(said.contains("beeline run --unsafe"), "{said}");
    let here = format!("127.0.0.1 {}", serve());
    assert_eq!(target.tell(&here), "connected 0");
    target.finish();
}
