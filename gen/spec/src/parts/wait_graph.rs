//! The graph of waits of a call: finds words without a signal or a wait, and circles of steps.

use super::body::BodyPlan;
use super::role::RoleKind;
use super::waits::{Signal, Step, Wait, Whose, Word};
use std::collections::BTreeSet;

/// The owner of a sequence of steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AgentKind {
    /// The host.
    Host,
    /// All CTAs before their roles.
    Begin,
    /// The warps of a role.
    Role(RoleKind),
    /// All CTAs after their roles.
    End,
}

impl AgentKind {
    /// The name of the role, `begin`, `end` or `host`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Begin => "begin",
            Self::Role(kind) => kind.cxx(),
            Self::End => "end",
        }
    }
}

/// A sequence of steps: of a role, of all CTAs before or after their roles, or of the host.
#[derive(Clone, Debug)]
pub struct Agent<'a> {
    /// The owner.
    pub kind: AgentKind,
    /// The steps of the agent.
    pub steps: &'a [Step],
    /// The agents that finish before this agent begins, by index.
    pub after: Vec<usize>,
}

impl<P> BodyPlan<P> {
    /// The agents of a call.
    #[must_use]
    pub fn agents(&self) -> Vec<Agent<'_>> {
        let agent = |kind, steps, after| Agent { kind, steps, after };
        let mut agents = vec![
            agent(AgentKind::Host, &self.call.host[..], Vec::new()),
            agent(AgentKind::Begin, &self.call.begin[..], Vec::new()),
        ];
        let first = agents.len();
        for (number, role) in self.roles.iter().enumerate() {
            let before = self.roles[..number].iter().enumerate();
            let before = before.filter(|(_, other)| role.shares_warps_with(other));
            let after = [1]
                .into_iter()
                .chain(before.map(|(index, _)| first + index));
            let kind = AgentKind::Role(role.kind);
            agents.push(agent(kind, &role.steps, after.collect()));
        }
        let all = (1..agents.len()).collect();
        agents.push(agent(AgentKind::End, &self.call.end[..], all));
        agents
    }

    /// A sentence about the waits of the steps and one about their signals, where the steps have any.
    #[must_use]
    pub fn describe(&self, steps: &[Step]) -> Vec<String> {
        let agents = self.agents();
        let waits = steps.iter().flat_map(|step| &step.waits);
        let waits = waits.map(|wait| from(wait, &agents));
        let signals = steps.iter().flat_map(|step| &step.signals);
        let signals = signals.map(to);
        let sentences = [("Waits", listed(waits)), ("Signals", listed(signals))];
        let sentences = sentences.into_iter().filter(|(_, words)| !words.is_empty());
        sentences
            .map(|(verb, words)| format!("{verb}: {words}."))
            .collect()
    }
}

