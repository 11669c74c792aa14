//! A guest that has no kernel, but clocks: all that tools need which make no eBPF call.

use beeline_e2e::{Ended, Scratch, Tool, as_user, beeline};
use beeline_vm_protocol::address::Address;
use beeline_vm_protocol::channel::Channel;
use beeline_vm_protocol::messages::guest_message::Body as Said;
use beeline_vm_protocol::messages::host_message::Body as Asked;
use beeline_vm_protocol::messages::{Clocks, Done, GuestMessage, HostMessage, Welcome};
use beeline_vm_protocol::{VERSION, clocks, conversation, listen::Listener};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};

/// The guest. It serves as long as the tests' process lives.
pub struct Clockwork {
    address: Address,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Nanoseconds by which it has booted before this machine.
    age: AtomicI64,
    is_silent: AtomicBool,
}

impl Clockwork {
    /// Starts a guest that has booted so many nanoseconds before this machine.
    pub fn start(age: i64) -> Clockwork {
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let address = Address::Tcp { at, insecure: true };
        let listener = Listener::new(&address, None).expect("a port is free");
        let address = listener.address();
        let state = Arc::new(State::default());
        state.age.store(age, Relaxed);
        let shown = Arc::clone(&state);
        std::thread::spawn(move || {
            while let Ok(waiting) = listener.wait() {
                let channel = waiting.accept().expect("no certificates are asked for");
                let shown = Arc::clone(&shown);
                std::thread::spawn(move || serve(channel, &shown));
            }
        });
        Clockwork { address, state }
    }

    /// Returns its address.
    pub fn address(&self) -> String {
        self.address.to_string()
    }

    /// Sets its clocks ahead.
    pub fn grow(&self, by: i64) {
        self.state.age.fetch_add(by, Relaxed);
    }

    /// Says nothing more.
    pub fn fall_silent(&self) {
        self.state.is_silent.store(true, Relaxed);
    }

    /// Returns what its clocks show.
    pub fn read(&self) -> Clocks {
        self.state.read()
    }

    /// Runs a program as its tool, on behalf of a user, with further options of Beeline's.
    pub fn run(
        &self,
        user: Option<u32>,
        scratch: &Scratch,
        options: &[&str],
        tool: &[&Path],
    ) -> Ended {
        // Its own path may be closed to others.
        let copy = scratch.path().join("beeline");
        if !copy.exists() {
            std::fs::copy(beeline(), &copy).expect("cannot copy beeline");
        }
        let mut command = match user {
            Some(user) => as_user(user, &copy),
            None => Command::new(&copy),
        };
        command.args(["run", "--guest", &self.address()]);
        command.args(options).arg("--").args(tool);
        command.current_dir(scratch.path());
        Tool::start(command).wait()
    }
}

impl State {
    fn read(&self) -> Clocks {
        let (now, age) = (clocks::read(), self.age.load(Relaxed));
        Clocks {
            monotonic: now.monotonic.wrapping_add_signed(age),
            boottime: now.boottime.wrapping_add_signed(2 * age),
            realtime: now.realtime,
        }
    }
}

fn serve(channel: Channel, state: &State) {
    // Without signs of life, as all that it says is an answer.
    let (mut receiver, sender) = conversation::open(channel);
    while let Ok(Some(HostMessage { id, body })) = receiver.receive() {
        let said = match body {
            Some(Asked::Hello(_)) => Said::Welcome(Welcome {
                version: VERSION,
                nodename: "clock\u{1b}[2Jwork\nbeeline: ".into(),
                release: "1.2.3".into(),
                policy: "testing".into(),
                ..Welcome::default()
            }),
            Some(Asked::ReadClocks(_)) => Said::Clocks(state.read()),
            _ => Said::Done(Done {}),
        };
        if state.is_silent.load(Relaxed) {
            continue;
        }
        let body = Some(said);
        if sender.send(&GuestMessage { id, body }).is_err() {
            break;
        }
    }
}
