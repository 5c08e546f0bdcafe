//! [`Step`]: the waits and signals of the warps of a kernel.
//!
//! A role goes through *steps*. In each step it waits, works, and signals. A step belongs to a *pass* of the call. The work of a
//! later pass may need signals of an earlier pass, but never the other way round. A wait of pass p is therefore for the signals of
//! its word in passes up to p.
//!
//! A word may have *credits*: the word permits writes to a stage or a slot that others read, and allows the first laps without a
//! signal. A lap needs the signals of the lap before. Such a wait of pass p is only for signals of passes before p: within a pass
//! the wait is for an earlier item, so a pair of full and empty barriers is not a circle by itself.

use super::region::{Region, RegionId};
use crate::topology::Topology;
use serde::Serialize;
use std::fmt;

/// One side of a wait, as seen from the other side: the place where a word is signalled or awaited.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Whose {
    /// The same CTA.
    Cta,
    /// A CTA of the same rank.
    Rank,
    /// Another rank of the node.
    Peers,
    /// A rank of another node.
    Nodes,
    /// The rank's host.
    Host,
}

impl Whose {
    pub(crate) const CTA: &[Self] = &[Self::Cta];
    pub(crate) const RANK: &[Self] = &[Self::Rank];
    pub(crate) const NODES: &[Self] = &[Self::Nodes];
    pub(crate) const HOST: &[Self] = &[Self::Host];

    /// The other ranks of the node, if there are any.
    pub(crate) const fn peers(topology: Topology) -> &'static [Self] {
        match topology.local_world {
            1 => &[],
            _ => &[Self::Peers],
        }
    }

    /// All ranks of the node.
    pub(crate) const fn node(topology: Topology) -> &'static [Self] {
        match topology.local_world {
            1 => &[Self::Rank],
            _ => &[Self::Rank, Self::Peers],
        }
    }

    /// The other ranks of the node, and this rank if `and_own`.
    pub(crate) const fn peers_and(topology: Topology, and_own: bool) -> &'static [Self] {
        match and_own {
            true => Self::node(topology),
            false => Self::peers(topology),
        }
    }
}

/// A word, or an array of words, on which warps or the host wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Word {
    /// Words of the workspace, or barriers in shared memory.
    Region(RegionId),
    /// The counts of arrived puts, which the proxy writes.
    Arrivals,
    /// Free slots of the ring of commands for the proxy.
    CommandSlots,
    /// The count of puts whose sources have been read.
    PutsSent,
    /// The count of calls whose arrivals have been watched.
    Watched,
    /// The doorbell, by which a kernel asks the host for copies.
    Doorbell,
    /// The count of calls whose copies have left.
    CopiesLeft,
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Region(region) => region.name(),
            Self::Arrivals => "arrivals",
            Self::CommandSlots => "command slots",
            Self::PutsSent => "puts sent",
            Self::Watched => "watched",
            Self::Doorbell => "doorbell",
            Self::CopiesLeft => "copies left",
        })
    }
}

/// A source of a word: the word itself, or a region that a plan may lack.
pub(crate) trait Awaited {
    fn word(&self) -> Option<Word>;
}

impl Awaited for Word {
    fn word(&self) -> Option<Word> {
        Some(*self)
    }
}

impl Awaited for Option<Region> {
    fn word(&self) -> Option<Word> {
        self.as_ref().map(|region| Word::Region(region.id()))
    }
}

/// A word that a step awaits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Wait {
    /// The word.
    pub word: Word,
    /// The signalling side, as seen from the waiting side.
    pub from: Whose,
    /// Whether the word has credits.
    pub has_credits: bool,
}

/// A word that a step signals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Signal {
    /// The word.
    pub word: Word,
    /// The waiting side, as seen from the signalling side.
    pub to: Whose,
}

/// Waits, and the signals that follow the waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// The pass of the call.
    pub pass: u32,
    /// Words that the step waits for.
    pub waits: Vec<Wait>,
    /// Words that the step signals after its waits.
    pub signals: Vec<Signal>,
}

impl Step {
    /// The pass of signals that only later calls await.
    const LATER: u32 = u32::MAX;

    pub(crate) const fn of(pass: u32) -> Self {
        Self {
            pass,
            waits: Vec::new(),
            signals: Vec::new(),
        }
    }

    /// A step of a CTA after all of its roles.
    pub(crate) const fn last() -> Self {
        Self::of(Self::LATER)
    }

    /// Adds a wait for a word, unless the plan lacks the word.
    pub(crate) fn waits(self, word: &impl Awaited, from: &[Whose]) -> Self {
        self.awaits(word, from, false)
    }

    /// Waits for a credit.
    pub(crate) fn takes(self, word: &impl Awaited, from: &[Whose]) -> Self {
        self.awaits(word, from, true)
    }

    fn awaits(mut self, word: &impl Awaited, from: &[Whose], has_credits: bool) -> Self {
        let waits = word.word().into_iter().flat_map(|word| {
            let wait = move |from: &Whose| Wait {
                word,
                from: *from,
                has_credits,
            };
            from.iter().map(wait)
        });
        self.waits.extend(waits);
        self
    }

    /// Adds a signal of a word, unless the plan lacks the word.
    pub(crate) fn signals(mut self, word: &impl Awaited, to: &[Whose]) -> Self {
        let signals = word.word().into_iter();
        let signals = signals.flat_map(|word| to.iter().map(move |to| Signal { word, to: *to }));
        self.signals.extend(signals);
        self
    }

    /// Changes the step if `needed`.
    pub(crate) fn when(self, needed: bool, change: impl FnOnce(Self) -> Self) -> Self {
        match needed {
            true => change(self),
            false => self,
        }
    }

    /// Waits for free slots of the ring of commands, and puts.
    pub(crate) fn puts(self) -> Self {
        self.takes(&Word::CommandSlots, Whose::HOST)
            .signals(&Word::Arrivals, Whose::NODES)
    }

    fn is_empty(&self) -> bool {
        self.waits.is_empty() && self.signals.is_empty()
    }
}

/// The steps of a call outside roles.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CallSteps {
    /// The steps of all CTAs before their roles.
    pub begin: Vec<Step>,
    /// The steps of all CTAs after their roles. Their signals are for later calls.
    pub end: Vec<Step>,
    /// The steps of the host and its proxy.
    pub host: Vec<Step>,
}

impl CallSteps {
    /// `begin` and `end` of CTAs, and the proxy if there are puts to other nodes.
    pub(crate) fn new(begin: Vec<Step>, end: Vec<Step>, topology: Topology) -> Self {
        let proxy = Step::of(0).signals(&Word::CommandSlots, Whose::HOST);
        Self {
            begin: used(begin),
            end: used(end),
            host: (topology.peers() > 0)
                .then_some(proxy)
                .into_iter()
                .collect(),
        }
    }
}

/// Leaves out the steps without waits and signals.
pub(crate) fn used(mut steps: Vec<Step>) -> Vec<Step> {
    steps.retain(|step| !step.is_empty());
    steps
}
