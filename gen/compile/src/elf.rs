//! Checks that a file is a complete ELF image. The driver and the simulator get the address of an image without its
//! size, and rely on the sizes in its header.

/// Checks that `image` is a 64-bit, little-endian ELF image, and that its two tables, its sections and its segments are
/// all within it.
pub(crate) fn check(image: &[u8]) -> Result<(), &'static str> {
    const HEADER_BYTES: usize = 64;
    const SECTION: Table = Table {
        entry_bytes: 64,
        offset_at: 24,
        size_at: 32,
    };
    const SEGMENT: Table = Table {
        entry_bytes: 56,
        offset_at: 8,
        size_at: 32,
    };
    const NO_BITS: u64 = 8;
    if image.len() < HEADER_BYTES || !image.starts_with(b"\x7fELF\x02\x01") {
        return Err("it has no ELF header");
    }
    let sections = SECTION.of(image, 40, 58, 60)?;
    let segments = SEGMENT.of(image, 32, 54, 56)?;
    let has_names = word(image, 62, 2) < word(image, 60, 2).max(1);
    if !has_names {
        return Err("the index of the section of names is out of range");
    }
    for section in sections {
        if word(section, 4, 4) != NO_BITS {
            SECTION.check(image, section)?;
        }
    }
    segments
        .into_iter()
        .try_for_each(|segment| SEGMENT.check(image, segment))
}

/// A table of an ELF image. Each entry of the table has an offset and a size.
struct Table {
    entry_bytes: usize,
    offset_at: usize,
    size_at: usize,
}

impl Table {
    /// The entries of the table. The arguments are the offsets in the header of the table's offset, of the size of an
    /// entry and of the number of entries.
    fn of<'a>(
        &self,
        image: &'a [u8],
        offset_at: usize,
        entry_at: usize,
        count_at: usize,
    ) -> Result<Vec<&'a [u8]>, &'static str> {
        let count = word(image, count_at, 2) as usize;
        if count == 0 {
            return Ok(Vec::new());
        }
        if word(image, entry_at, 2) != self.entry_bytes as u64 {
            return Err("the entries of a table have an unexpected size");
        }
        let table = usize::try_from(word(image, offset_at, 8))
            .ok()
            .and_then(|start| {
                let end = start.checked_add(count * self.entry_bytes)?;
                image.get(start..end)
            });
        let table = table.ok_or("a table is outside of the image")?;
        Ok(table.chunks_exact(self.entry_bytes).collect())
    }

    fn check(&self, image: &[u8], entry: &[u8]) -> Result<(), &'static str> {
        let (offset, size) = (word(entry, self.offset_at, 8), word(entry, self.size_at, 8));
        match offset.checked_add(size) {
            Some(end) if end <= image.len() as u64 => Ok(()),
            _ => Err("a section or segment is outside of the image"),
        }
    }
}

/// Reads a little-endian number of `size` bytes, at most 8.
fn word(bytes: &[u8], at: usize, size: usize) -> u64 {
    let digits = bytes[at..at + size].iter().rev();
    digits.fold(0, |value, byte| value << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The test program itself: an ELF image with sections and segments.
    fn image() -> Vec<u8> {
        let path = std::env::current_exe().expect("own path");
        std::fs::read(path).expect("own file")
    }

    #[test]
    fn only_a_complete_image_passes() {
        let image = image();
        assert_eq!(check(&image), Ok(()));
        assert!(check(&image[..image.len() - 1]).is_err());
        for bytes in [&image[..63], b"", b"text"] {
            assert!(check(bytes).is_err());
        }
    }

    #[test]
    fn bounds_that_lie_are_found() {
        let sound = image();
        let (sections, segments) = (word(&sound, 40, 8), word(&sound, 32, 8));
        let huge = [0xff; 8];
        let beyond = (sound.len() as u64).to_le_bytes();
        let lies = |at: u64, bytes: &[u8]| {
            let mut image = sound.clone();
            let at = at as usize;
            image[at..at + bytes.len()].copy_from_slice(bytes);
            assert!(check(&image).is_err(), "{at}: {bytes:x?}");
        };
        for value in [huge, beyond] {
            lies(40, &value); // e_shoff
            lies(32, &value); // e_phoff
            lies(sections + 64 + 24, &value); // sh_offset of section 1
            lies(sections + 64 + 32, &value); // sh_size
            lies(segments + 8, &value); // p_offset of segment 0
            lies(segments + 32, &value); // p_filesz
        }
        for at in [54, 56, 58, 60, 62] {
            lies(at, &[0xff; 2]); // sizes of entries, their numbers, the section of names
        }
    }
}
