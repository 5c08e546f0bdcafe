//! Vector clocks, which record the happens-before order.
//!
//! A *component* counts the steps of one object that orders accesses: a warp, a thread that has published by itself, an
//! mbarrier (its phases), a thread's bulk groups, or a warpgroup's products. A [`Clock`] holds, for each component, the
//! last step that is known. A [`View`] holds three clocks: for ordinary accesses, and for the async proxy in shared and
//! in global memory.

use std::sync::Arc;

/// The index of a component.
pub(super) type Component = u32;

/// The number of components of a page. The steps of a page are copied together.
const PAGE: usize = 64;

/// The steps of neighbouring components.
type Page = [u32; PAGE];

/// The last known step of each component. Clocks share a page until one clock changes it. Two clocks have most pages in
/// common, and a join does not read common pages.
#[derive(Clone, Debug, Default)]
pub(super) struct Clock(Arc<Vec<Arc<Page>>>);

impl Clock {
    /// Returns the last known step of `component`.
    pub fn at(&self, component: Component) -> u32 {
        let (page, index) = page_and_index(component);
        self.0.get(page).map_or(0, |page| page[index])
    }

    /// Adds everything that `other` knows.
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

    /// Adds the steps of `component` up to `step`.
    pub fn raise(&mut self, component: Component, step: u32) {
        if self.at(component) >= step {
            return;
        }
        let (page, index) = page_and_index(component);
        let own = Arc::make_mut(&mut self.0);
        while own.len() <= page {
            own.push(Arc::new([0; PAGE]));
        }
        Arc::make_mut(&mut own[page])[index] = step;
    }

