//! HTTP agents: what they share (names resolved, TLS set up, connections counted) and how each is set. An agent serves
//! one origin: with many, its pool is searched in quadratic time. Nothing here retries, and nothing is decompressed
//! behind our back.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ureq::Agent;
use ureq::http::Uri;
use ureq::tls::{RootCerts, TlsConfig};
use ureq::unversioned::transport::{
    ConnectProxyConnector, ConnectionDetails, Connector, RustlsConnector, SocksConnector, TcpConnector, Transport,
};

use super::home::{FromHome, Home};
use super::names::{Names, NamesFor};
use super::proxy;

const USER_AGENT: &str = concat!("compact-local/", env!("CARGO_PKG_VERSION"));

/// How long an origin is waited for.
#[derive(Debug, Clone, Copy)]
pub struct Patience {
    /// For a connection, TLS included.
    pub connect: Duration,
    /// For the next byte of an answer.
    pub read: Duration,
    /// For the server to take the next bytes of an upload, and to answer it.
    pub write: Duration,
    /// An object that comes in less time is never slow.
    pub slow: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        let seconds = Duration::from_secs;
        Patience { connect: seconds(10), read: seconds(20), write: seconds(120), slow: seconds(2) }
    }
}

impl Patience {
    /// For a whole body of up to `bytes`: three stalls, and 64 KiB a second.
    pub(super) fn whole(self, bytes: u64) -> Duration {
        self.read * 3 + Duration::from_secs((bytes >> 16).min(24 * 3600))
    }
}

/// What all agents of the process share.
#[derive(Debug, Default)]
pub struct Network {
    names: Arc<Names>,
    tls: Arc<RustlsConnector>,
    connections: Arc<AtomicU64>,
}

/// How an agent is used.
#[derive(Debug, Clone, Copy)]
pub(super) struct AgentOptions {
    /// Connections kept open between requests: as many as threads share the agent.
    pub(super) idle_max: usize,
    /// Redirects followed. None for a signed request: headers that are secrets would go along.
    pub(super) redirects_max: u32,
    /// How long it waits.
    pub(super) patience: Patience,
}

impl Network {
    /// Connections made so far; many more than threads means that they are not kept alive.
    pub fn connections(&self) -> u64 {
        self.connections.load(Ordering::Relaxed)
    }

    /// An agent for one origin, `https://host:port`.
    pub(super) fn agent(&self, origin: &str, options: AgentOptions) -> Agent {
        let uri = origin.parse::<Uri>().ok();
        let host = uri.as_ref().and_then(Uri::host).unwrap_or_default().to_owned();
        let is_secure = uri.as_ref().and_then(Uri::scheme_str) == Some("https");
        let AgentOptions { idle_max, redirects_max, patience } = options;
        let proxy = proxy::before(&host);
        let between = proxy.as_ref().map_or_else(|bad| Some(Err(bad.clone())), |proxy| proxy.as_ref().map(|_| Ok(())));
        let home = Arc::new(Home::new(uri.as_ref(), between));
        let config = Agent::config_builder()
            .user_agent(USER_AGENT)
            // What was asked for over TLS is not taken without it, wherever a redirect leads.
            .https_only(is_secure)
            // The system's roots, or those that SSL_CERT_FILE names: the library would trust those it was built with.
            .tls_config(TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build())
            .accept_encoding(accept_encoding(&host))
            .http_status_as_error(false)
            .max_redirects(redirects_max)
            .max_redirects_will_error(redirects_max > 0)
            .timeout_connect(Some(patience.connect))
            .timeout_per_read(Some(patience.read))
            // A head that comes a byte at a time, each in time, ends too; an upload's may take longest.
            .timeout_recv_response(Some(patience.write.max(patience.read)))
            .timeout_per_write(Some(patience.write))
            .input_buffer_size(64 << 10)
            .output_buffer_size(16 << 10)
            .max_idle_connections(idle_max)
            .max_idle_connections_per_host(idle_max)
            .max_idle_age(Duration::from_secs(30))
            .proxy(proxy.unwrap_or_default())
            .build();
        // The library's own chain, with one TLS configuration for all agents (it reads the system's certificates) and
        // a counter.
        let chain =
            ().chain(SocksConnector::default())
                .chain(ConnectProxyConnector::default())
                .chain(CountingConnector(Arc::clone(&self.connections)))
                .chain(TcpConnector::default())
                .chain(SharedTls(Arc::clone(&self.tls)));
        let connector = FromHome { home: Arc::clone(&home), chain };
        Agent::with_parts(config, connector, NamesFor { names: Arc::clone(&self.names), home })
    }
}

/// Google's store decompresses objects that carry `Content-Encoding: gzip` unless gzip is accepted; others compress on
/// the fly where it is. Either would give bytes that are not the object's.
fn accept_encoding(host: &str) -> &'static str {
    let google = host == "storage.googleapis.com" || host.ends_with(".storage.googleapis.com");
    if google { "gzip" } else { "identity" }
}

#[derive(Debug)]
struct CountingConnector(Arc<AtomicU64>);

impl<In: Transport> Connector<In> for CountingConnector {
    type Out = In;

    fn connect(&self, _: &ConnectionDetails, chained: Option<In>) -> Result<Option<In>, ureq::Error> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(chained)
    }
}

struct SharedTls(Arc<RustlsConnector>);

impl fmt::Debug for SharedTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedTls")
    }
}

impl<In: Transport> Connector<In> for SharedTls {
    type Out = <RustlsConnector as Connector<In>>::Out;

    fn connect(&self, details: &ConnectionDetails, chained: Option<In>) -> Result<Option<Self::Out>, ureq::Error> {
        self.0.connect(details, chained)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_google_is_told_that_gzip_is_accepted() {
        assert_eq!(accept_encoding("storage.googleapis.com"), "gzip");
        assert_eq!(accept_encoding("bucket.storage.googleapis.com"), "gzip");
        assert_eq!(accept_encoding("notstorage.googleapis.com"), "identity");
        assert_eq!(accept_encoding("s3.amazonaws.com"), "identity");
    }
}
