//! [`RendezvousPoint`]: the host and port at which the ranks of a job meet, from `MASTER_ADDR`, `MASTER_PORT` and the
//! variables of srun.

use super::variable::{parse, wrong};
use crate::error::Error;
use std::net::{IpAddr, Ipv6Addr};

/// The variables of launchers that say where rank 0 is.
pub(super) const VARIABLES: [&str; 5] = [
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
];

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct RendezvousPoint {
    pub host: String,
    pub port: u16,
    pub job: String,
    /// Whether ranks on other hosts may have to connect to rank 0.
    pub several_hosts: bool,
}

/// The ranks as the launcher's variables describe them.
pub(super) struct Placement {
    pub world: u32,
    /// The number of ranks on this host, if the launcher sets it.
    pub local_world: Option<u32>,
    pub under_srun: bool,
    /// The variables that together are the name of the job.
    pub job: &'static [&'static str],
}

pub(super) fn read(
    lookup: &impl Fn(&str) -> Option<String>,
    placement: &Placement,
) -> Result<RendezvousPoint, Error> {
    let Placement {
        world,
        local_world,
        under_srun,
        job,
    } = *placement;
    let several_hosts = local_world.is_some_and(|local| local < world);
    let first = || {
        let list = lookup("SLURM_STEP_NODELIST").or_else(|| lookup("SLURM_JOB_NODELIST"));
        first_host(&list?)
    };
    let host = match lookup("MASTER_ADDR").filter(|host| !host.trim().is_empty()) {
        Some(host) => {
            host_of(&host).map_err(|expected| wrong("MASTER_ADDR", Some(host), expected))?
        }
        None if under_srun && local_world != Some(world) => {
            first().ok_or_else(|| wrong("MASTER_ADDR", None, "the host of rank 0"))?
        }
        None if several_hosts => {
            let expected = "the host of rank 0, which the launcher does not provide although the ranks are on several hosts";
            return Err(wrong("MASTER_ADDR", None, expected));
        }
        None => "127.0.0.1".to_owned(),
    };
    let job: Vec<String> = job.iter().filter_map(|name| lookup(name)).collect();
    Ok(RendezvousPoint {
        port: read_port(lookup, under_srun)?,
        job: job.join("."),
        several_hosts: several_hosts || (local_world.is_none() && !is_loopback(&host)),
        host,
    })
}

/// Returns whether a host name or an address names the own host on every host.
pub(crate) fn is_loopback(host: &str) -> bool {
    let is_loopback = |address: IpAddr| address.is_loopback();
    host == "localhost" || host.parse().is_ok_and(is_loopback)
}

/// Returns the host that `value` names, or a description of the values that are valid. Brackets around an IPv6 address are
/// removed. A value that has more than a host is refused, since the look-up of such a name would only say that the name is
/// unknown.
pub(crate) fn host_of(value: &str) -> Result<String, &'static str> {
    let host = value.trim();
    let in_brackets = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'));
    if let Some(address) = in_brackets.filter(|address| is_ipv6(address)) {
        return Ok(address.to_owned());
    }
    let is_foreign = |c: char| c.is_whitespace() || c.is_control() || "[],;@\"'".contains(c);
    let expected = if is_ipv6(host) {
        return Ok(host.to_owned());
    } else if host.contains('/') {
        "a host name or an IP address without a scheme or a path, such as node1 or 10.0.0.1"
    } else if host.contains(':') {
        "a host name or an IP address without a port, such as node1, 10.0.0.1 or fd00::1; the port is given apart from the host"
    } else if host.is_empty() || host.contains(is_foreign) {
        "one host name or one IP address, such as node1 or 10.0.0.1"
    } else {
        return Ok(host.to_owned());
    };
    Err(expected)
}

/// Returns whether `text` is an IPv6 address, which may have a zone as in `fe80::1%eth0`.
fn is_ipv6(text: &str) -> bool {
    let address = text.split_once('%').map_or(text, |(address, _)| address);
    address.parse::<Ipv6Addr>().is_ok()
}

/// Returns the first host of a list like `node[007-010,12],gpu3`. The host's name has the first number of each bracket.
fn first_host(list: &str) -> Option<String> {
    let mut host = String::new();
    let mut rest = list.trim();
    while let Some((before, after)) = rest.split_once('[') {
        if before.contains(',') {
            break;
        }
        let (numbers, after) = after.split_once(']')?;
        host.push_str(before);
        host.push_str(numbers.split(['-', ',']).next()?);
        rest = after;
    }
    host.push_str(rest.split(',').next()?);
    Some(host).filter(|host| !host.is_empty() && host.len() < 256)
}