/// Agents by owner and name.
type Named = (String, Vec<&'static str>);

/// Lists words, each word once, with the owners and names of its agents.
fn listed(words: impl Iterator<Item = (Word, &'static str, String)>) -> String {
    let mut listed: Vec<(Word, Vec<Named>)> = Vec::new();
    for (word, whose, names) in words {
        let agents = entry(&mut listed, word);
        let owners = entry(agents, names);
        if !whose.is_empty() && !owners.contains(&whose) {
            owners.push(whose);
        }
    }
    let agents = |(names, owners): &Named| {
        let owners = owners.join(" and ");
        if names.is_empty() {
            owners
        } else {
            format!("{owners} {names}")
        }
    };
    let words = listed.iter().map(|(word, of_word)| {
        let of_word: Vec<_> = of_word.iter().map(agents).collect();
        match of_word.join(", ") {
            of_word if of_word.is_empty() => word.to_string(),
            of_word => format!("{word} ({of_word})"),
        }
    });
    words.collect::<Vec<_>>().join(", ")
}

/// The values of a key, added behind all other keys if the key is new.
fn entry<K: PartialEq, V>(entries: &mut Vec<(K, Vec<V>)>, key: K) -> &mut Vec<V> {
    let found = entries.iter().position(|(other, _)| *other == key);
    let index = found.unwrap_or(entries.len());
    if found.is_none() {
        entries.push((key, Vec::new()));
    }
    &mut entries[index].1
}

/// The word of a wait, the side that signals the word, and the agents on that side.
fn from(wait: &Wait, agents: &[Agent<'_>]) -> (Word, &'static str, String) {
    let names = || {
        signallers(wait, agents)
            .into_iter()
            .collect::<Vec<_>>()
            .join(" and ")
    };
    let (whose, names) = match wait.from {
        Whose::Cta => ("", String::new()),
        Whose::Rank => ("this rank's", names()),
        Whose::Peers => ("peers'", names()),
        Whose::Nodes => ("other nodes'", names()),
        Whose::Host => ("host", String::new()),
    };
    (wait.word, whose, names)
}

/// The word of a signal, and the side that awaits the word.
fn to(signal: &Signal) -> (Word, &'static str, String) {
    let whose = match signal.to {
        Whose::Cta => "",
        Whose::Rank => "this rank",
        Whose::Peers => "peers",
        Whose::Nodes => "other nodes",
        Whose::Host => "host",
    };
    (signal.word, whose, String::new())
}

/// Whether the wait of a step of pass `wait_pass` is for a signal of a step of pass `pass`.
fn is_for(wait: &Wait, wait_pass: u32, signal: &Signal, pass: u32) -> bool {
    let is_early = match wait.has_credits {
        true => pass < wait_pass,
        false => pass <= wait_pass,
    };
    is_early && is_same(wait, signal)
}

fn is_same(wait: &Wait, signal: &Signal) -> bool {
    wait.word == signal.word && wait.from == signal.to
}

/// The names of the agents whose signals a wait is for.
fn signallers(wait: &Wait, agents: &[Agent<'_>]) -> BTreeSet<&'static str> {
    let signals = |agent: &&Agent<'_>| {
        let mut signals = agent.steps.iter().flat_map(|step| &step.signals);
        agent.kind != AgentKind::End && signals.any(|signal| is_same(wait, signal))
    };
    agents
        .iter()
        .filter(signals)
        .map(|agent| agent.kind.name())
        .collect()
}

/// Reports words that no step signals or no step awaits, and steps that wait for each other in a circle. All ranks run the same
/// agents, so a signal to peers is also a signal from peers.
#[must_use]
pub fn faults(agents: &[Agent<'_>]) -> Vec<String> {
    let mut faults = Vec::new();
    let steps = || {
        agents.iter().flat_map(|agent| {
            agent
                .steps
                .iter()
                .map(move |step| (agent.kind.name(), step))
        })
    };
    for (name, step) in steps() {
        for wait in &step.waits {
            let mut signals = steps()
                .flat_map(|(_, other)| other.signals.iter().map(|signal| (signal, other.pass)));
            let is_signalled = signals.any(|(signal, pass)| match wait.has_credits {
                true => is_same(wait, signal),
                false => is_for(wait, step.pass, signal, pass),
            });
            if !is_signalled {
                faults.push(format!(
                    "{name} waits for {} of {:?}, which nobody signals",
                    wait.word, wait.from
                ));
            }
        }
        for signal in &step.signals {
            let mut waits = steps().flat_map(|(_, other)| &other.waits);
            if !waits.any(|wait| is_same(wait, signal)) {
                faults.push(format!(
                    "{name} signals {} to {:?}, which nobody awaits",
                    signal.word, signal.to
                ));
            }
        }
    }
    faults.extend(circle(agents));
    faults
}

/// A sentence about steps that wait for each other in a circle; `None` if there is no circle.
fn circle(agents: &[Agent<'_>]) -> Option<String> {
    let mut done = BTreeSet::new();
    let mut nodes = (0..agents.len())
        .flat_map(|agent| (0..agents[agent].steps.len()).map(move |step| (agent, step)));
    let found = nodes.find_map(|node| search(agents, node, &mut Vec::new(), &mut done))?;
    let names = found.iter().map(|(agent, step)| {
        let Agent { kind, steps, .. } = &agents[*agent];
        format!("{} in pass {}", kind.name(), steps[*step].pass)
    });
    Some(format!(
        "circle: {}",
        names.collect::<Vec<_>>().join(" waits for ")
    ))
}

/// Searches the steps that a step needs for a circle. `path` leads to the step. `done` holds steps from which no circle is reached.
fn search(
    agents: &[Agent<'_>],
    node: (usize, usize),
    path: &mut Vec<(usize, usize)>,
    done: &mut BTreeSet<(usize, usize)>,
) -> Option<Vec<(usize, usize)>> {
    if done.contains(&node) {
        return None;
    }
    if let Some(first) = path.iter().position(|on_path| *on_path == node) {
        return Some(path[first..].iter().copied().chain([node]).collect());
    }
    path.push(node);
    let found = needed(agents, node)
        .into_iter()
        .find_map(|next| search(agents, next, path, done));
    path.pop();
    done.insert(node);
    found
}

/// The steps that come before a step: the previous step of its agent, or all steps of the agents that finish before its agent
/// begins, and the steps whose signals the step awaits.
fn needed(agents: &[Agent<'_>], (agent, step): (usize, usize)) -> Vec<(usize, usize)> {
    let mut needed: Vec<_> = match step {
        0 => {
            let last =
                |before: &usize| Some((*before, agents[*before].steps.len().checked_sub(1)?));
            agents[agent].after.iter().filter_map(last).collect()
        }
        _ => vec![(agent, step - 1)],
    };
    let Step { pass, waits, .. } = &agents[agent].steps[step];
    for (index, other) in agents.iter().enumerate() {
        for (number, of_other) in other.steps.iter().enumerate() {
            let is_awaited = |wait: &Wait| {
                let mut signals = of_other.signals.iter();
                signals.any(|signal| is_for(wait, *pass, signal, of_other.pass))
            };
            if waits.iter().any(is_awaited) {
                needed.push((index, number));
            }
        }
    }
    needed
}

#[cfg(test)]
mod tests {
    use super::RoleKind::{Load, Multiply, Reduce, Store};
    use super::*;

    const CTA: &[Whose] = Whose::CTA;
    const FULL: Word = Word::Doorbell;
    const EMPTY: Word = Word::CopiesLeft;

    fn faults_of(agents: &[(RoleKind, Vec<Step>)]) -> Vec<String> {
        let agents = agents.iter().map(|(kind, steps)| Agent {
            kind: AgentKind::Role(*kind),
            steps,
            after: Vec::new(),
        });
        faults(&agents.collect::<Vec<_>>())
    }

    #[test]
    fn a_pipeline_is_no_circle() {
        let load = Step::of(0).takes(&EMPTY, CTA).signals(&FULL, CTA);
        let multiply = Step::of(0).waits(&FULL, CTA).signals(&EMPTY, CTA);
        assert!(faults_of(&[(Load, vec![load]), (Multiply, vec![multiply])]).is_empty());
    }

    #[test]
    fn a_pipeline_without_credits_is_a_circle() {
        let load = Step::of(0).waits(&EMPTY, CTA).signals(&FULL, CTA);
        let multiply = Step::of(0).waits(&FULL, CTA).signals(&EMPTY, CTA);
        let found = faults_of(&[(Load, vec![load]), (Multiply, vec![multiply])]);
        assert_eq!(
            found,
            ["circle: Load in pass 0 waits for Multiply in pass 0 waits for Load in pass 0"]
        );
    }

    /// A later pass takes the stage that the reader gives back in an earlier pass. If the reader first waits for data that the
    /// writer sends in the later pass, both wait forever.
    #[test]
    fn a_credit_of_an_earlier_pass_can_close_a_circle() {
        let writes = [
            Step::of(0).signals(&FULL, CTA),
            Step::of(1).takes(&EMPTY, CTA).signals(&Word::Watched, CTA),
        ];
        let reads = Step::of(0).waits(&FULL, CTA).signals(&EMPTY, CTA);
        let read_on = Step::of(1).waits(&Word::Watched, CTA);
        assert!(
            faults_of(&[
                (Load, writes.to_vec()),
                (Multiply, vec![reads.clone(), read_on])
            ])
            .is_empty()
        );
        let waits_first = Step::of(1).waits(&Word::Watched, CTA);
        let found = faults_of(&[
            (Load, writes.to_vec()),
            (Multiply, vec![waits_first, reads]),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("circle: "), "{found:?}");
    }

    /// Each rank waits for its peers' sums before it sends its own.
    #[test]
    fn ranks_that_wait_for_each_other_are_a_circle() {
        let peers = &[Whose::Peers];
        let sums = Step::of(0).waits(&FULL, peers).signals(&FULL, peers);
        let found = faults_of(&[(Reduce, vec![sums])]);
        assert_eq!(
            found,
            ["circle: Reduce in pass 0 waits for Reduce in pass 0"]
        );
        let sends = Step::of(0).signals(&FULL, peers);
        let receives = Step::of(0).waits(&FULL, peers);
        assert!(faults_of(&[(Reduce, vec![sends, receives])]).is_empty());
    }

    #[test]
    fn a_step_after_another_agent_can_close_a_circle() {
        let [first, then] = [
            vec![Step::of(0).waits(&FULL, CTA)],
            vec![Step::of(0).signals(&FULL, CTA)],
        ];
        let agent = |kind, steps, after| Agent {
            kind: AgentKind::Role(kind),
            steps,
            after,
        };
        let found = faults(&[
            agent(Load, &first[..], vec![]),
            agent(Store, &then[..], vec![0]),
        ]);
        assert_eq!(
            found,
            ["circle: Load in pass 0 waits for Store in pass 0 waits for Load in pass 0"]
        );
    }

    #[test]
    fn words_that_nobody_signals_or_awaits_are_found() {
        let waits = Step::of(0).waits(&FULL, Whose::RANK);
        let signals = Step::of(1).signals(&FULL, Whose::RANK).signals(&EMPTY, CTA);
        assert_eq!(
            faults_of(&[(Load, vec![waits]), (Store, vec![signals])]),
            [
                "Load waits for doorbell of Rank, which nobody signals",
                "Store signals copies left to Cta, which nobody awaits",
            ]
        );
    }
}
