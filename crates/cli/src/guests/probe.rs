//! Asks proxies if they are there.
//!
//! Nothing but sockets is connected to: what is at a path is held and looked at first, and the very
//! same is connected to then, whatever has taken its place.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use beeline_vm_protocol::address::Address;
use beeline_vm_protocol::channel::{self, Channel};
use beeline_vm_protocol::client::{Client, GreetError};
use beeline_vm_protocol::held::HeldSocket;
use beeline_vm_protocol::messages::Welcome;

use super::machines::{NotAsked, Place};
use super::sockets::{Sockets, Use};

/// The most proxies that are asked at once, each by a thread.
pub const MOST: usize = 256;
/// The most of them that one process names, so that it does not take the others' turns.
pub const MOST_OF_ONE: usize = 16;
/// The time after which a question that must not be given up is given up all the same.
const LONGEST: Duration = Duration::from_secs(5);

/// An address, and what was found there.
pub struct Probed {
    pub address: Address,
    pub state: State,
}

/// The state of an address.
pub enum State {
    /// A proxy that serves this host.
    Serves(Box<Welcome>),
    /// One that does not, or something else that answers.
    Refuses(String),
    /// There is no connection.
    Unreachable(String),
    /// Nothing has answered in time.
    Silent,
    /// Another client has the line, which takes one at a time.
    Taken,
    /// It was not asked.
    NotAsked(NotAsked),
}

/// Questions that must not be given up yet.
pub struct Pending {
    asks: Receiver<()>,
    deadline: Instant,
}

impl Pending {
    /// Waits until they are answered, or have been given up because nothing came for long.
    pub fn wait(self) {
        // It ends when the last of those threads has.
        let left = self.deadline.saturating_duration_since(Instant::now());
        let _ = self.asks.recv_timeout(left);
    }
}

/// Asks at all places at the same time, each for no longer than `patience` in all. The answers are
/// in the places' order.
pub fn all(places: &[&Place], sockets: &Sockets, patience: Duration) -> (Vec<Probed>, Pending) {
    let (sender, answers) = channel();
    let (asks, pending) = channel::<()>();
    let mut probed: Vec<_> = places
        .iter()
        .map(|place| Probed {
            address: place.address.clone(),
            state: before(place, sockets).unwrap_or(State::Silent),
        })
        .collect();
    let began = Instant::now();
    let (turns, too_many) = turns(places, &probed);
    for at in too_many {
        probed[at].state = State::NotAsked(NotAsked::TooMany);
    }
    for at in turns {
        let (sender, place) = (sender.clone(), places[at].clone());
        let asks = place.is_delicate.then(|| asks.clone());
        let ask = move || {
            // Behind the deadline nobody waits for it.
            let _ = sender.send((at, probe(&place, patience)));
            drop(asks);
        };
        let thread = Builder::new().name("beeline-probe".into());
        if let Err(error) = thread.spawn(ask) {
            probed[at].state = State::Unreachable(format!("no thread could be started: {error}"));
        }
    }
    drop((sender, asks));
    let pending = Pending {
        asks: pending,
        deadline: began + LONGEST,
    };
    let deadline = began + patience;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        match answers.recv_timeout(left) {
            Ok((at, state)) => probed[at].state = state,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                return (probed, pending);
            }
        }
    }
}

/// Returns the state of a place that is not asked.
fn before(place: &Place, sockets: &Sockets) -> Option<State> {
    if let Some(why) = place.not_asked {
        return Some(State::NotAsked(why));
    }
    let Address::Serial { path } = &place.address else {
        return None;
    };
    match sockets.use_of(path) {
        Use::Free => None,
        Use::Taken => Some(State::Taken),
        // The line could be somebody's, whose bytes a greeting would mix with.
        Use::Unknown => Some(State::NotAsked(NotAsked::Unknown)),
    }
}

/// Returns the places to ask, each process's first ones first, and those for which there is no room.
fn turns(places: &[&Place], probed: &[Probed]) -> (Vec<usize>, Vec<usize>) {
    let mut of_process = HashMap::new();
    let asked = (0..places.len()).filter(|at| matches!(probed[*at].state, State::Silent));
    let numbered = asked.map(|at| {
        let count: &mut usize = of_process.entry(places[at].pid).or_default();
        *count += 1;
        (*count, at)
    });
    // libvirt's directories tell of many machines.
    let (mut turns, mut too_many): (Vec<_>, Vec<_>) =
        numbered.partition(|(number, at)| *number <= MOST_OF_ONE || places[*at].pid.is_none());
    turns.sort_unstable();
    too_many.extend(turns.split_off(turns.len().min(MOST)));
    let places = |numbered: Vec<(usize, usize)>| numbered.into_iter().map(|(_, at)| at).collect();
    (places(turns), places(too_many))
}

