//! [`Slots`]: values under tickets.

/// Values, each under a ticket of its own: its low half says where, its high half the how-manieth there. So a ticket that
/// a peer repeats leads to nothing.
pub struct Slots<T> {
    slots: Vec<(u32, Option<T>)>,
    free: Vec<u32>,
}

impl<T> Slots<T> {
    /// None.
    pub fn new() -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Keeps a value; returns its ticket.
    pub fn insert(&mut self, value: T) -> u64 {
        let at = self.free.pop().unwrap_or_else(|| {
            self.slots.push((0, None));
            self.slots.len() as u32 - 1
        });
        let (turn, slot) = &mut self.slots[at as usize];
        *turn = turn.wrapping_add(1);
        *slot = Some(value);
        u64::from(*turn) << 32 | u64::from(at)
    }

    /// The value of a ticket.
    pub fn get_mut(&mut self, ticket: u64) -> Option<&mut T> {
        self.slot(ticket)?.as_mut()
    }

    /// The value of a ticket, which leads to nothing from now on.
    pub fn remove(&mut self, ticket: u64) -> Option<T> {
        let value = self.slot(ticket)?.take()?;
        self.free.push(ticket as u32);
        Some(value)
    }

    fn slot(&mut self, ticket: u64) -> Option<&mut Option<T>> {
        let (turn, slot) = self.slots.get_mut(ticket as u32 as usize)?;
        (u64::from(*turn) == ticket >> 32).then_some(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_leads_to_its_value_once() {
        let mut slots = Slots::new();
        let (a, b) = (slots.insert('a'), slots.insert('b'));
        assert_eq!(slots.remove(a), Some('a'));
        let c = slots.insert('c');
        assert_eq!(c as u32, a as u32, "places are used again");
        assert_eq!((slots.remove(a), slots.get_mut(a)), (None, None));
        assert_eq!(slots.get_mut(b), Some(&mut 'b'));
        assert_eq!(slots.remove(c), Some('c'));
        assert_eq!(slots.get_mut(7), None);
    }
}
