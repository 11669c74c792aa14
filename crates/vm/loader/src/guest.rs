//! A guest, and the files of its kernel.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};

use beeline_object::{FileKernel, Kernel, Object};
use beeline_vm_protocol::address::Address;
use beeline_vm_protocol::channel::Channel;
use beeline_vm_protocol::client::Client;
use beeline_vm_protocol::messages::guest_message::Body as Said;
use beeline_vm_protocol::messages::host_message::Body as Asked;
use beeline_vm_protocol::messages::{Look, Welcome};
use beeline_vm_protocol::tls::Tls;

use crate::error::Error;
use crate::handle::Line;
use crate::inbox::{Heard, Inbox};
use crate::load::{Loaded, Selection};

/// An upper bound for the size of the kernel's files.
const LONGEST_FILE: usize = 256 << 20;

/// A guest that was greeted.
#[derive(Debug)]
pub struct Guest {
    pub(crate) line: Arc<Line>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) heard: Receiver<Heard>,
    interrupter: Interrupter,
}

/// Ends waits of [`Loaded::next_event`], from any thread.
#[derive(Debug, Clone)]
pub struct Interrupter(Sender<Heard>);

impl Interrupter {
    /// Ends the current wait, or the next one, without an event.
    pub fn interrupt(&self) {
        // If it fails, no thread waits.
        let _ = self.0.send(Heard::Interrupt);
    }
}

impl Guest {
    /// Connects to the proxy at an address and greets it. `client` is told to the guest's audit
    /// log; `tls` is for `tcp:` addresses.
    ///
    /// # Errors
    ///
    /// [`Error::Channel`] if there is no connection, [`Error::Greet`] if the program at the other
    /// end does not answer the greeting as a proxy does.
    pub fn connect(address: &Address, tls: Option<&Tls>, client: &str) -> Result<Self, Error> {
        Self::greet(Channel::connect(address, tls)?, client)
    }

    /// Greets the proxy at the other end of a channel.
    ///
    /// # Errors
    ///
    /// [`Error::Greet`] as in [`Self::connect`].
    pub fn greet(channel_to_guest: Channel, client: &str) -> Result<Self, Error> {
        let end = Arc::new(OnceLock::new());
        let (sender, heard) = channel();
        let (lost, lost_end) = (sender.clone(), Arc::clone(&end));
        let greeted = Client::greet(
            channel_to_guest,
            client,
            Box::new(move |why| {
                // Only the first reason counts.
                let _ = lost_end.set(why.to_owned());
                let _ = lost.send(Heard::Lost);
            }),
        )?;
        let inbox = Arc::new(Inbox::default());
        let (hearing, to) = (Arc::clone(&inbox), sender.clone());
        greeted.heard_by(Box::new(move |said| hearing.take(said, &to)));
        Ok(Self {
            line: Arc::new(Line {
                client: greeted,
                end,
            }),
            inbox,
            interrupter: Interrupter(sender),
            heard,
        })
    }

    /// Returns the proxy's description of its kernel.
    pub fn welcome(&self) -> &Welcome {
        self.line.client.welcome()
    }

    /// Returns the guest's kernel, for [`Object::parse`]. Its types and its configuration are
    /// fetched when they are first asked for.
    pub fn kernel(&self) -> impl Kernel + use<> {
        let line = Arc::clone(&self.line);
        FileKernel::new(move |path: &str| read(&line, path).ok())
    }

    /// Reads an object file for the guest's kernel.
    ///
    /// # Errors
    ///
    /// [`Error::Object`].
    pub fn parse(&self, data: &[u8]) -> Result<Object, Error> {
        Ok(Object::parse(data, &self.kernel())?)
    }

    /// Makes an object's maps and its selected programs in the guest. Another object needs another
    /// connection.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuch`] if a selected program does not exist. [`Error::Map`] and
    /// [`Error::Program`] if the guest refuses a map or a program. [`Error::Attach`] if a program's
    /// section names a place that the kernel's types do not have. [`Error::Length`] if an element
    /// does not fit its map. [`Error::Lost`] and [`Error::Nonsense`] if the guest does not answer
    /// as it should.
    pub fn load(self, object: &Object, selection: &Selection) -> Result<Loaded, Error> {
        Loaded::new(self, object, selection)
    }

    /// Returns a handle that ends waits for events.
    pub fn interrupter(&self) -> Interrupter {
        self.interrupter.clone()
    }

    /// Reads a file of the guest's kernel, if its proxy shows it (see `docs/guests.md`).
    ///
    /// # Errors
    ///
    /// [`Error::File`] if the guest refuses. [`Error::Lost`] and [`Error::Nonsense`] if it does not
    /// answer as it should.
    pub fn read(&self, path: &str) -> Result<Vec<u8>, Error> {
        read(&self.line, path)
    }
}

pub(crate) fn read(line: &Line, path: &str) -> Result<Vec<u8>, Error> {
    let mut content = Vec::new();
    loop {
        let request = Asked::Look(Look {
            path: path.into(),
            content: true,
            from: content.len() as u64,
            held: Vec::new(),
        });
        let file = match line.ask(request)? {
            Ok(Said::File(file)) => file,
            Ok(_) => return Err(Error::Nonsense("an answer to another question")),
            Err(refusal) => {
                let path = path.into();
                return Err(Error::File { path, refusal });
            }
        };
        let is_end = !file.more || file.content.is_empty();
        content.extend(file.content);
        if is_end {
            return Ok(content);
        }
        if content.len() > LONGEST_FILE {
            return Err(Error::Nonsense("a file without an end"));
        }
    }
}

/// Reads a file of one line of text.
pub(crate) fn read_line(line: &Line, path: &str) -> Result<String, Error> {
    let content = read(line, path)?;
    Ok(String::from_utf8_lossy(&content).trim().to_owned())
}
