//! A tar archive (POSIX ustar) of regular files, in memory: a bug report is small, and an image made from scratch has no tar.

/// Bytes of a block; everything is a multiple of it.
const BLOCK: usize = 512;
/// Longest name of a file, bytes.
const NAME_MAX: usize = 100;

/// An archive that grows.
pub struct Archive {
    bytes: Vec<u8>,
    time_s: u64,
}

impl Archive {
    /// An empty one; its files are of `time_s`, seconds since 1970.
    pub fn new(time_s: u64) -> Self {
        Self { bytes: Vec::new(), time_s }
    }

    /// Adds a file, readable by its owner only. A name that is too long is cut.
    pub fn add(&mut self, name: &str, content: &[u8]) {
        let mut header = [0; BLOCK];
        let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
        put(0, &name.as_bytes()[..name.len().min(NAME_MAX)]);
        put(100, b"0000600\0");
        put(108, b"0000000\0");
        put(116, b"0000000\0");
        put(124, format!("{:011o}\0", content.len()).as_bytes());
        put(136, format!("{:011o}\0", self.time_s).as_bytes());
        // The sum counts its own field as spaces.
        put(148, b"        ");
        put(156, b"0");
        put(257, b"ustar\x0000");
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.bytes.extend(header);
        self.bytes.extend(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(BLOCK), 0);
    }

    /// The whole archive: two empty blocks end it.
    pub fn end(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 2 * BLOCK, 0);
        self.bytes
    }
}