fn probe(place: &Place, patience: Duration) -> State {
    let channel = match connect(place) {
        Ok(channel) => channel,
        Err(state) => return state,
    };
    if let Err(error) = channel.set_patience(patience) {
        return State::Unreachable(error.to_string());
    }
    match Client::greet(channel, "beeline guests", Box::new(|_| ())) {
        Ok(client) => {
            let welcome = Box::new(client.welcome().clone());
            client.close();
            State::Serves(welcome)
        }
        Err(GreetError::Frame(_)) => State::Silent,
        Err(GreetError::Nobody(_)) => State::Unreachable("no proxy answers there".into()),
        Err(error) => State::Refuses(error.to_string()),
    }
}

/// Connects to a place whose socket, and whoever listens there, are the right user's.
fn connect(place: &Place) -> Result<Channel, State> {
    let unreachable = |error: channel::Error| State::Unreachable(error.to_string());
    let path: &Path = match &place.address {
        Address::Uds { path, .. } | Address::Serial { path } | Address::Unix { path } => path,
        Address::Vsock { .. } | Address::Tcp { .. } => {
            return Channel::connect(&place.address, None).map_err(unreachable);
        }
    };
    let socket = HeldSocket::at(path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => State::NotAsked(NotAsked::Missing),
        ErrorKind::InvalidInput => State::NotAsked(NotAsked::NoSocket),
        _ => State::Unreachable(error.to_string()),
    })?;
    let owner = socket.owner();
    if place.owner != Some(owner) {
        return Err(State::NotAsked(NotAsked::Foreign));
    }
    // libvirt's service listens, and gives the socket to the machine's user.
    let by_root = place.pid.is_none();
    let may_listen = |user| user == owner || (by_root && user == 0);
    Channel::connect_held(&place.address, &socket, may_listen).map_err(unreachable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;
    use std::path::PathBuf;

    fn place(address: Address) -> Place {
        Place {
            address,
            pid: Some(1),
            owner: Some(rustix::process::geteuid().as_raw()),
            not_asked: None,
            is_delicate: false,
        }
    }

    fn uds(path: &Path) -> Place {
        let path = path.to_owned();
        place(Address::Uds { path, port: 8790 })
    }

    fn folder(name: &str) -> PathBuf {
        let name = format!("beeline-probe-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_socket_that_nobody_serves_costs_no_more_than_its_time() {
        let folder = folder("stuck");
        let stuck = folder.join("stuck");
        let _listener = UnixListener::bind(&stuck).unwrap();
        let mut left = uds(&stuck);
        left.not_asked = Some(NotAsked::Foreign);
        let line = place(Address::Serial {
            path: stuck.clone(),
        });
        let places = [uds(&stuck), left, line];
        let began = Instant::now();
        let patience = Duration::from_millis(300);
        let (found, pending) = all(&places.each_ref(), &Sockets::read(), patience);
        pending.wait();
        assert!(began.elapsed() < 10 * patience, "{:?}", began.elapsed());
        assert!(matches!(found[0].state, State::Silent));
        assert!(matches!(found[1].state, State::NotAsked(NotAsked::Foreign)));
        assert!(matches!(found[2].state, State::Silent));
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn nothing_but_sockets_of_the_right_user_is_touched() {
        let folder = folder("touched");
        let (file, own) = (folder.join("file"), folder.join("socket"));
        std::fs::write(&file, "content").unwrap();
        let listener = UnixListener::bind(&own).unwrap();
        listener.set_nonblocking(true).unwrap();
        let state = |place: &Place| probe(place, Duration::from_millis(100));
        let line = |path: &Path| {
            place(Address::Serial {
                path: path.to_owned(),
            })
        };
        for place in [uds(&file), line(&file)] {
            let state = state(&place);
            assert!(matches!(state, State::NotAsked(NotAsked::NoSocket)));
        }
        assert_eq!(std::fs::read(&file).unwrap(), b"content");
        let missing = folder.join("missing");
        for place in [uds(&missing), line(&missing)] {
            let state = state(&place);
            assert!(matches!(state, State::NotAsked(NotAsked::Missing)));
        }
        let mut foreign = uds(&own);
        foreign.owner = foreign.owner.map(|user| user + 1);
        let foreign = state(&foreign);
        assert!(matches!(foreign, State::NotAsked(NotAsked::Foreign)));
        assert!(listener.accept().is_err());
        // The kernel does not list the file as a socket where somebody listens.
        let lines = [line(&file)];
        let (found, _) = all(&lines.each_ref(), &Sockets::read(), Duration::ZERO);
        assert!(matches!(found[0].state, State::NotAsked(NotAsked::Unknown)));
        assert_eq!(std::fs::read(&file).unwrap(), b"content");
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn no_process_takes_the_turns_of_others() {
        let of = |pid: i32| {
            let mut place = uds(Path::new("/x"));
            place.pid = Some(pid);
            place
        };
        let mut places = vec![of(1); MOST + 1];
        places.push(of(2));
        let places: Vec<_> = places.iter().collect();
        let probed = places.iter().map(|place| Probed {
            address: place.address.clone(),
            state: State::Silent,
        });
        let (asked, left) = turns(&places, &probed.collect::<Vec<_>>());
        assert_eq!(asked.len(), MOST_OF_ONE + 1);
        assert_eq!(asked[..2], [0, MOST + 1]);
        assert_eq!(left.len(), MOST + 1 - MOST_OF_ONE);
    }
}
