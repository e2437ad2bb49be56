//! Whether a server answers at all: the client bounds the time for connecting, but not the time for the first answer, so
//! one that takes connections and then says nothing would be waited for without end.

use std::io::{ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Result, bail};
use postgres::config::Host;

use super::conninfo::Conninfo;

/// The protocol's SSLRequest: every server and pooler answers it with one byte, whatever it thinks of TLS.
const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
const TIMEOUT: Duration = Duration::from_secs(10);

/// Asks for a sign of life. Trouble with connecting is left to the client, which tells it better.
pub(super) fn check(conninfo: &Conninfo) -> Result<()> {
    let config = &conninfo.config;
    let [Host::Tcp(host)] = config.get_hosts() else { return Ok(()) };
    let port = config.get_ports().first().copied().unwrap_or(5432);
    let timeout = config.get_connect_timeout().copied().unwrap_or(TIMEOUT);
    let Some(address) = (host.as_str(), port).to_socket_addrs().ok().and_then(|mut addresses| addresses.next()) else {
        return Ok(());
    };
    let Ok(mut stream) = TcpStream::connect_timeout(&address, timeout) else { return Ok(()) };
    let asked = stream.set_read_timeout(Some(timeout)).and_then(|()| stream.write_all(&SSL_REQUEST));
    match asked.and_then(|()| stream.read(&mut [0])) {
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => bail!(
            "failed to connect to {conninfo}: {host}:{port} takes connections but has said nothing for {} s: \
             check that it is Postgres, and that it is not stopped or overloaded",
            timeout.as_secs()
        ),
        _ => Ok(()),
    }
}
