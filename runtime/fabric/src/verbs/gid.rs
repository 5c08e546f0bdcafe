//! Selection of the GID by which peers address a port.

use ibverbs_sys::IBV_GID_TYPE_ROCE_V2;
use std::net::Ipv6Addr;

/// The link layer of a port. The numbers are part of the connection info.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum LinkLayer {
    /// Peers address the port by LID.
    InfiniBand = 1,
    /// RoCE: peers address the port by GID.
    Ethernet = 2,
    /// EFA: peers address the port by GID.
    Other = 3,
}

/// An entry of a port's GID table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) index: u32,
    /// The type of the GID as an `ibv_gid_type`.
    pub(super) kind: u32,
    pub(super) gid: [u8; 16],
}

/// Returns the GID with the index `wanted`, or else the best GID.
///
/// On Ethernet, only GIDs of RoCE v2 are considered. A GID of an IPv4 address has precedence over a GID of a routable IPv6
/// address, which has precedence over a GID of a link-local address. On other link layers, the first GID is the best.
pub(super) fn choose(
    entries: &[Entry],
    link: LinkLayer,
    wanted: Option<u8>,
) -> Result<(u8, [u8; 16]), String> {
    let addressable = |entry: &&Entry| u8::try_from(entry.index).is_ok() && entry.gid != [0; 16];
    let entries = entries.iter().filter(addressable);
    let chosen = match (wanted, link) {
        (Some(index), _) => entries
            .clone()
            .find(|entry| entry.index == u32::from(index)),
        (None, LinkLayer::Ethernet) => entries
            .clone()
            .filter(|entry| entry.kind == IBV_GID_TYPE_ROCE_V2)
            .min_by_key(|entry| reach(entry.gid)),
        (None, _) => entries.clone().next(),
    };
    match chosen {
        Some(entry) => Ok((entry.index as u8, entry.gid)),
        None => Err(format!(
            "{}; its GIDs are {}",
            wanted.map_or(
                "it has no GID of RoCE v2, so assign an IP address to its interface".into(),
                |index| format!("it has no GID with index {index}")
            ),
            entries
                .map(|entry| format!("{} = {}", entry.index, Ipv6Addr::from(entry.gid)))
                .collect::<Vec<_>>()
                .join(", ")
        )),
    }
}

/// Ranks an address by its reach. A lower rank reaches farther.
fn reach(gid: [u8; 16]) -> u8 {
    let address = Ipv6Addr::from(gid);
    if address.to_ipv4_mapped().is_some() {
        0
    } else if !address.is_unicast_link_local() {
        1
    } else {
        2
    }
}

#[cfg(test)]
mod tests {
    use super::{Entry, LinkLayer, choose};
    use std::net::Ipv6Addr;

    fn table(entries: &[(u32, u32, &str)]) -> Vec<Entry> {
        let entry = |&(index, kind, gid): &(u32, u32, &str)| Entry {
            index,
            kind,
            gid: gid.parse::<Ipv6Addr>().unwrap().octets(),
        };
        entries.iter().map(entry).collect()
    }

    #[test]
    fn routable_roce_v2_gids_are_preferred() {
        let mut entries = table(&[
            (0, 1, "fe80::1"),
            (1, 2, "fe80::1"),
            (2, 1, "::ffff:10.0.0.1"),
            (3, 2, "2001:db8::1"),
            (4, 2, "::ffff:10.0.0.1"),
            (5, 2, "::ffff:10.0.0.2"),
        ]);
        let chosen =
            |entries: &[Entry]| choose(entries, LinkLayer::Ethernet, None).map(|(index, _)| index);
        assert_eq!(chosen(&entries), Ok(4));
        entries.truncate(4);
        assert_eq!(chosen(&entries), Ok(3));
        entries.truncate(3);
        assert_eq!(chosen(&entries), Ok(1));
        entries.truncate(1);
        let error = chosen(&entries).unwrap_err();
        assert!(
            error.contains("RoCE v2") && error.contains("fe80::1"),
            "{error}"
        );
    }

    #[test]
    fn a_requested_index_is_used_or_refused() {
        let entries = table(&[(0, 0, "fe80::1"), (1, 0, "::"), (300, 0, "fe80::2")]);
        assert_eq!(choose(&entries, LinkLayer::InfiniBand, None).unwrap().0, 0);
        assert_eq!(choose(&entries, LinkLayer::Ethernet, Some(0)).unwrap().0, 0);
        for missing in [1, 44] {
            let error = choose(&entries, LinkLayer::Ethernet, Some(missing)).unwrap_err();
            assert!(error.contains(&format!("index {missing}")), "{error}");
        }
    }
}
