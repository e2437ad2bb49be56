//! TLS to Postgres: rustls with ring, and libpq's three degrees of trust. A certificate that does not satisfy the degree
//! is an error, never a silent step down; only `require` without a root and `prefer` trust anyone, as libpq does.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, ensure};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::conninfo::{Conninfo, Trust};

/// The connector for `conninfo`. An error names the file or store that gave no roots.
pub(super) fn connector(conninfo: &Conninfo) -> Result<MakeRustlsConnect> {
    let provider = Arc::new(ring::default_provider());
    let inner = match conninfo.trust {
        Trust::Anyone => None,
        Trust::Chain | Trust::ChainAndName => {
            let roots = Arc::new(roots(conninfo.root_cert.as_deref())?);
            Some(WebPkiServerVerifier::builder_with_provider(roots, provider.clone()).build()?)
        }
    };
    let verifier = Verifier { inner, name: conninfo.trust == Trust::ChainAndName, provider: provider.clone() };
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(config))
}

fn roots(file: Option<&Path>) -> Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    let Some(file) = file else {
        let found = rustls_native_certs::load_native_certs();
        store.add_parsable_certificates(found.certs);
        let cause = found.errors.first().map(|error| format!(" ({error})")).unwrap_or_default();
        ensure!(
            !store.is_empty(),
            "the system has no trusted root certificates{cause}: set sslrootcert to a file of them"
        );
        return Ok(store);
    };
    let name = file.display();
    let certificates = CertificateDer::pem_file_iter(file).map_err(|error| anyhow!("sslrootcert {name}: {error}"))?;
    for certificate in certificates {
        let certificate = certificate.map_err(|error| anyhow!("sslrootcert {name}: {error}"))?;
        store
            .add(certificate)
            .with_context(|| format!("sslrootcert {name} holds a certificate that cannot be used"))?;
    }
    ensure!(!store.is_empty(), "sslrootcert {name} holds no certificate");
    Ok(store)
}

/// Checks the chain, and the name, as far as the degree of trust asks for.
#[derive(Debug)]
struct Verifier {
    /// `None` trusts anyone.
    inner: Option<Arc<WebPkiServerVerifier>>,
    name: bool,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(inner) = &self.inner else { return Ok(ServerCertVerified::assertion()) };
        match inner.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            // The name is checked after the chain, so with this error the chain is good: all that verify-ca asks for.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if !self.name => Ok(ServerCertVerified::assertion()),
            verdict => verdict,
        }
    }

    // The handshake's signature proves that the server owns the certificate it showed; that is asked of everyone.
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
