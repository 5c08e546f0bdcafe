//! Vector clocks: what happened before what.
//!
//! A *component* counts the steps of one thing that orders others: a warp, a thread that published on its own, a
//! barrier's phases, a thread's bulk groups, a warpgroup's products. A [`Clock`] says up to which step of each it knows.

use std::sync::Arc;

/// Index of a counter.
pub(super) type Component = u32;

/// Up to which step of each component something is known. Shared until it changes.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock(Arc<Vec<u32>>);

impl Clock {
    /// The last step known of `component`.
    pub fn at(&self, component: Component) -> u32 {
        self.0.get(component as usize).copied().unwrap_or(0)
    }

    /// Learns all that `other` knows.
    pub fn join(&mut self, other: &Self) {
        if Arc::ptr_eq(&self.0, &other.0) || other.is_within(self) {
            return;
        }
        if self.is_within(other) {
            *self = other.clone();
            return;
        }
        let own = Arc::make_mut(&mut self.0);
        if own.len() < other.0.len() {
            own.resize(other.0.len(), 0);
        }
        for (mine, theirs) in own.iter_mut().zip(other.0.iter()) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// Learns of `component` up to `step`.
    pub fn raise(&mut self, component: Component, step: u32) {
        if self.at(component) >= step {
            return;
        }
        let own = Arc::make_mut(&mut self.0);
        if own.len() <= component as usize {
            own.resize(component as usize + 1, 0);
        }
        own[component as usize] = step;
    }

    fn is_within(&self, other: &Self) -> bool {
        let (mine, theirs) = (&*self.0, &*other.0);
        let common = mine.len().min(theirs.len());
        let within = mine[..common]
            .iter()
            .zip(&theirs[..common])
            .fold(true, |all, (a, b)| all & (a <= b));
        within && mine[common..].iter().all(|step| *step == 0)
    }
}

/// What a thread knows, by the way in which memory is accessed. A write by ordinary stores is known to the copy engine
/// and the tensor cores (the async proxy) only after a proxy fence.
#[derive(Clone, Debug, Default)]
pub(super) struct Ways {
    /// By ordinary accesses.
    pub generic: Clock,
    /// By the async proxy, in shared memory.
    pub shared: Clock,
    /// By the async proxy, in global memory.
    pub global: Clock,
}

/// [`Ways`], shared until they change: the threads of a warp mostly know the same.
#[derive(Clone, Debug, Default)]
pub(super) struct View(Arc<Ways>);

impl std::ops::Deref for View {
    type Target = Ways;

    fn deref(&self) -> &Ways {
        &self.0
    }
}

impl From<Ways> for View {
    fn from(ways: Ways) -> Self {
        Self(Arc::new(ways))
    }
}

impl View {
    /// Everything in `clock`, by all ways: after a kernel's start.
    pub fn all(clock: &Clock) -> Self {
        Ways {
            generic: clock.clone(),
            shared: clock.clone(),
            global: clock.clone(),
        }
        .into()
    }

    /// To change it.
    pub fn ways(&mut self) -> &mut Ways {
        Arc::make_mut(&mut self.0)
    }

    /// Learns all that `other` knows.
    pub fn join(&mut self, other: &Self) {
        if self.is(other) {
            return;
        }
        let ways = self.ways();
        ways.generic.join(&other.generic);
        ways.shared.join(&other.shared);
        ways.global.join(&other.global);
    }

    /// Learns of a step by all ways.
    pub fn raise(&mut self, component: Component, step: u32) {
        let clocks = [&self.generic, &self.shared, &self.global];
        if clocks.iter().all(|clock| clock.at(component) >= step) {
            return;
        }
        let ways = self.ways();
        ways.generic.raise(component, step);
        ways.shared.raise(component, step);
        ways.global.raise(component, step);
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A view, what it learned, and the view that it became.
type Learned<T> = (View, T, View);

/// What threads learned lately. Others of the same warp learn the same next: they get the same view, at no cost.
#[derive(Debug, Default)]
pub(super) struct Lately {
    joins: [Option<Learned<View>>; 4],
    raises: [Option<Learned<(Component, u32)>>; 4],
    next: usize,
}

impl Lately {
    /// [`View::join`].
    pub fn join(&mut self, view: &mut View, other: &View) {
        let known = self
            .joins
            .iter()
            .flatten()
            .find(|(a, b, _)| a.is(view) && b.is(other));
        if let Some((.., joined)) = known {
            *view = joined.clone();
            return;
        }
        let before = view.clone();
        view.join(other);
        self.next = (self.next + 1) % self.joins.len();
        self.joins[self.next] = Some((before, other.clone(), view.clone()));
    }

    /// [`View::raise`].
    pub fn raise(&mut self, view: &mut View, step: (Component, u32)) {
        let known = self
            .raises
            .iter()
            .flatten()
            .find(|(a, b, _)| a.is(view) && *b == step);
        if let Some((.., raised)) = known {
            *view = raised.clone();
            return;
        }
        let before = view.clone();
        view.raise(step.0, step.1);
        self.next = (self.next + 1) % self.raises.len();
        self.raises[self.next] = Some((before, step, view.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_join_knows_what_either_knew() {
        let (mut a, mut b) = (Clock::default(), Clock::default());
        a.raise(0, 3);
        b.raise(2, 5);
        a.join(&b);
        assert_eq!((a.at(0), a.at(1), a.at(2), a.at(9)), (3, 0, 5, 0));
        assert_eq!(b.at(0), 0, "the other is unchanged");
        b.join(&a);
        assert!(Arc::ptr_eq(&a.0, &b.0), "what is within another is shared");
    }

    #[test]
    fn steps_never_go_back() {
        let mut a = Clock::default();
        a.raise(1, 4);
        a.raise(1, 2);
        assert_eq!(a.at(1), 4);
    }
}
