//! Mutual TLS 1.3 for TCP: each side shows a certificate that the other's authority has signed.

use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{
    ClientConfig, ClientConnection, Connection, RootCertStore, ServerConfig, ServerConnection,
};

use crate::stream::Stream;

/// Files in PEM form.
#[derive(Debug, Clone)]
pub struct Tls {
    /// This side's certificate, and those between it and the authority.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// The authority that must have signed the other side's certificate.
    pub authority: PathBuf,
    /// The name that the guest's certificate must be for, if that is not its address. For hosts.
    pub name: Option<String>,
}

fn refused(why: impl std::fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_string())
}

fn about(path: &Path, error: impl std::fmt::Display) -> io::Error {
    refused(format_args!("{}: {error}", path.display()))
}

/// Reads a file of certificates or of a key.
fn pem(path: &Path) -> io::Result<Vec<u8>> {
    /// The most bytes of one: a system's authorities take 200 KiB.
    const MOST: u64 = 4 << 20;
    beeline_trusted_dir::read_bounded(path, MOST).map_err(|error| about(path, error))
}

impl Tls {
    fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
        let text = pem(path)?;
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        let certificates = read.map_err(|error| about(path, error))?;
        if certificates.is_empty() {
            return Err(about(path, "there is no certificate in it"));
        }
        Ok(certificates)
    }

    fn key(&self) -> io::Result<PrivateKeyDer<'static>> {
        let text = pem(&self.key)?;
        PrivateKeyDer::from_pem_slice(&text).map_err(|error| about(&self.key, error))
    }

    fn roots(&self) -> io::Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        for certificate in Self::certificates(&self.authority)? {
            roots
                .add(certificate)
                .map_err(|error| about(&self.authority, error))?;
        }
        Ok(roots)
    }

    pub(crate) fn client(&self) -> io::Result<Client> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(refused)?
            .with_root_certificates(self.roots()?)
            .with_client_auth_cert(Self::certificates(&self.certificate)?, self.key()?)
            .map_err(|error| about(&self.certificate, error))?;
        Ok(Client {
            config: Arc::new(config),
            name: self.name.clone(),
        })
    }

    pub(crate) fn server(&self) -> io::Result<Server> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let hosts =
            WebPkiClientVerifier::builder_with_provider(Arc::new(self.roots()?), provider.clone())
                .build()
                .map_err(|error| about(&self.authority, error))?;
        let config = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(refused)?
            .with_client_cert_verifier(hosts)
            .with_single_cert(Self::certificates(&self.certificate)?, self.key()?)
            .map_err(|error| about(&self.certificate, error))?;
        Ok(Server(Arc::new(config)))
    }
}

/// The connecting side.
#[derive(Debug)]
pub(crate) struct Client {
    config: Arc<ClientConfig>,
    name: Option<String>,
}

impl Client {
    pub(crate) fn connect(&self, stream: &Stream, ip: IpAddr) -> io::Result<Arc<Session>> {
        let name = match &self.name {
            Some(name) => ServerName::try_from(name.clone()).map_err(refused)?,
            None => ServerName::from(ip),
        };
        let tls = ClientConnection::new(self.config.clone(), name).map_err(refused)?;
        Session::begin(tls.into(), stream)
    }
}

/// The listening side.
#[derive(Debug, Clone)]
pub(crate) struct Server(Arc<ServerConfig>);

impl Server {
    pub(crate) fn accept(&self, stream: &Stream) -> io::Result<Arc<Session>> {
        let tls = ServerConnection::new(self.0.clone()).map_err(refused)?;
        // The alert tells a stranger why.
        Session::begin(tls.into(), stream).inspect_err(|_| stream.end_politely())
    }
}

/// One connection's keys and its decrypted data. A thread that reads waits for the stream without
/// holding anything, so that another can write.
#[derive(Debug)]
pub(crate) struct Session {
    tls: Mutex<Connection>,
    /// Held from encrypting a record until it has been written: records must go out in their order.
    order: Mutex<()>,
    /// Data that have come and are not yet decrypted; for the thread that reads.
    waiting: Mutex<Vec<u8>>,
}

impl Session {
    fn begin(tls: Connection, stream: &Stream) -> io::Result<Arc<Self>> {
        let session = Self {
            tls: Mutex::new(tls),
            order: Mutex::new(()),
            waiting: Mutex::default(),
        };
        loop {
            session.send_what_is_due(stream)?;
            let tls = session.tls.lock();
            // The client is done before the server has looked at its certificate, and learns the
            // outcome at the first read.
            if !tls.is_handshaking() && !tls.wants_write() {
                break;
            }
            let reads = tls.wants_read();
            drop(tls);
            if reads && !session.take_in(stream)? {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the other side has ended the connection before it was secure",
                ));
            }
        }
        Ok(Arc::new(session))
    }

    /// Decrypts some of the received data. Returns false at the end of the stream.
    fn take_in(&self, stream: &Stream) -> io::Result<bool> {
        let mut waiting = self.waiting.lock();
        if waiting.is_empty() {
            let mut buffer = vec![0; 16 << 10];
            let count = stream.read(&mut buffer)?;
            buffer.truncate(count);
            *waiting = buffer;
        }
        let mut tls = self.tls.lock();
        let mut rest = &waiting[..];
        // No more than there is room for: the reader takes the decrypted data before it gets here
        // again.
        let taken = tls.read_tls(&mut rest)?;
        waiting.drain(..taken);
        let mut outcome = tls.process_new_packets().map(drop).map_err(refused);
        let due = tls.wants_write();
        drop(tls);
        if due {
            // An alert that says why, or the answer to new keys.
            let sent = self.send_what_is_due(stream);
            outcome = outcome.and(sent);
        }
        outcome.map(|()| taken > 0)
    }

    fn send_what_is_due(&self, stream: &Stream) -> io::Result<()> {
        let _order = self.order.lock();
        self.send_records(stream)
    }

    fn send_records(&self, stream: &Stream) -> io::Result<()> {
        let mut records = Vec::new();
        let mut tls = self.tls.lock();
        while tls.wants_write() {
            tls.write_tls(&mut records)?;
        }
        drop(tls);
        stream.write_all(&records)
    }

    pub(crate) fn read(&self, stream: &Stream, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.lock().reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // Cut off without TLS's own end; the messages' frames tell if anything is missing.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            self.take_in(stream)?;
        }
    }

    pub(crate) fn write(&self, stream: &Stream, bytes: &[u8]) -> io::Result<usize> {
        let _order = self.order.lock();
        let count = self.tls.lock().writer().write(bytes)?;
        self.send_records(stream)?;
        Ok(count)
    }
}
