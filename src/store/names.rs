//! Host names and their addresses, kept for a minute: the HTTP library asks at every request, pooled connection or not,
//! and its own way starts a thread each time. A name server's failure never takes away an answer that was good.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use ureq::config::Config;
use ureq::http::Uri;
use ureq::unversioned::resolver::{DefaultResolver, ResolvedSocketAddrs, Resolver};
use ureq::unversioned::transport::NextTimeout;

use super::home::{Home, LedNear};
use super::near::is_near_address;

/// A name server did not answer with an address.
#[derive(Debug)]
pub(super) struct LookupFailed(io::Error);

impl fmt::Display for LookupFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for LookupFailed {}

/// Resolved names, shared by all agents.
#[derive(Debug, Default)]
pub(super) struct Names {
    by_host: Mutex<HashMap<String, Arc<Name>>>,
    turn: AtomicUsize,
}

#[derive(Debug, Default)]
struct Name {
    answer: RwLock<Option<Answer>>,
    asking: Mutex<()>,
}

#[derive(Debug, Clone)]
struct Answer {
    addresses: Arc<[SocketAddr]>,
    asked: Instant,
}

impl Names {
    const KEPT: Duration = Duration::from_secs(60);

    fn addresses(&self, host_and_port: &str) -> io::Result<Arc<[SocketAddr]>> {
        let name = {
            let mut by_host = self.by_host.lock().unwrap_or_else(PoisonError::into_inner);
            match by_host.get(host_and_port) {
                Some(name) => Arc::clone(name),
                None => Arc::clone(by_host.entry(host_and_port.to_owned()).or_default()),
            }
        };
        name.addresses(host_and_port)
    }
}

impl Name {
    fn answer(&self) -> Option<Answer> {
        self.answer.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// One thread asks; the others go on with the old answer where there is one. A name server that fails now and then
    /// does not take away an answer that was good.
    fn addresses(&self, host_and_port: &str) -> io::Result<Arc<[SocketAddr]>> {
        let is_new = |answer: &Answer| answer.asked.elapsed() < Names::KEPT;
        let old = self.answer();
        if let Some(answer) = old.as_ref().filter(|answer| is_new(answer)) {
            return Ok(Arc::clone(&answer.addresses));
        }
        let _asking = match (self.asking.try_lock(), &old) {
            (Ok(asking), _) => asking,
            (Err(_), Some(answer)) => return Ok(Arc::clone(&answer.addresses)),
            (Err(_), None) => self.asking.lock().unwrap_or_else(PoisonError::into_inner),
        };
        if let Some(answer) = self.answer().filter(is_new) {
            return Ok(answer.addresses);
        }
        let addresses = match host_and_port.to_socket_addrs() {
            Ok(addresses) => addresses.collect(),
            Err(error) => old.map(|answer| answer.addresses).ok_or(error)?,
        };
        let answer = Answer { addresses, asked: Instant::now() };
        *self.answer.write().unwrap_or_else(PoisonError::into_inner) = Some(answer.clone());
        Ok(answer.addresses)
    }
}

/// The names as one origin's agent may use them.
#[derive(Debug)]
pub(super) struct NamesFor {
    /// Shared by all.
    pub(super) names: Arc<Names>,
    /// Where that is not near, nothing that is near is another's.
    pub(super) home: Arc<Home>,
}

impl NamesFor {
    fn may_ask(&self, host: &str, address: &SocketAddr) -> bool {
        self.home.has_host(host) || self.home.is_near() || !is_near_address(address.ip())
    }

    fn look_up(&self, uri: &Uri, is_proxy: bool) -> Result<ResolvedSocketAddrs, ureq::Error> {
        let (Some(scheme), Some(authority)) = (uri.scheme(), uri.authority()) else {
            return Err(ureq::Error::HostNotFound);
        };
        let host = DefaultResolver::host_and_port(scheme, authority).ok_or(ureq::Error::HostNotFound)?;
        let failed = |error| ureq::Error::Other(Box::new(LookupFailed(error)));
        let addresses = self.names.addresses(&host).map_err(failed)?;
        if !is_proxy && !addresses.iter().all(|address| self.may_ask(authority.host(), address)) {
            return Err(ureq::Error::Other(Box::new(LedNear)));
        }
        let mut resolved = self.empty();
        let turn = self.names.turn.fetch_add(1, Ordering::Relaxed);
        rotated(&addresses, turn).take(16).for_each(|address| resolved.push(address));
        if resolved.is_empty() { Err(ureq::Error::HostNotFound) } else { Ok(resolved) }
    }
}

impl Resolver for NamesFor {
    fn resolve(&self, uri: &Uri, config: &Config, _: NextTimeout) -> Result<ResolvedSocketAddrs, ureq::Error> {
        self.home.check_proxy()?;
        let is_proxy = config.proxy().is_some_and(|proxy| proxy.uri().authority() == uri.authority());
        let found = self.look_up(uri, is_proxy);
        if is_proxy { found } else { found.map_err(|error| self.home.blame(uri, error)) }
    }
}

/// The addresses of the preferred family first, each time beginning with another: connections spread over a store's
/// machines, and a family that does not work here is not tried first.
fn rotated(addresses: &[SocketAddr], turn: usize) -> impl Iterator<Item = SocketAddr> {
    let v4_first = addresses.first().is_some_and(SocketAddr::is_ipv4);
    let (preferred, others): (Vec<_>, Vec<_>) = addresses.iter().partition(|address| address.is_ipv4() == v4_first);
    let begin = turn % preferred.len().max(1);
    let (head, tail) = preferred.split_at(begin);
    [tail, head, &others].concat().into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_take_turns_among_the_addresses_of_the_preferred_family() {
        let addresses: Vec<SocketAddr> =
            ["10.0.0.1:80", "[::1]:80", "10.0.0.2:80"].iter().map(|text| text.parse().unwrap()).collect();
        let first_two = |turn| rotated(&addresses, turn).map(|a| a.to_string()).take(2).collect::<Vec<_>>();
        assert_eq!(first_two(0), ["10.0.0.1:80", "10.0.0.2:80"]);
        assert_eq!(first_two(1), ["10.0.0.2:80", "10.0.0.1:80"]);
        assert_eq!(rotated(&addresses, 0).count(), 3);
        assert_eq!(rotated(&[], 3).count(), 0);
    }

    /// As the library asks at each request, redirected ones too.
    #[test]
    fn no_redirect_leads_from_elsewhere_to_this_machine_or_its_links() {
        let resolve = |own: &str, uri: &str| {
            let home = format!("http://{own}").parse().unwrap();
            let names = NamesFor { names: Arc::default(), home: Arc::new(Home::new(Some(&home), None)) };
            names.resolve(&uri.parse().unwrap(), &Config::default(), NextTimeout::default()).map(drop)
        };
        for uri in ["http://127.0.0.1/", "http://169.254.169.254/latest", "http://[::1]:80/", "http://localhost/"] {
            let error = resolve("data.example", uri).unwrap_err();
            assert!(error.to_string().contains("link-local address, which is not followed"), "{uri}: {error}");
        }
        resolve("data.example", "http://10.0.0.1/").unwrap();
        // The origin itself may be near, as it was named by the user, and lead to what else is.
        resolve("127.0.0.1", "http://127.0.0.1/").unwrap();
        resolve("localhost", "http://127.0.0.2/").unwrap();
        resolve("169.254.169.254", "http://169.254.169.254/").unwrap();
    }
}
