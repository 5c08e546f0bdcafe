//! The wire format between emulated NICs: frames on a stream of bytes, little-endian.
//!
//! - A frame is the length of its body (u32), version (u8), kind (u8), zero (u16), and the body.
//! - The body of a write is the ticket (u64), the due time (u64), offset (u64), immediate data (u32), bytes (u32),
//!   region (u8), seven zero bytes, and the payload for the copy engine.
//! - The body of acknowledgements is a list of tickets (u64 each).

use crate::transport::MemoryRange;

/// The size of the longest write of an emulated NIC.
pub const MAX_WRITE_BYTES: u32 = 64 << 20;

const VERSION: u8 = 2;
const WRITE: u8 = 1;
const ACKS: u8 = 2;
const HEADER_BYTES: usize = 8;
const WRITE_BYTES: usize = 40;
const MAX_BODY_BYTES: usize = WRITE_BYTES + MAX_WRITE_BYTES as usize;

/// The header of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriteHead {
    /// The ticket, which the acknowledgement repeats.
    pub ticket: u64,
    /// The arrival time by the sender's model, in nanoseconds of the [`Clock`](super::Clock) that both NICs share.
    pub due_ns: u64,
    /// The region of the receiver.
    pub region: u8,
    /// The offset in the region.
    pub offset: u64,
    /// The number of bytes.
    pub bytes: u32,
    /// The immediate data for the receiver.
    pub immediate: u32,
}

/// A frame whose lengths and fields are consistent.
#[derive(Debug, PartialEq, Eq)]
pub enum Frame<'a> {
    /// A write to a region, with the payload for the copy engine.
    Write(WriteHead, &'a [u8]),
    /// The tickets of writes that have arrived.
    Acks(&'a [u8]),
}

/// Appends a write. `payload` appends the data that the peer's copy engine needs.
pub fn put_write<E>(
    out: &mut Vec<u8>,
    head: WriteHead,
    payload: impl FnOnce(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    let start = out.len();
    put_header(out, WRITE);
    out.extend(head.ticket.to_le_bytes());
    out.extend(head.due_ns.to_le_bytes());
    out.extend(head.offset.to_le_bytes());
    out.extend(head.immediate.to_le_bytes());
    out.extend(head.bytes.to_le_bytes());
    out.extend([head.region, 0, 0, 0, 0, 0, 0, 0]);
    payload(out)?;
    put_length(out, start);
    Ok(())
}

/// Appends acknowledgements.
pub fn put_acks(out: &mut Vec<u8>, tickets: &[u64]) {
    let start = out.len();
    put_header(out, ACKS);
    out.extend(tickets.iter().flat_map(|ticket| ticket.to_le_bytes()));
    put_length(out, start);
}

fn put_header(out: &mut Vec<u8>, kind: u8) {
    out.extend([0, 0, 0, 0, VERSION, kind, 0, 0]);
}

fn put_length(out: &mut [u8], start: usize) {
    let body = (out.len() - start - HEADER_BYTES) as u32;
    out[start..start + 4].copy_from_slice(&body.to_le_bytes());
}

fn word(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |word, byte| word << 8 | u64::from(*byte))
}

/// Returns the tickets of [`Frame::Acks`].
pub fn tickets(body: &[u8]) -> impl Iterator<Item = u64> {
    body.chunks_exact(8).map(word)
}

/// Returns the first frame and its length in bytes, or `None` while the frame is incomplete.
///
/// # Errors
///
/// Returns the reason why the bytes are not a valid frame.
pub fn parse(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, String> {
    let Some((header, rest)) = bytes.split_at_checked(HEADER_BYTES) else {
        return Ok(None);
    };
    let (length, version, kind) = (word(&header[..4]) as usize, header[4], header[5]);
    if version != VERSION {
        return Err(format!(
            "it sent a frame of version {version}, but this endpoint has version {VERSION}"
        ));
    }
    let is_sound = match kind {
        WRITE => (WRITE_BYTES..=MAX_BODY_BYTES).contains(&length),
        ACKS => length <= MAX_BODY_BYTES && length > 0 && length.is_multiple_of(8),
        _ => false,
    };
    if !is_sound || header[6..] != [0, 0] {
        return Err(format!(
            "it sent an invalid frame of kind {kind} with {length} bytes"
        ));
    }
    let Some(body) = rest.get(..length) else {
        return Ok(None);
    };
    let used = HEADER_BYTES + length;
    if kind == ACKS {
        return Ok(Some((Frame::Acks(body), used)));
    }
    let (head, payload) = body.split_at(WRITE_BYTES);
    if head[33..] != [0; 7] {
        return Err("it sent a write whose reserved bytes are not zero".into());
    }
    let head = WriteHead {
        ticket: word(&head[..8]),
        due_ns: word(&head[8..16]),
        offset: word(&head[16..24]),
        immediate: word(&head[24..28]) as u32,
        bytes: word(&head[28..32]) as u32,
        region: head[32],
    };
    Ok(Some((Frame::Write(head, payload), used)))
}

/// Returns the target region of a peer's write, if the written range is inside the region.
pub fn target<'a>(regions: &'a [MemoryRange], head: &WriteHead) -> Result<&'a MemoryRange, String> {
    let region = regions.get(usize::from(head.region));
    let region = region.ok_or_else(|| {
        format!(
            "it wrote to region {}, but there are {} regions",
            head.region,
            regions.len()
        )
    })?;
    let end = head.offset.checked_add(head.bytes.into());
    if end.is_some_and(|end| end <= region.bytes()) {
        return Ok(region);
    }
    Err(format!(
        "it wrote {} bytes at offset {} of region {}, which has {} bytes",
        head.bytes,
        head.offset,
        head.region,
        region.bytes()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn frames_survive_encoding_and_decoding(ticket: u64, due_ns: u64, region: u8, offset: u64, immediate: u32, payload: Vec<u8>, cut: prop::sample::Index) {
            let head = WriteHead { ticket, due_ns, region, offset, bytes: payload.len() as u32, immediate };
            let mut bytes = Vec::new();
            put_write(&mut bytes, head, |out| { out.extend(&payload); Ok::<_, ()>(()) }).expect("encodes");
            let length = bytes.len();
            put_acks(&mut bytes, &[ticket, 7]);
            prop_assert_eq!(parse(&bytes), Ok(Some((Frame::Write(head, &payload), length))));
            let Ok(Some((Frame::Acks(acks), _))) = parse(&bytes[length..]) else { panic!("acks") };
            prop_assert_eq!(tickets(acks).collect::<Vec<_>>(), [ticket, 7]);
            prop_assert_eq!(parse(&bytes[..cut.index(length)]), Ok(None));
        }

        #[test]
        fn garbage_is_an_error_or_incomplete_or_a_frame(bytes: Vec<u8>) {
            if let Ok(Some((_, used))) = parse(&bytes) {
                prop_assert!((HEADER_BYTES..=bytes.len()).contains(&used));
            }
        }
    }
}
