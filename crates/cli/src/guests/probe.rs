//! Asks proxies if they are there.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::Builder;
use std::time::{Duration, Instant};

use beeline_vm_protocol::address::Address;
use beeline_vm_protocol::channel::Channel;
use beeline_vm_protocol::client::{Client, GreetError};
use beeline_vm_protocol::messages::Welcome;

use super::machines::{NotAsked, Place};
use super::sockets::{Sockets, Use};

/// The most proxies that are asked at once, each by a thread.
const MOST: usize = 256;

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
pub struct Pending(Receiver<()>);

impl Pending {
    /// Waits until they are answered, or have been given up because nothing came for long.
    pub fn wait(self) {
        // It ends when the last of those threads has.
        let _ = self.0.recv();
    }
}

/// Asks at all places at the same time. The answers are in the places' order.
pub fn all(places: &[&Place], sockets: &Sockets, patience: Duration) -> (Vec<Probed>, Pending) {
    let (sender, answers) = channel();
    let (asks, pending) = channel::<()>();
    let mut probed: Vec<_> = places
        .iter()
        .map(|place| Probed {
            address: place.address.clone(),
            state: place.not_asked.map_or(State::Silent, State::NotAsked),
        })
        .collect();
    for (at, (probed, place)) in probed.iter_mut().zip(places).enumerate() {
        if place.not_asked.is_some() {
            continue;
        }
        if let Address::Serial { path } = &probed.address
            && sockets.use_of(path) == Use::Taken
        {
            probed.state = State::Taken;
            continue;
        }
        let (sender, address) = (sender.clone(), probed.address.clone());
        let asks = place.is_delicate.then(|| asks.clone());
        let ask = move || {
            // Behind the deadline nobody waits for it.
            let _ = sender.send((at, probe(&address, patience)));
            drop(asks);
        };
        let thread = Builder::new().name("beeline-probe".into());
        if at >= MOST || thread.spawn(ask).is_err() {
            let why = format!("it was not asked: {MOST} at most are, at once");
            probed.state = State::Unreachable(why);
        }
    }
    drop(sender);
    let pending = Pending(pending);
    let deadline = Instant::now() + patience;
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

fn probe(address: &Address, patience: Duration) -> State {
    let channel = match Channel::connect(address, None) {
        Ok(channel) => channel,
        Err(error) => return State::Unreachable(error.to_string()),
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn a_socket_that_nobody_serves_costs_no_more_than_its_time() {
        let folder = std::env::temp_dir().join(format!("beeline-probe-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let stuck = folder.join("stuck");
        let _listener = UnixListener::bind(&stuck).unwrap();
        let place = |address, asked: bool| Place {
            address,
            not_asked: (!asked).then_some(NotAsked::Foreign),
            is_delicate: false,
        };
        let uds = |path| Address::Uds { path, port: 8790 };
        let places = [
            place(uds(stuck.clone()), true),
            place(uds(folder.join("missing")), true),
            place(uds(stuck.clone()), false),
            place(Address::Serial { path: stuck }, true),
        ];
        let began = Instant::now();
        let patience = Duration::from_millis(300);
        let (found, pending) = all(&places.each_ref(), &Sockets::read(), patience);
        pending.wait();
        assert!(began.elapsed() < 10 * patience, "{:?}", began.elapsed());
        assert!(matches!(found[0].state, State::Silent));
        assert!(matches!(found[1].state, State::Unreachable(_)));
        assert!(matches!(found[2].state, State::NotAsked(NotAsked::Foreign)));
        assert!(matches!(found[3].state, State::Silent));
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
