//! What is near: this machine, and addresses that only those on its link have (the cloud's metadata service). Services
//! there trust whoever asks, so nobody elsewhere may lead us to them.

use std::net::{IpAddr, Ipv4Addr};

/// Whether a host as it is written is near. Of a name only those are known that mean this machine everywhere.
pub(super) fn is_near(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.').to_ascii_lowercase();
    match host.parse().ok().or_else(|| short_address(&host)) {
        Some(address) => is_near_address(address),
        None => host == "localhost" || host.ends_with(".localhost"),
    }
}

/// Loopback, link-local, and "this host".
pub(super) fn is_near_address(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(ip) => ip.is_loopback() || ip.is_link_local() || ip.is_unspecified(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.is_unicast_link_local() || ip.is_unspecified(),
    }
}

/// `127.1`, `0x7f000001`, `0177.0.0.1`: addresses to the system's resolver, and to a proxy's.
fn short_address(host: &str) -> Option<IpAddr> {
    let numbers: Vec<u32> = host.split('.').map(number).collect::<Option<_>>()?;
    let (last, bytes) = numbers.split_last()?;
    let bits = 32_u32.checked_sub(8 * bytes.len() as u32).filter(|bits| *bits > 0)?;
    if bytes.iter().any(|byte| *byte > 255) || u64::from(*last) >> bits > 0 {
        return None;
    }
    let high = bytes.iter().fold(0, |high, byte| high << 8 | u64::from(*byte)) << bits;
    Some(IpAddr::V4(Ipv4Addr::from_bits((high | u64::from(*last)) as u32)))
}

fn number(text: &str) -> Option<u32> {
    match (text.strip_prefix("0x"), text.strip_prefix('0')) {
        (Some(hex), _) => u32::from_str_radix(hex, 16).ok(),
        (None, Some(octal)) if !octal.is_empty() => u32::from_str_radix(octal, 8).ok(),
        _ => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_and_its_links_are_near_however_they_are_written() {
        for host in [
            "127.0.0.1",
            "127.8.9.1",
            "localhost",
            "LocalHost.",
            "a.localhost",
            "[::1]",
            "169.254.169.254",
            "[fe80::1]",
            "[::ffff:127.0.0.1]",
            "127.1",
            "2130706433",
            "0x7f.0.0.1",
            "0177.0.0.1",
            "0",
            "169.254.43518",
        ] {
            assert!(is_near(host), "{host}");
        }
        for host in
            ["10.0.0.1", "localhost.example.com", "s3.amazonaws.com", "[2001:db8::1]", "10.1", "127.a", "1.2.3.4.5"]
        {
            assert!(!is_near(host), "{host}");
        }
    }
}
