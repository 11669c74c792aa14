//! The protocol between `beeline run --guest` on a host and `beeline guest` in a virtual machine.
//!
//! It consists of the [`messages`] (Protocol Buffers, described in `proto/guest.proto`), their
//! framing on a stream ([`frame`]), and the table of the `bpf(2)` commands that travel in them
//! ([`layout`], [`instructions`], [`info`]). A [`channel`] to an [`address`] carries them, by a
//! socket that is [`held`] if its owner has to be checked first; the guest [`listen`]s there, and
//! limits each [`peer`]. A [`conversation`] is the messages on a channel, and a [`client`] is the
//! host's end of it. A [`lookup_channel`] is a further connection for look-ups, which the guest
//! reads and answers in place ([`look_up`]). [`content`] is what is sent only once. The crate makes
//! no system calls except those of the stream.
//!
//! Its terms are in docs/glossary.md.

pub mod address;
pub mod channel;
pub mod client;
pub mod clocks;
pub mod content;
pub mod conversation;
pub mod frame;
pub mod held;
pub mod info;
pub mod instructions;
pub mod layout;
pub mod listen;
pub mod look_up;
pub mod lookup_channel;
pub mod peer;
mod serial;
pub mod stream;
pub mod text;
pub mod tls;

/// The messages, as `proto/guest.proto` describes them.
#[allow(
    missing_docs,
    clippy::doc_markdown,
    reason = "the description has the words"
)]
pub mod messages {
    include!(concat!(env!("OUT_DIR"), "/beeline.guest.v1.rs"));
}

/// The version of the protocol. A host and a guest of different versions do not speak to each
/// other.
pub const VERSION: u32 = 7;
/// The port that a guest listens to unless it is told another.
pub const PORT: u32 = 8790;
