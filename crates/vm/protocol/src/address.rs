//! The address of a guest: `vsock:3`, `uds:/run/vm3.vsock`, `unix:/run/guest.sock`,
//! `tcp:10.0.0.7:8790`, `serial:/run/vm3.port`.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use crate::PORT;

/// The address that takes connections for any of a machine's own (`VMADDR_CID_ANY`).
pub const ANY_CID: u32 = libc::VMADDR_CID_ANY;
/// The host's own address, as its guests see it (`VMADDR_CID_HOST`).
pub const HOST_CID: u32 = libc::VMADDR_CID_HOST;

/// The address of a guest, or the one it listens to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Address {
    /// The kernel's `AF_VSOCK`.
    Vsock {
        /// A machine's number, [`ANY_CID`] for listening.
        cid: u32,
        /// A port of it.
        port: u32,
    },
    /// A Unix socket of a virtual machine monitor (Firecracker, Cloud Hypervisor,
    /// vhost-device-vsock) that leads to the guest's vsock ports after a line `CONNECT PORT`.
    Uds {
        /// The socket.
        path: PathBuf,
        /// The guest's port.
        port: u32,
    },
    /// A Unix socket.
    Unix {
        /// The socket.
        path: PathBuf,
    },
    /// TCP.
    Tcp {
        /// Address and port.
        at: SocketAddr,
        /// Without TLS: every client that reaches the port may do everything, and every machine in
        /// between may read everything.
        insecure: bool,
    },
    /// A serial line of a virtual machine: a character device in the guest; on the host the Unix
    /// socket that the virtual machine monitor made of it, or a character device.
    Serial {
        /// The device or the socket.
        path: PathBuf,
    },
}

/// A text that is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no address of a guest: {why}; there are vsock:CID[:PORT], uds:PATH[:PORT], unix:PATH, tcp:ADDRESS:PORT, \
     tcp+insecure:ADDRESS:PORT and serial:PATH"
)]
pub struct NoAddress {
    text: String,
    why: &'static str,
}

impl FromStr for Address {
    type Err = NoAddress;

    fn from_str(text: &str) -> Result<Self, NoAddress> {
        parse(text).map_err(|why| NoAddress {
            text: text.to_owned(),
            why,
        })
    }
}

fn parse(text: &str) -> Result<Address, &'static str> {
    let (kind, rest) = text
        .split_once(':')
        .ok_or("it does not say what kind it is")?;
    match kind {
        "vsock" => vsock(rest),
        "uds" => {
            let (name, port) = match rest.rsplit_once(':') {
                Some((name, number)) if number.bytes().all(|byte| byte.is_ascii_digit()) => {
                    (name, number.parse().map_err(|_| "its port is no number")?)
                }
                _ => (rest, PORT),
            };
            Ok(Address::Uds {
                path: path(name)?,
                port,
            })
        }
        "unix" => Ok(Address::Unix { path: path(rest)? }),
        "tcp" | "tcp+insecure" => Ok(Address::Tcp {
            at: rest.parse().map_err(
                |_| "behind tcp: stand the digits of an address and a port, as 10.0.0.7:8790 or [fd00::7]:8790",
            )?,
            insecure: kind == "tcp+insecure",
        }),
        "serial" => Ok(Address::Serial { path: path(rest)? }),
        _ => Err("there is no such kind"),
    }
}

fn vsock(rest: &str) -> Result<Address, &'static str> {
    let (cid, port) = match rest.split_once(':') {
        Some((cid, port)) => (cid, port.parse().map_err(|_| "its port is no number")?),
        None => (rest, PORT),
    };
    let cid = match cid {
        "any" => ANY_CID,
        "host" => HOST_CID,
        "local" => 1,
        _ => cid
            .parse()
            .map_err(|_| "behind vsock: stands a guest's number, any, host or local")?,
    };
    Ok(Address::Vsock { cid, port })
}

/// Bytes of a socket's path, with the zero at its end (`struct sockaddr_un`).
const PATH_BYTES: usize =
    size_of::<libc::sockaddr_un>() - std::mem::offset_of!(libc::sockaddr_un, sun_path);

fn path(text: &str) -> Result<PathBuf, &'static str> {
    if text.is_empty() {
        return Err("its path is missing");
    }
    if text.contains('\0') {
        return Err("no path has a zero in it");
    }
    if text.len() >= PATH_BYTES {
        return Err("its path is longer than a socket's may be");
    }
    Ok(PathBuf::from(text))
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Vsock { cid: ANY_CID, port } => write!(f, "vsock:any:{port}"),
            Address::Vsock { cid, port } => write!(f, "vsock:{cid}:{port}"),
            Address::Uds { path, port } => write!(f, "uds:{}:{port}", path.display()),
            Address::Unix { path } => write!(f, "unix:{}", path.display()),
            Address::Tcp { at, insecure } => {
                write!(f, "tcp{}:{at}", if *insecure { "+insecure" } else { "" })
            }
            Address::Serial { path } => write!(f, "serial:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_are_read() {
        let vsock = |cid, port| Address::Vsock { cid, port };
        let uds = |path: &str, port| Address::Uds {
            path: path.into(),
            port,
        };
        for (text, address) in [
            ("vsock:3", vsock(3, PORT)),
            ("vsock:any:12", vsock(ANY_CID, 12)),
            ("vsock:host", vsock(2, PORT)),
            ("uds:/run/a.sock", uds("/run/a.sock", PORT)),
            ("uds:/run/a:b.sock:99", uds("/run/a:b.sock", 99)),
            (
                "tcp:127.0.0.1:80",
                Address::Tcp {
                    at: "127.0.0.1:80".parse().unwrap(),
                    insecure: false,
                },
            ),
            (
                "tcp+insecure:[::1]:80",
                Address::Tcp {
                    at: "[::1]:80".parse().unwrap(),
                    insecure: true,
                },
            ),
            (
                "serial:/dev/x",
                Address::Serial {
                    path: "/dev/x".into(),
                },
            ),
        ] {
            assert_eq!(text.parse(), Ok(address.clone()), "{text}");
            assert_eq!(address.to_string().parse(), Ok(address), "{text}");
        }
    }

    #[test]
    fn malformed_addresses_are_refused_with_a_reason() {
        for (text, why) in [
            ("", "what kind"),
            ("3", "what kind"),
            ("vsock:", "a guest's number"),
            ("vsock:3:x", "port"),
            ("uds:", "path is missing"),
            ("uds:/a:99999999999", "port"),
            ("tcp:localhost:80", "digits"),
            ("ftp:x", "no such kind"),
        ] {
            let error = text.parse::<Address>().unwrap_err().to_string();
            assert!(error.contains(why), "{text}: {error}");
        }
        let long = format!("unix:/{}", "x".repeat(107));
        assert!(long.parse::<Address>().is_err());
        assert!(long[..long.len() - 1].parse::<Address>().is_ok());
    }

    proptest! {
        #[test]
        fn addresses_survive_printing_and_parsing(
            text in "(vsock|uds|unix|tcp|tcp\\+insecure|serial):[a-z0-9:/\\.\\[\\]]{0,20}"
        ) {
            if let Ok(address) = text.parse::<Address>() {
                prop_assert_eq!(address.to_string().parse::<Address>(), Ok(address));
            }
        }
    }
}
