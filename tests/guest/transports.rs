//! A tool gets the same from a guest through every transport.

use super::proxy::Proxy;
use super::*;
use beeline_e2e::{GUEST_PATIENCE, Tool, find_program};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A port in the guest.
const PORT: u16 = 702;

#[test]
fn by_a_serial_port() {
    let guest = need!(shared());
    let address = format!("serial:{}", guest.virtio_serial().display());
    let bpftrace = need!(find_program("bpftrace"));
    let proxy = Proxy::listen(&guest, "serial:/dev/virtio-ports/beeline", address, &[]);
    // The line belongs to one tool, and then to the next.
    for _ in 0..2 {
        counts_reads(&guest, proxy.command(&bpftrace));
    }
}

#[test]
fn by_tcp_where_both_sides_show_certificates() {
    let guest = need!(shared());
    let bpftrace = need!(find_program("bpftrace"));
    let scratch = Scratch::new();
    let (good, other) = (Authority::new(), Authority::new());
    let mut options = Vec::new();
    for (option, path) in good.certificate(scratch.path(), "guest") {
        let there = format!("/tmp/guest{option}");
        guest.put(&std::fs::read(path).unwrap(), &there);
        options.extend([option.to_owned(), there]);
    }
    let forwarded = guest.forward_tcp(PORT);
    let inside = format!("tcp:0.0.0.0:{PORT}");
    let proxy = Proxy::listen(&guest, &inside, format!("tcp:{forwarded}"), &options);
    let as_host = |authority: &Authority| {
        let mut command = Command::new(beeline_e2e::beeline());
        command.args(["run", "--guest", proxy.address(), "--tls-name", "guest"]);
        for (option, path) in authority.certificate(scratch.path(), "host") {
            // Both trust the guest.
            let path = match option {
                "--tls-ca" => good.file(scratch.path()),
                _ => path,
            };
            command.arg(option).arg(path);
        }
        command.arg("--").arg(&bpftrace);
        command
    };
    counts_reads(&guest, as_host(&good));
    let mut stranger = as_host(&other);
    stranger.args(["-e", "BEGIN { exit(); }"]);
    let refused = Tool::start(stranger).wait();
    assert_eq!(refused.status.code(), Some(1), "{refused:?}");
    assert!(refused.stdout.is_empty(), "{refused:?}");
    let said = refused.stderr.join("\n");
    assert!(
        said.contains("certificate") || said.contains("alert"),
        "{said}"
    );
}

/// Runs bpftrace through a command that takes its arguments, while the guest reads 100 times.
fn counts_reads(guest: &Guest, mut bpftrace: Command) {
    let script = "kprobe:ksys_read /comm == \"dd\" && arg2 == 1/ { @reads = count(); } \
                  interval:ms:50 { printf(\"up\\n\"); }";
    let tool = Tool::start({
        bpftrace.args(["-e", script]);
        bpftrace
    });
    let up = tool.stdout.wait_for(0, GUEST_PATIENCE, |line| line == "up");
    assert!(up.is_some(), "{:?}", tool.stderr.so_far());
    guest.check("dd if=/dev/zero of=/dev/null bs=1 count=100 2>/dev/null");
    let ended = tool.interrupt();
    assert!(ended.status.success(), "{ended:?}");
    assert!(
        ended.stdout.contains(&"@reads: 100".to_owned()),
        "{ended:?}"
    );
}

/// The key that signs certificates.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap());
        Authority(issuer.unwrap())
    }

    /// The authority's own certificate, in a file.
    fn file(&self, folder: &Path) -> PathBuf {
        write(folder, self.0.as_ref().pem())
    }

    /// Returns Beeline's options that present a certificate for a name and trust this authority,
    /// with their files.
    fn certificate(&self, folder: &Path, name: &str) -> [(&'static str, PathBuf); 3] {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        [
            ("--tls-cert", write(folder, certificate.pem())),
            ("--tls-key", write(folder, key.serialize_pem())),
            ("--tls-ca", self.file(folder)),
        ]
    }
}

/// Returns a new file.
fn write(folder: &Path, text: String) -> PathBuf {
    let number = std::fs::read_dir(folder).unwrap().count();
    let path = folder.join(format!("{number}.pem"));
    std::fs::write(&path, text).unwrap();
    path
}
