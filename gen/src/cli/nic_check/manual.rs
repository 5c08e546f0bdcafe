//! The steps of an acceptance test that need hands or switches.

use super::outcome::Outcome;

/// Each step with its name.
pub fn steps() -> Vec<(&'static str, Outcome)> {
    let watch = "run `mkernel-gen nic-check --from-env --checks poison --puts 1000000` meanwhile";
    let step = |name, step: String, command: &str| (name, Outcome::manual(step, command));
    vec![
        step(
            "power-off",
            format!(
                "{watch}, and switch a host off: all other ranks must name a rank of this host within MKERNEL_TIMEOUT_MS"
            ),
            "ipmitool -H BMC -U USER chassis power off",
        ),
        step(
            "port-down",
            format!(
                "{watch}, and take a port down for 0.5 s, 10 s and for good: the traffic goes on after 0.5 s, and otherwise the error names the NIC and its port"
            ),
            "ip link set dev INTERFACE down; sleep 0.5; ip link set dev INTERFACE up",
        ),
        step(
            "switch-port",
            format!(
                "{watch}, and shut the port of the switch, for 2 s and for good: the traffic goes on, or the error names the NIC or the peer"
            ),
            "interface PORT; shutdown; no shutdown   (on the switch)",
        ),
        step(
            "loss",
            format!(
                "{watch}, and let the network drop packets: all bytes are right, and counters of retransmissions grow"
            ),
            "tc qdisc add dev INTERFACE root netem loss 0.1%; ethtool -S INTERFACE | grep -E 'retrans|out_of_sequence'",
        ),
        step(
            "pfc-storm",
            format!(
                "{watch}, and send pause frames: the traffic stops and goes on, and the watchdog of the switch acts if the storm lasts"
            ),
            "mlnx_qos -i INTERFACE --pfc 0,0,0,1,0,0,0,0; ethtool -S INTERFACE | grep pause",
        ),
    ]
}
