//! A bad line between a host and a guest.

use beeline_e2e::Scratch;
use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What is wrong with the line.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// Nothing; bytes are counted.
    None,
    /// It ends when so many bytes went either way.
    Cut(u64),
    /// It goes dead when so many bytes went either way: open, and silent.
    Silence(u64),
    /// When so many bytes went either way, one is changed.
    Garbage(u64),
    /// Each piece comes so much later, and no more than so many bytes a second come through.
    Slow(Duration, u64),
}

/// A line to somebody, with a fault. New connections are taken as long as the tests' process lives.
pub struct Wire {
    path: PathBuf,
    carried: Arc<AtomicU64>,
    _scratch: Scratch,
}

/// Bytes that are carried at once; small, so that a fault is at its byte.
const PIECE: usize = 4096;

impl Wire {
    /// A Unix socket each of whose connections is carried on to a new one that `connect` makes.
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
                // Nobody there: the caller sees the connection end.
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

    /// For `beeline run --guest`.
    pub fn address(&self) -> String {
        format!("unix:{}", self.path.display())
    }

    /// How many bytes went either way.
    pub fn carried(&self) -> u64 {
        self.carried.load(Ordering::SeqCst)
    }
}

/// Carries one way, until either side ends or the fault comes.
fn carry(mut from: UnixStream, mut to: UnixStream, fault: Fault, carried: &AtomicU64) {
    let mut buffer = [0; PIECE];
    while let Ok(got @ 1..) = from.read(&mut buffer) {
        let before = carried.fetch_add(got as u64, Ordering::SeqCst);
        let after = before + got as u64;
        // The fault's place in this piece, if it is in it or was before.
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
