//! [`Slab`]: values under tickets that are never valid twice.

/// Values, each under a ticket of its own. The low half of a ticket is the index of the entry, and the high half counts the
/// uses of that entry. A ticket that a peer repeats is therefore invalid.
pub struct Slab<T> {
    entries: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    /// Creates an empty slab.
    pub fn new() -> Self {
        Self {
            entries: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Stores a value and returns its ticket.
    pub fn insert(&mut self, value: T) -> u64 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.entries.push((0, None));
            self.entries.len() as u32 - 1
        });
        let (turn, entry) = &mut self.entries[at as usize];
        *turn = turn.wrapping_add(1);
        *entry = Some(value);
        u64::from(*turn) << 32 | u64::from(at)
    }

    /// Returns the value of a ticket.
    pub fn get_mut(&mut self, ticket: u64) -> Option<&mut T> {
        self.entry(ticket)?.as_mut()
    }

    /// Removes and returns the value of a ticket. The ticket is invalid from then on.
    pub fn remove(&mut self, ticket: u64) -> Option<T> {
        let value = self.entry(ticket)?.take()?;
        self.free.push(ticket as u32);
        Some(value)
    }

    fn entry(&mut self, ticket: u64) -> Option<&mut Option<T>> {
        let (turn, entry) = self.entries.get_mut(ticket as u32 as usize)?;
        (u64::from(*turn) == ticket >> 32).then_some(entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_valid_once() {
        let mut entries = Slab::new();
        let (a, b) = (entries.insert('a'), entries.insert('b'));
        assert_eq!(entries.remove(a), Some('a'));
        let c = entries.insert('c');
        assert_eq!(c as u32, a as u32, "entries are reused");
        assert_eq!((entries.remove(a), entries.get_mut(a)), (None, None));
        assert_eq!(entries.get_mut(b), Some(&mut 'b'));
        assert_eq!(entries.remove(c), Some('c'));
        assert_eq!(entries.get_mut(7), None);
    }
}
