//! A guest that gives the answers which a test wants.

use std::sync::Arc;

use beeline_vm_protocol::VERSION;
use beeline_vm_protocol::address::Address;
use beeline_vm_protocol::channel::Channel;
use beeline_vm_protocol::conversation;
use beeline_vm_protocol::listen::Listener;
use beeline_vm_protocol::messages::guest_message::Body as Said;
use beeline_vm_protocol::messages::host_message::Body as Asked;
use beeline_vm_protocol::messages::{Done, GuestMessage, HostMessage, Welcome};
use parking_lot::Mutex;

use crate::connection::Connection;

/// The guest, as the supervisor sees it.
pub(super) struct Fake {
    pub(super) connection: Arc<Connection>,
    /// The lines that the user was told.
    pub(super) said: Arc<Mutex<Vec<String>>>,
}

/// Starts a guest. `answer` returns the answer to a request; `None` ends the connection.
pub(super) fn guest(mut answer: impl FnMut(Asked) -> Option<Said> + Send + 'static) -> Fake {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let address = Address::Unix { path };
    let listener = Listener::new(&address, None).unwrap();
    std::thread::spawn(move || {
        let channel = listener.wait().unwrap().accept().unwrap();
        let (mut receiver, sender) = conversation::begin(channel).unwrap();
        while let Ok(Some(HostMessage { id, body })) = receiver.receive() {
            let said = match body.unwrap() {
                Asked::Hello(_) => Some(Said::Welcome(Welcome {
                    version: VERSION,
                    ..Welcome::default()
                })),
                Asked::Release(_) => Some(Said::Done(Done {})),
                body => answer(body),
            };
            let Some(said) = said else { break };
            let body = Some(said);
            if sender.send(&GuestMessage { id, body }).is_err() {
                break;
            }
        }
        sender.end();
    });
    let said = Arc::<Mutex<Vec<String>>>::default();
    let say = {
        let said = Arc::clone(&said);
        move |line: &str| said.lock().push(line.to_owned())
    };
    let channel = Channel::connect(&address, None).unwrap();
    let connection = Connection::greet(channel, "a test", Box::new(say), Box::new(|_| ()));
    Fake {
        connection: connection.unwrap(),
        said,
    }
}
