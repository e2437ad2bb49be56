//! The proxy that the environment names. A variable that cannot be read is an error: the HTTP library would ignore it and
//! ask directly, which whoever set it did not want.

use std::ffi::OsString;
use std::fmt;

use ureq::Proxy;

use super::near::is_near;

/// In the library's order.
const VARIABLES: [&str; 6] = ["ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy"];

/// A variable that names no proxy; not its value, which may hold a password.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct BadProxy(&'static str);

impl fmt::Display for BadProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not the url of a proxy: write http://host:port or socks5://host:port, or unset it", self.0)
    }
}

impl std::error::Error for BadProxy {}

/// The proxy in front of `host`: never one before this machine and the metadata service.
pub(super) fn before(host: &str) -> Result<Option<Proxy>, BadProxy> {
    if is_near(host) {
        return Ok(None);
    }
    check(&|variable| std::env::var_os(variable))?;
    Ok(Proxy::try_from_env())
}

/// An empty variable is one that is not set.
fn check(environment: &dyn Fn(&str) -> Option<OsString>) -> Result<(), BadProxy> {
    let is_bad = |variable: &&str| {
        let value = environment(variable).unwrap_or_default();
        !value.is_empty() && !value.to_str().is_some_and(is_proxy)
    };
    VARIABLES.into_iter().find(is_bad).map_or(Ok(()), |variable| Err(BadProxy(variable)))
}

/// The library takes a port that is no number for none.
fn is_proxy(value: &str) -> bool {
    let Ok(proxy) = Proxy::new(value) else { return false };
    let Some(authority) = proxy.uri().authority() else { return false };
    let after_login = authority.as_str().rsplit('@').next().unwrap_or_default();
    match after_login.strip_prefix(authority.host()) {
        Some("") => !authority.host().is_empty(),
        Some(port) => authority.port_u16().is_some_and(|number| number > 0) && port.starts_with(':'),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_names_no_proxy_is_named_and_its_value_is_not() {
        for value in ["http://[bad", "bogus://me:SECRET@h:1", "http://h:port", "http://h:99999", "http://", "a b", "/h"]
        {
            for variable in VARIABLES {
                let set = |name: &str| (name == variable).then(|| OsString::from(value));
                assert_eq!(check(&set), Err(BadProxy(variable)), "{value}");
            }
        }
        assert!(!BadProxy("HTTP_PROXY").to_string().contains("SECRET"));
        for value in
            ["", "h", "h:3128", "http://h:1/", "https://me:p%40@h:1", "socks5://h", "me:pw@h:1", "http://[::1]:1"]
        {
            assert_eq!(check(&|_| Some(OsString::from(value))), Ok(()), "{value}");
        }
    }
}
