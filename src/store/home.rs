//! An agent's own origin, and who else it is led to: a redirect goes wherever the server says. None leads from elsewhere to
//! what is near, through a proxy neither; and what fails on the way to another host is not the origin's failure.

use std::fmt;
use std::sync::Arc;

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::transport::{ConnectionDetails, Connector, Transport};

use super::near::is_near;
use super::proxy::BadProxy;

/// A redirect to what is near.
#[derive(Debug)]
pub(super) struct LedNear;

impl fmt::Display for LedNear {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the server redirects to this machine or to a link-local address, which is not followed")
    }
}

impl std::error::Error for LedNear {}

/// No connection to a host that is not the origin.
#[derive(Debug)]
pub(super) struct LedAstray {
    /// The host, and the port where one is given; nothing else of the url, which may hold secrets.
    pub(super) host: String,
    /// Why there is none.
    pub(super) error: ureq::Error,
}

impl fmt::Display for LedAstray {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server redirects to {}, which cannot be reached", self.host)
    }
}

impl std::error::Error for LedAstray {}

/// The origin that an agent is for.
#[derive(Debug)]
pub(super) struct Home {
    host: String,
    port: Option<u16>,
    /// Set where there is a proxy in between, good or bad.
    proxy: Option<Result<(), BadProxy>>,
}

impl Home {
    pub(super) fn new(uri: Option<&Uri>, proxy: Option<Result<(), BadProxy>>) -> Home {
        let host = uri.and_then(Uri::host).unwrap_or_default().to_owned();
        Home { host, port: uri.and_then(port), proxy }
    }

    /// Nothing is asked, past the proxy, where it is not known which one that is.
    pub(super) fn check_proxy(&self) -> Result<(), ureq::Error> {
        match &self.proxy {
            Some(Err(bad)) => Err(ureq::Error::Other(Box::new(bad.clone()))),
            _ => Ok(()),
        }
    }

    /// Whether what is near may be asked at all: the user named something near.
    pub(super) fn is_near(&self) -> bool {
        is_near(&self.host)
    }

    /// Whether `host` is the origin's own, on whatever port.
    pub(super) fn has_host(&self, host: &str) -> bool {
        self.host.eq_ignore_ascii_case(host)
    }

    /// The error, as that of the host it was met at.
    pub(super) fn blame(&self, uri: &Uri, error: ureq::Error) -> ureq::Error {
        let is_own = self.has_host(uri.host().unwrap_or_default()) && self.port == port(uri);
        if is_own || matches!(&error, ureq::Error::Other(source) if source.is::<LedNear>()) {
            return error;
        }
        let host = uri.host().unwrap_or_default();
        let host = uri.port_u16().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"));
        ureq::Error::Other(Box::new(LedAstray { host, error }))
    }

    /// The library connects to a proxy with settings that have none.
    fn is_proxys(&self, config: &Config) -> bool {
        self.proxy.is_some() && config.proxy().is_none()
    }
}

fn port(uri: &Uri) -> Option<u16> {
    let usual = || match uri.scheme_str() {
        Some("http") => Some(80),
        Some("https") => Some(443),
        _ => None,
    };
    uri.port_u16().or_else(usual)
}

/// Makes connections as `chain` does, for an agent with this home.
#[derive(Debug)]
pub(super) struct FromHome<C> {
    pub(super) home: Arc<Home>,
    pub(super) chain: C,
}

impl<In: Transport, C: Connector<In>> Connector<In> for FromHome<C> {
    type Out = C::Out;

    fn connect(&self, details: &ConnectionDetails, chained: Option<In>) -> Result<Option<C::Out>, ureq::Error> {
        if self.home.is_proxys(details.config) {
            return self.chain.connect(details, chained);
        }
        // Names are looked up by the proxy, where there is one: then this is all that is known of the host.
        if !self.home.is_near() && details.uri.host().is_some_and(is_near) {
            return Err(ureq::Error::Other(Box::new(LedNear)));
        }
        self.chain.connect(details, chained).map_err(|error| self.home.blame(details.uri, error))
    }
}
