//! What a rank contributes to the step in which ranks compare their requests and free blocks.

/// Returns the contribution: the length of the request, the request, and the blocks that the rank has dropped.
pub(super) fn join(request: &[u8], dropped: &[u8]) -> Vec<u8> {
    let length = (request.len() as u32).to_le_bytes();
    [&length[..], request, dropped].concat()
}

/// Splits a contribution. If it is malformed, all of it counts as the request, which then differs from that of rank 0.
pub(super) fn split(contribution: &[u8]) -> (&[u8], &[u8]) {
    let parts = contribution
        .split_first_chunk()
        .and_then(|(length, rest)| rest.split_at_checked(u32::from_le_bytes(*length) as usize));
    parts.unwrap_or((contribution, &[]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contributions_are_split_as_they_were_joined() {
        let joined = join(b"request", b"dropped");
        assert_eq!(split(&joined), (&b"request"[..], &b"dropped"[..]));
        assert_eq!(split(b"abc"), (&b"abc"[..], &[][..]));
        assert_eq!(split(&[255, 0, 0, 0, 1]), (&[255, 0, 0, 0, 1][..], &[][..]));
    }
}
