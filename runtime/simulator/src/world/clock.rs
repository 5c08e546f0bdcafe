//! Vector clocks: what happened before what.
//!
//! A *component* counts the steps of one thing that orders others: a warp, a thread that published on its own, a
//! barrier's phases, a thread's bulk groups, a warpgroup's products. A [`Clock`] says up to which step of each it knows.

use std::sync::Arc;

/// Index of a counter.
pub(super) type Component = u32;

/// Components whose steps are copied together.
const PAGE: usize = 64;

/// Steps of neighbouring components.
type Page = [u32; PAGE];

/// Up to which step of each component something is known. Pages are shared until they change: what two clocks know is
/// mostly the same pages, which a join need not read.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock(Arc<Vec<Arc<Page>>>);

impl Clock {
    /// The last step known of `component`.
    pub fn at(&self, component: Component) -> u32 {
        let (page, place) = place_of(component);
        self.0.get(page).map_or(0, |page| page[place])
    }

    /// Learns all that `other` knows.
    pub fn join(&mut self, other: &Self) {
        if other.is_within(self) {
            return;
        }
        if self.is_within(other) {
            *self = other.clone();
            return;
        }
        let own = Arc::make_mut(&mut self.0);
        for (mine, theirs) in own.iter_mut().zip(other.0.iter()) {
            join_page(mine, theirs);
        }
        let common = own.len().min(other.0.len());
        own.extend_from_slice(&other.0[common..]);
    }

    /// Learns of `component` up to `step`.
    pub fn raise(&mut self, component: Component, step: u32) {
        if self.at(component) >= step {
            return;
        }
        let (page, place) = place_of(component);
        let own = Arc::make_mut(&mut self.0);
        while own.len() <= page {
            own.push(Arc::new([0; PAGE]));
        }
        Arc::make_mut(&mut own[page])[place] = step;
    }

    fn is_within(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
            || self.0.len() <= other.0.len()
                && self
                    .0
                    .iter()
                    .zip(other.0.iter())
                    .all(|(mine, theirs)| is_page_within(mine, theirs))
    }
}

fn place_of(component: Component) -> (usize, usize) {
    (component as usize / PAGE, component as usize % PAGE)
}

fn is_page_within(mine: &Arc<Page>, theirs: &Arc<Page>) -> bool {
    // Without a branch per step.
    let steps = || mine.iter().zip(theirs.iter());
    Arc::ptr_eq(mine, theirs) || steps().fold(true, |all, (a, b)| all & (a <= b))
}

fn join_page(mine: &mut Arc<Page>, theirs: &Arc<Page>) {
    if is_page_within(theirs, mine) {
        return;
    }
    if is_page_within(mine, theirs) {
        *mine = theirs.clone();
        return;
    }
    for (mine, theirs) in Arc::make_mut(mine).iter_mut().zip(theirs.iter()) {
        *mine = (*mine).max(*theirs);
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
        if self.is(other) || other.is_within(self) {
            return;
        }
        if self.is_within(other) {
            *self = other.clone();
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

    /// Learns all that `release` says.
    pub fn learn(&mut self, release: &Release) {
        self.join(&release.view);
        self.raise_to(release);
    }

    /// Learns what who published `release` did; not what it knew.
    fn raise_to(&mut self, release: &Release) {
        let ways = self.ways();
        ways.generic.raise(release.component, release.generic);
        ways.shared.raise(release.component, release.shared);
        ways.global.raise(release.component, release.global);
    }

    fn is_within(&self, other: &Self) -> bool {
        self.generic.is_within(&other.generic)
            && self.shared.is_within(&other.shared)
            && self.global.is_within(&other.global)
    }

    /// Whether both are the same by their making: a quick look.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// What a thread publishes: all that it knows, and what it did. Its view stays shared with it: others of its warp mostly know
/// the same, so what they publish together is soon joined.
#[derive(Clone, Debug)]
pub(super) struct Release {
    pub view: View,
    /// What the thread publishes on its own, and its step by each way.
    pub component: Component,
    pub generic: u32,
    pub shared: u32,
    pub global: u32,
}

impl From<&Release> for View {
    fn from(release: &Release) -> Self {
        let mut view = release.view.clone();
        view.raise_to(release);
        view
    }
}

/// What several have published.
#[derive(Debug, Default)]
pub(super) struct Published {
    all: View,
    /// The view joined last: the next thread of the same warp mostly has the same.
    last: View,
}

impl Published {
    /// One more publishes.
    pub fn add(&mut self, release: &Release) {
        if !release.view.is(&self.last) {
            self.all.join(&release.view);
            self.last = release.view.clone();
        }
        self.all.raise_to(release);
    }

    /// What is known by all of it.
    pub fn into_view(self) -> View {
        self.all
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
        b.raise(200, 7);
        a.join(&b);
        assert_eq!((a.at(0), a.at(1), a.at(2), a.at(9)), (3, 0, 5, 0));
        assert_eq!((a.at(200), a.at(201), a.at(999)), (7, 0, 0));
        assert_eq!(b.at(0), 0, "the other is unchanged");
        b.raise(1, 2);
        a.join(&b);
        assert_eq!(
            (a.at(0), a.at(1), a.at(200)),
            (3, 2, 7),
            "each page of both"
        );
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
