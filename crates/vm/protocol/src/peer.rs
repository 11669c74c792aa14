//! The other end of a connection, as far as the carrier vouches for it.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;

/// A peer: connections of one have their limits together. No peer can choose which one it is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Peer {
    /// A machine, by its vsock address (CID).
    Machine(u32),
    /// A user of this machine, by the number that the kernel gives for a Unix socket; `None` if it
    /// gives none.
    User(Option<u32>),
    /// An address of a network: IPv4, or the first 64 bits of IPv6, the rest of which a peer
    /// chooses for itself.
    Network(IpAddr),
    /// The other end of a serial line.
    Line(PathBuf),
}

impl Peer {
    /// Returns the peer at an address of a network.
    pub fn at(address: IpAddr) -> Self {
        Self::Network(match address.to_canonical() {
            IpAddr::V6(address) => {
                const REST: u128 = u64::MAX as u128;
                IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !REST))
            }
            address => address,
        })
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Machine(cid) => write!(f, "the machine with CID {cid}"),
            Self::User(Some(uid)) => write!(f, "the user {uid}"),
            Self::User(None) => write!(f, "an unknown user"),
            Self::Network(IpAddr::V6(address)) => write!(f, "{address}/64"),
            Self::Network(address) => write!(f, "{address}"),
            Self::Line(path) => write!(f, "the line {}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_peer_has_many_addresses() {
        let peer = |text: &str| Peer::at(text.parse().unwrap());
        for (one, other, is_same) in [
            ("10.0.0.7", "10.0.0.7", true),
            ("10.0.0.7", "10.0.0.8", false),
            ("10.0.0.7", "::ffff:10.0.0.7", true),
            ("fd00::1:2:3:4", "fd00::ffff:1:1:1", true),
            ("fd00:0:0:1::1", "fd00:0:0:2::1", false),
        ] {
            assert_eq!(peer(one) == peer(other), is_same, "{one} {other}");
        }
        assert_eq!(peer("fd00::1").to_string(), "fd00::/64");
    }
}