    /// Returns whether `other` knows everything that this clock knows.
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

/// Returns the page of a component, and its index within the page.
fn page_and_index(component: Component) -> (usize, usize) {
    (component as usize / PAGE, component as usize % PAGE)
}

fn is_page_within(mine: &Arc<Page>, theirs: &Arc<Page>) -> bool {
    // The loop has no branch per step.
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

/// The knowledge of a thread, for each way in which memory is accessed. The async proxy, that is TMA and tensor cores, sees
/// an ordinary write only after a proxy fence.
#[derive(Clone, Debug, Default)]
pub(super) struct ViewClocks {
    /// The knowledge of ordinary accesses.
    pub generic: Clock,
    /// The knowledge of the async proxy in shared memory.
    pub shared: Clock,
    /// The knowledge of the async proxy in global memory.
    pub global: Clock,
}

/// The [`ViewClocks`] of a thread. The threads of a warp usually have equal knowledge, so threads share clocks until one thread
/// changes its knowledge.
#[derive(Clone, Debug)]
pub(super) struct View(Arc<ViewClocks>);

impl Default for View {
    /// Returns the view that knows nothing. Views of this kind are so frequent that they share their clocks.
    fn default() -> Self {
        thread_local! {
            static NOTHING: View = ViewClocks::default().into();
        }
        NOTHING.with(Self::clone)
    }
}

impl std::ops::Deref for View {
    type Target = ViewClocks;

    fn deref(&self) -> &ViewClocks {
        &self.0
    }
}

impl From<ViewClocks> for View {
    fn from(ways: ViewClocks) -> Self {
        Self(Arc::new(ways))
    }
}

impl View {
    /// Returns a view in which all three clocks are equal to `clock`, as at the start of a kernel.
    pub fn all(clock: &Clock) -> Self {
        ViewClocks {
            generic: clock.clone(),
            shared: clock.clone(),
            global: clock.clone(),
        }
        .into()
    }

    /// Returns the clocks for a change. They are copied first if they are shared.
    pub fn clocks_mut(&mut self) -> &mut ViewClocks {
        Arc::make_mut(&mut self.0)
    }

    /// Adds everything that `other` knows.
    pub fn join(&mut self, other: &Self) {
        if self.is_same(other) || other.is_within(self) {
            return;
        }
        if self.is_within(other) {
            *self = other.clone();
            return;
        }
        let ways = self.clocks_mut();
        ways.generic.join(&other.generic);
        ways.shared.join(&other.shared);
        ways.global.join(&other.global);
    }

    /// Adds the steps of `component` up to `step` to all three clocks.
    pub fn raise(&mut self, component: Component, step: u32) {
        let clocks = [&self.generic, &self.shared, &self.global];
        if clocks.iter().all(|clock| clock.at(component) >= step) {
            return;
        }
        let ways = self.clocks_mut();
        ways.generic.raise(component, step);
        ways.shared.raise(component, step);
        ways.global.raise(component, step);
    }

    /// Adds everything that the publisher of `release` knew and did.
    pub fn acquire(&mut self, release: &Release) {
        self.join(&release.view);
        self.raise_to(release);
    }

    /// Adds the publisher's own steps of `release`, but not the steps that the publisher knew.
    fn raise_to(&mut self, release: &Release) {
        let ways = self.clocks_mut();
        ways.generic.raise(release.component, release.generic);
        ways.shared.raise(release.component, release.shared);
        ways.global.raise(release.component, release.global);
    }

    fn is_within(&self, other: &Self) -> bool {
        self.generic.is_within(&other.generic)
            && self.shared.is_within(&other.shared)
            && self.global.is_within(&other.global)
    }

    /// Returns whether both views share their clocks. This is a quick check: other views may be equal too.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// The knowledge that a thread publishes: everything that the thread knows and did. The thread still shares the view, and so do
/// most other threads of the warp, so joining the releases of several threads is cheap.
#[derive(Clone, Debug)]
pub(super) struct Release {
    pub view: View,
    /// The solo component of the thread. The following steps belong to this component.
    pub component: Component,
    /// The step that ordinary accesses know.
    pub generic: u32,
    /// The step that the async proxy knows in shared memory.
    pub shared: u32,
    /// The step that the async proxy knows in global memory.
    pub global: u32,
}

impl From<&Release> for View {
    fn from(release: &Release) -> Self {
        let mut view = release.view.clone();
        view.raise_to(release);
        view
    }
}

/// The knowledge that several threads have published.
#[derive(Debug, Default)]
pub(super) struct Published {
    all: View,
    /// The view that was joined last. The next thread of the same warp usually has the same view.
    last: View,
}

impl Published {
    /// Adds the release of one more thread.
    pub fn add(&mut self, release: &Release) {
        if !release.view.is_same(&self.last) {
            self.all.join(&release.view);
            self.last = release.view.clone();
        }
        self.all.raise_to(release);
    }

    /// Returns everything that the threads have published.
    pub fn into_view(self) -> View {
        self.all
    }
}

/// A view, the value that was added to the view, and the result.
type CachedResult<T> = (View, T, View);

/// A cache of recent joins. The next thread of a warp usually joins the view and the knowledge of the thread before it. Then
/// the next thread gets the cached result at no cost, and both threads share the result.
#[derive(Debug, Default)]
pub(super) struct JoinCache {
    joins: [Option<CachedResult<View>>; 4],
    raises: [Option<CachedResult<(Component, u32)>>; 4],
    next: usize,
}

impl JoinCache {
    /// Joins views as [`View::join`] does, with the cache.
    pub fn join(&mut self, view: &mut View, other: &View) {
        let known = self
            .joins
            .iter()
            .flatten()
            .find(|(a, b, _)| a.is_same(view) && b.is_same(other));
        if let Some((.., joined)) = known {
            *view = joined.clone();
            return;
        }
        let before = view.clone();
        view.join(other);
        self.next = (self.next + 1) % self.joins.len();
        self.joins[self.next] = Some((before, other.clone(), view.clone()));
    }

    /// Raises a step as [`View::raise`] does, with the cache.
    pub fn raise(&mut self, view: &mut View, step: (Component, u32)) {
        let known = self
            .raises
            .iter()
            .flatten()
            .find(|(a, b, _)| a.is_same(view) && *b == step);
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
    fn a_join_knows_what_either_clock_knew() {
        let (mut a, mut b) = (Clock::default(), Clock::default());
        a.raise(0, 3);
        b.raise(2, 5);
        b.raise(200, 7);
        a.join(&b);
        assert_eq!((a.at(0), a.at(1), a.at(2), a.at(9)), (3, 0, 5, 0));
        assert_eq!((a.at(200), a.at(201), a.at(999)), (7, 0, 0));
        assert_eq!(b.at(0), 0, "the other clock is unchanged");
        b.raise(1, 2);
        a.join(&b);
        assert_eq!(
            (a.at(0), a.at(1), a.at(200)),
            (3, 2, 7),
            "each page of both"
        );
        b.join(&a);
        assert!(
            Arc::ptr_eq(&a.0, &b.0),
            "a clock within another shares its pages"
        );
    }

    #[test]
    fn steps_never_go_back() {
        let mut a = Clock::default();
        a.raise(1, 4);
        a.raise(1, 2);
        assert_eq!(a.at(1), 4);
    }
}
