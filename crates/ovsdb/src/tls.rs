//! TLS below the protocol, as Open vSwitch uses it (lib/stream-ssl.c).
//!
//! Both sides present certificates. The server's must be signed by one of the given authorities.
//! The machine's own authorities are not trusted: they vouch for web sites. Open vSwitch does not
//! compare the name in a certificate with the address, and its own tool `ovs-pki` writes names that
//! are not addresses (`DNS:sc id:5ebd…`). So the name is not compared here either: any holder of a
//! key that the authority signed is accepted as the server.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

use crate::error::OvsdbError;
use crate::remote::{Keys, Remote};
use crate::stream::{is_timeout, left};

/// The maximum size of a file with keys or certificates: it is read into memory.
const FILE_MAX: u64 = 1 << 20;

/// A TLS connection over TCP.
pub(crate) struct TlsStream {
    tls: ClientConnection,
    socket: TcpStream,
}

impl fmt::Debug for TlsStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsStream").field("socket", &self.socket).finish_non_exhaustive()
    }
}

/// Reads the keys and prepares the TLS session.
pub(crate) fn prepare(
    remote: &Remote,
    address: &SocketAddr,
    keys: Option<&Keys>,
) -> Result<ClientConnection, OvsdbError> {
    let unusable =
        |what: String, source| OvsdbError::Keys { remote: remote.to_string(), what, source };
    let Some(keys) = keys else {
        let none = io::Error::new(
            io::ErrorKind::NotFound,
            "give a private key, a certificate, and the certificate of the server's authority",
        );
        return Err(unusable("no keys".to_owned(), none));
    };
    let named = |what: &str, path: &Path| format!("{what} {:?}", path.display().to_string());
    let read =
        |what: &str, path: &Path| read(path).map_err(|source| unusable(named(what, path), source));
    let not_so = |what: &str, path: &Path, why: String| {
        unusable(named(what, path), io::Error::new(io::ErrorKind::InvalidInput, why))
    };
    let certificates = |what: &str, path: &Path| {
        let bytes = read(what, path)?;
        let all = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>();
        match all {
            Ok(all) if !all.is_empty() => Ok(all),
            Ok(_) => Err(not_so(what, path, "it holds no certificate (PEM)".to_owned())),
            Err(error) => Err(not_so(what, path, error.to_string())),
        }
    };
    let key = read("private key", &keys.private_key)?;
    let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| {
        let why = match error {
            pem::Error::NoItemsFound => {
                "it holds no private key that is not encrypted (PEM)".to_owned()
            }
            other => other.to_string(),
        };
        not_so("private key", &keys.private_key, why)
    })?;
    let own = certificates("certificate", &keys.certificate)?;
    let mut roots = RootCertStore::empty();
    for certificate in certificates("CA certificate", &keys.ca_cert)? {
        roots
            .add(certificate)
            .map_err(|error| not_so("CA certificate", &keys.ca_cert, error.to_string()))?;
    }
    let provider = Arc::new(ring::default_provider());
    let verifier = Arc::new(Chain { roots, provider: Arc::clone(&provider) });
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map(|builder| builder.dangerous().with_custom_certificate_verifier(verifier))
        .and_then(|builder| builder.with_client_auth_cert(own, key))
        .map_err(|error| not_so("certificate", &keys.certificate, error.to_string()))?;
    ClientConnection::new(Arc::new(config), ServerName::IpAddress(address.ip().into()))
        .map_err(|error| OvsdbError::Tls { remote: remote.to_string(), source: broken(error) })
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(FILE_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl TlsStream {
    /// Shakes hands.
    pub(crate) fn begin(
        remote: &Remote,
        tls: ClientConnection,
        socket: TcpStream,
        until: Instant,
    ) -> Result<Self, OvsdbError> {
        let mut stream = TlsStream { tls, socket };
        while stream.tls.is_handshaking() {
            stream.flush(until).and_then(|()| stream.fill(until)).map_err(|source| {
                let remote = remote.to_string();
                let doing = "the TLS handshake";
                match source.kind() {
                    _ if is_timeout(&source) => OvsdbError::Deadline { remote, doing },
                    io::ErrorKind::UnexpectedEof => OvsdbError::Closed { remote, doing },
                    io::ErrorKind::InvalidData => OvsdbError::Tls { remote, source },
                    _ => OvsdbError::Io { remote, doing, source },
                }
            })?;
        }
        Ok(stream)
    }

    /// Reads what has arrived, waiting until the deadline for the first byte. 0 is the end.
    pub(crate) fn read(&mut self, buffer: &mut [u8], until: Instant) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                // The brackets of a message show whether it was complete.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                done => return done,
            }
            // There may be something to send to the other side: a key update, say.
            self.flush(until)?;
            match self.fill(until) {
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                filled => filled?,
            }
        }
    }

    /// Writes some bytes.
    pub(crate) fn write(&mut self, bytes: &[u8], until: Instant) -> io::Result<usize> {
        let count = self.tls.writer().write(bytes)?;
        self.flush(until)?;
        Ok(count)
    }

    /// Sends what the TLS layer wants to send.
    fn flush(&mut self, until: Instant) -> io::Result<()> {
        while self.tls.wants_write() {
            self.socket.set_write_timeout(Some(left(until)?))?;
            match self.tls.write_tls(&mut self.socket) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Receives data and passes it to the TLS layer.
    fn fill(&mut self, until: Instant) -> io::Result<()> {
        self.socket.set_read_timeout(Some(left(until)?))?;
        match self.tls.read_tls(&mut self.socket) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server hung up")),
            Ok(_) => match self.tls.process_new_packets() {
                Ok(_) => Ok(()),
                Err(error) => {
                    // Sends the reason to the other side, if it still listens.
                    let _ = self.flush(until);
                    Err(broken(error))
                }
            },
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Drop for TlsStream {
    /// Closes the session if that needs no waiting: otherwise the server would complain about a cut
    /// connection.
    fn drop(&mut self) {
        self.tls.send_close_notify();
        if self.socket.set_nonblocking(true).is_ok() {
            let _ = self.tls.write_tls(&mut self.socket);
        }
    }
}

fn broken(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

/// Accepts a server of any name whose certificate one of the authorities has signed.
#[derive(Debug)]
struct Chain {
    roots: RootCertStore,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Chain {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let certificate = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        let (roots, others) = (&self.roots, intermediates);
        verify_server_cert_signed_by_trust_anchor(&certificate, roots, others, now, algorithms)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
