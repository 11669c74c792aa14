//! A bad line between a host and a guest.

use beeline_e2e::Scratch;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The fault of a line.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// No fault; bytes are counted.
    None,
    /// The line ends after this many bytes in both directions together.
    Cut(u64),
    /// The line goes dead after this many bytes in both directions together: open, and silent.
    Silence(u64),
    /// One byte changes after this many bytes in both directions together.
    Garbage(u64),
    /// Each piece arrives this much later, and at most this many bytes per second get through.
    Slow(Duration, u64),
}

/// A line with a fault. It takes new connections as long as the tests' process lives.
pub struct Wire {
    path: PathBuf,
    carried: Arc<AtomicU64>,
    _scratch: Scratch,
}

/// Bytes carried at once; few, so that a fault is at its byte.
const PIECE: usize = 4096;

impl Wire {
    /// A Unix socket that forwards each of its connections to a new one from `connect`.
    pub fn new(
        fault: Fault,
        connect: impl Fn() -> std::io::Result<UnixStream> + Send + 'static,
    ) -> Wire {
        let scratch = Scratch::new();
        let path = scratch.path().join("wire");
        let listener = UnixListener::bind(&path).expect("cannot listen");
        let carried = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&carried);
        std::thread::spawn(move || {
            for near in listener.incoming() {
                let Ok(near) = near else { break };
                // Nothing listens there: the caller sees the connection end.
                let Ok(far) = connect() else { continue };
                let copy = |stream: &UnixStream| stream.try_clone().expect("a descriptor");
                let (near_too, far_too) = (copy(&near), copy(&far));
                let (one, two) = (Arc::clone(&counted), Arc::clone(&counted));
                std::thread::spawn(move || carry(near, far, fault, &one));
                std::thread::spawn(move || carry(far_too, near_too, fault, &two));
            }
        });
        Wire {
            path,
            carried,
            _scratch: scratch,
        }
    }

    /// Returns the address for `beeline run --guest`.
    pub fn address(&self) -> String {
        format!("unix:{}", self.path.display())
    }

    /// Returns the number of bytes that went either way.
    pub fn carried(&self) -> u64 {
        self.carried.load(Ordering::SeqCst)
    }
}

/// Carries one direction, until either side ends or the fault comes.
fn carry(mut from: UnixStream, mut to: UnixStream, fault: Fault, carried: &AtomicU64) {
    let mut buffer = [0; PIECE];
    while let Ok(got @ 1..) = from.read(&mut buffer) {
        let before = carried.fetch_add(got as u64, Ordering::SeqCst);
        let after = before + got as u64;
        // The fault's place in this piece, if it is in the piece or came before.
        let place = |at: u64| (after > at).then(|| at.saturating_sub(before) as usize);
        let mut piece = &mut buffer[..got];
        match fault {
            Fault::None => {}
            Fault::Cut(at) | Fault::Silence(at) => {
                if let Some(place) = place(at) {
                    piece = &mut piece[..place];
                }
            }
            Fault::Garbage(at) => {
                if let Some(place) = place(at).filter(|_| before <= at) {
                    piece[place] ^= 0x55;
                }
            }
            Fault::Slow(delay, speed) => {
                let time = Duration::from_secs(1) * got as u32 / speed.max(1) as u32;
                std::thread::sleep(delay + time);
            }
        }
        if to.write_all(piece).is_err() {
            break;
        }
        if matches!(fault, Fault::Cut(at) if after > at) {
            break;
        }
    }
    for stream in [from, to] {
        let _ = stream.shutdown(Shutdown::Both);
    }
}
