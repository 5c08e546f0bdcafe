//! [`Reader`]: reads the encodings that verbs transports send to each other. All bytes are untrusted.

/// The bytes that have not been read yet.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Checks the magic number and the version, with which every encoding starts.
    pub(super) fn new(bytes: &'a [u8], magic: [u8; 4], version: u8) -> Result<Self, String> {
        let mut reader = Self(bytes);
        let found_magic: [u8; 4] = reader.array()?;
        let [found_version] = reader.array()?;
        if found_magic != magic {
            return Err("it is not the info of a verbs transport".into());
        }
        if found_version != version {
            return Err(format!(
                "its version is {found_version}, but this endpoint has version {version}; run the same build on all nodes"
            ));
        }
        Ok(reader)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (array, rest) = self.0.split_first_chunk().ok_or("it is truncated")?;
        self.0 = rest;
        Ok(*array)
    }

    pub(super) fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a count of one byte.
    pub(super) fn count(&mut self, of: &str, limit: usize) -> Result<usize, String> {
        let [count] = self.array()?;
        match usize::from(count) {
            count if count <= limit => Ok(count),
            count => Err(format!(
                "it has {count} {of}, but at most {limit} are possible"
            )),
        }
    }

    /// Checks that all bytes were read.
    pub(super) fn end(self) -> Result<(), String> {
        match self.0.len() {
            0 => Ok(()),
            left => Err(format!("it has {left} extra bytes at its end")),
        }
    }
}