fn read_port(lookup: &impl Fn(&str) -> Option<String>, under_srun: bool) -> Result<u16, Error> {
    let expected = "a port number, 1 to 65535";
    let (name, port) = match parse::<u16>(lookup, "MKERNEL_PORT", expected)? {
        Some(port) => ("MKERNEL_PORT", port),
        None => match parse::<u16>(lookup, "MASTER_PORT", expected)? {
            Some(port) => ("MASTER_PORT", port),
            None => match step_port(lookup).filter(|_| under_srun) {
                Some(port) => return Ok(port),
                None => {
                    let expected = "a free port of rank 0's host, the same on all ranks";
                    return Err(wrong("MASTER_PORT", None, expected));
                }
            },
        },
    };
    if port == 0 {
        return Err(wrong(name, Some("0".into()), expected));
    }
    let is_torchruns = name == "MASTER_PORT"
        && lookup("TORCHELASTIC_USE_AGENT_STORE").is_some_and(|value| value == "True");
    port.checked_add(u16::from(is_torchruns)).ok_or_else(|| {
        let expected = "less than 65535 under torchrun (or set MKERNEL_PORT)";
        wrong(name, Some(port.to_string()), expected)
    })
}

/// Derives a port from the numbers of a Slurm step. The port is below the ports that Linux assigns to clients (from
/// 32768).
fn step_port(lookup: &impl Fn(&str) -> Option<String>) -> Option<u16> {
    let number = |name| lookup(name).and_then(|text| text.trim().parse::<u64>().ok());
    let job = number("SLURM_JOB_ID")?;
    let step = number("SLURM_STEP_ID").unwrap_or(0);
    u16::try_from(15_000 + job.wrapping_mul(16).wrapping_add(step) % 16_000).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_hosts_are_read_as_slurm_writes_them() {
        for (list, host) in [
            ("gpu1", Some("gpu1")),
            ("node[007-010,12],gpu3", Some("node007")),
            ("a1,b[2-3]", Some("a1")),
            ("rack[1-2]-node[3,5]", Some("rack1-node3")),
            ("", None),
            ("node[", None),
            ("node[]", Some("node")),
        ] {
            assert_eq!(first_host(list).as_deref(), host, "{list}");
        }
        assert_eq!(first_host(&"x".repeat(300)), None);
    }

    #[test]
    fn the_host_of_rank_0_is_a_name_or_an_address() {
        for (value, host) in [
            ("node1", "node1"),
            (" node_1.rack-2.example. ", "node_1.rack-2.example."),
            ("10.0.0.1", "10.0.0.1"),
            ("fd00::1", "fd00::1"),
            ("[fd00::1]", "fd00::1"),
            ("[fe80::1%eth0]", "fe80::1%eth0"),
            ("fe80::1%eth0", "fe80::1%eth0"),
        ] {
            assert_eq!(host_of(value).expect("a host"), host, "{value}");
        }
        for (value, reason) in [
            ("tcp://node1", "without a scheme"),
            ("tcp://node1:29500", "without a scheme"),
            ("node1/", "without a scheme"),
            ("node1:29500", "without a port"),
            ("10.0.0.1:29500", "without a port"),
            ("[fd00::1]:29500", "without a port"),
            ("fd00::1::2", "without a port"),
            ("[node1]", "one host name"),
            ("[10.0.0.1]", "one host name"),
            ("node1,node2", "one host name"),
            ("node 1", "one host name"),
            ("\"node1\"", "one host name"),
        ] {
            let expected = host_of(value).expect_err("no host");
            assert!(expected.contains(reason), "{value}: {expected}");
        }
    }

    #[test]
    fn loopback_addresses_are_of_this_host() {
        for (host, several_hosts) in [
            ("127.0.0.1", false),
            ("[::1]", false),
            ("localhost", false),
            ("node1", true),
        ] {
            let lookup = |name: &str| match name {
                "MASTER_ADDR" => Some(host.to_owned()),
                "MASTER_PORT" => Some("29500".to_owned()),
                _ => None,
            };
            let placement = Placement {
                world: 2,
                local_world: None,
                under_srun: false,
                job: &[],
            };
            let point = read(&lookup, &placement).expect("a host");
            assert_eq!(point.several_hosts, several_hosts, "{host}");
        }
    }
}
