//! Random frames for what parses or classes packets.

/// xorshift64*: the same frames for the same seed.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// From a seed; 0 counts as 1.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        Random(seed.max(1))
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `n`, which is not 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.number() % n as u64) as usize
    }

    /// One of the values.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// A frame of 14 to about 400 bytes with headers that are mostly right, mutated in up to three bytes, cut in one of
/// eight cases. Many are for `port`; checksums are wrong.
#[must_use]
pub fn frame(random: &mut Random, port: u16) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
    for _ in 0..random.pick(&[0, 0, 0, 1, 2, 3]) {
        frame.extend(random.pick(&[0x8100u16, 0x88a8]).to_be_bytes());
        frame.extend((random.number() as u16).to_be_bytes());
    }
    let kind = random.pick(&[0x0800u16, 0x0800, 0x0800, 0x86dd, 0x86dd, 0x0806, 0x8809, 0x88f7, 0x1234]);
    frame.extend(kind.to_be_bytes());
    let mut protocol = random.pick(&[17u8, 17, 17, 6, 6, 1, 58, 89, 112, 4]);
    if kind == 0x0800 {
        let options = random.pick(&[0usize, 0, 0, 1, 10]);
        let fragment = random.pick(&[0u16, 0, 0x4000, 0x2000, 0x2001, 0x00ff]);
        frame.extend([0x45 + options as u8, random.number() as u8, 0, 80, 0, 1]);
        frame.extend(fragment.to_be_bytes());
        frame.extend([64, protocol, 0, 0, random.pick(&[10, 172]), 1, 2, 3, 192, 0, 2, 1]);
        frame.extend(vec![1; 4 * options]);
    } else if kind == 0x86dd {
        let count = random.pick(&[0usize, 0, 0, 1, 2, 6, 7]);
        let chain: Vec<u8> = (0..count).map(|_| random.pick(&[0u8, 43, 44, 51, 60])).collect();
        let hops = random.pick(&[255, 64]);
        frame.extend([0x60 | random.below(16) as u8, random.number() as u8, 0, 0, 0, 60]);
        frame.extend([chain.first().copied().unwrap_or(protocol), hops]);
        frame.extend([0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, random.below(4) as u8]);
        frame.extend([0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        for (index, header) in chain.iter().enumerate() {
            let more = random.below(3);
            frame.push(chain.get(index + 1).copied().unwrap_or(protocol));
            frame.push(if *header == 44 { 0 } else { more as u8 });
            match header {
                44 => {
                    frame.extend(random.pick(&[[0, 0, 0, 0, 0, 1], [0, 1, 0, 0, 0, 1], [0, 8, 0, 0, 0, 1]]))
                }
                51 => frame.extend(vec![0; (more + 2) * 4 - 2]),
                _ => frame.extend(vec![0; (more + 1) * 8 - 2]),
            }
        }
    } else {
        protocol = 0;
    }
    let port =
        |random: &mut Random| random.pick(&[port, port, 22, 53, 67, 68, 179, 319, 3784, 547, 546, 40_000]);
    match protocol {
        17 | 6 => {
            for _ in 0..2 {
                frame.extend(port(random).to_be_bytes());
            }
            frame.extend([0, 8, 0, 0, 0, 0, 0, 0, 0x50, random.pick(&[2, 16, 18, 4, 0]), 0, 0, 0, 0, 0, 0]);
        }
        _ => frame.extend([random.pick(&[8u8, 135, 128, 136]), 0, 0, 0, 0, 0, 0, 0]),
    }
    for _ in 0..random.pick(&[0, 0, 1, 2, 3]) {
        let at = random.below(frame.len());
        frame[at] = random.number() as u8;
    }
    if random.below(8) == 0 {
        frame.truncate(14 + random.below(frame.len() - 13));
    }
    frame
}
