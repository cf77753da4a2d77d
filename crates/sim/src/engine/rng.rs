//! Random numbers: xoshiro256++ seeded by splitmix64, with draws made of integers only.
//!
//! Every user has a stream of its own, derived from the seed and a name: a draw more in one place changes nothing
//! elsewhere, and arms that are compared see the same arrivals.

/// One stream of random numbers.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Rng {
    /// The stream of this seed.
    pub fn new(seed: u64) -> Self {
        let mut mixed = seed;
        Self { state: std::array::from_fn(|_| splitmix(&mut mixed)) }
    }

    /// The stream `name` of `seed`, number `index`.
    pub fn stream(seed: u64, name: &str, index: u64) -> Self {
        // FNV-1a over the name.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let mut mixed = seed ^ hash.rotate_left(17);
        let first = splitmix(&mut mixed);
        Self::new(first ^ index.wrapping_mul(0xd134_2543_de82_ef95))
    }

    /// 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform in `0..bound`; 0 if `bound` is 0. The bias is below `bound / 2^64`.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// True with a probability of `numerator / denominator`.
    pub fn chance(&mut self, numerator: u64, denominator: u64) -> bool {
        self.below(denominator) < numerator
    }

    /// Exponential with mean `2^32`: at most 64 ln 2 times that. The relative error is below 10^-5.
    #[inline]
    pub fn exponential_q32(&mut self) -> u64 {
        // u in (0, 1]: -ln u = (leading zeros) ln 2 - ln(mantissa in [1/2, 1)).
        let bits = self.bits();
        let zeros = u64::from(bits.leading_zeros());
        if zeros == 64 {
            return 64 * LN2_Q32;
        }
        let mantissa = bits << zeros << 1;
        let index = (mantissa >> 56) as usize;
        let part = (mantissa >> 24) & 0xffff_ffff;
        let (low, high) = (LOG[index], LOG[index + 1]);
        // -ln(m/2) for m in [1, 2) is ln 2 - ln m.
        zeros * LN2_Q32 + LN2_Q32 - (low + (((high - low) * part) >> 32))
    }

    /// Exponential with this mean, in the mean's unit; means up to 2^31 keep all their digits.
    #[inline]
    pub fn exponential(&mut self, mean: u64) -> u64 {
        ((u128::from(mean) * u128::from(self.exponential_q32())) >> 32) as u64
    }
}

/// ln 2 in 2^-32.
const LN2_Q32: u64 = 2_977_044_472;

/// ln(1 + n/256) in 2^-32, made at compile time by integers.
const LOG: [u64; 257] = {
    let mut table = [0_u64; 257];
    let mut n = 0;
    while n <= 256 {
        table[n] = ln_q32(n as u128);
        n += 1;
    }
    table
};

/// ln((256 + n) / 256) = 2 artanh(n / (512 + n)), in 2^-32.
const fn ln_q32(n: u128) -> u64 {
    const ONE: u128 = 1 << 60;
    let x = n * ONE / (512 + n);
    let square = x * x / ONE;
    let (mut term, mut sum, mut k) = (x, 0_u128, 1_u128);
    while term > 0 && k < 200 {
        sum += term / k;
        term = term * square / ONE;
        k += 2;
    }
    ((2 * sum) >> 28) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known values, so that another machine or a later change cannot give other results unnoticed.
    #[test]
    fn the_streams_are_fixed() {
        let mut rng = Rng::new(1);
        let first: Vec<u64> = (0..3).map(|_| rng.bits()).collect();
        assert_eq!(
            first,
            [14_971_601_782_005_023_387, 13_781_649_495_232_077_965, 1_847_458_086_238_483_744]
        );
        assert_ne!(Rng::stream(1, "a", 0).bits(), Rng::stream(1, "b", 0).bits());
        assert_ne!(Rng::stream(1, "a", 0).bits(), Rng::stream(1, "a", 1).bits());
    }

    #[test]
    fn the_table_of_logarithms_is_right() {
        assert_eq!(LOG[0], 0);
        assert!(LOG[256].abs_diff(LN2_Q32) <= 2, "{}", LOG[256]);
        assert!(LOG[128].abs_diff((1.5_f64.ln() * 4_294_967_296.0) as u64) <= 2);
    }

    #[test]
    fn exponential_has_its_mean_variance_and_tail() {
        let mut rng = Rng::new(7);
        let n = 2_000_000;
        let (mut sum, mut squares, mut beyond) = (0.0, 0.0, 0);
        for _ in 0..n {
            let x = rng.exponential_q32() as f64 / 4_294_967_296.0;
            sum += x;
            squares += x * x;
            beyond += u32::from(x > 3.0);
        }
        let mean = sum / f64::from(n);
        let variance = squares / f64::from(n) - mean * mean;
        let tail = f64::from(beyond) / f64::from(n);
        assert!((mean - 1.0).abs() < 0.003, "{mean}");
        assert!((variance - 1.0).abs() < 0.01, "{variance}");
        assert!((tail - 0.049_787).abs() < 0.0006, "{tail}");
    }

    #[test]
    fn below_is_uniform() {
        let mut rng = Rng::new(3);
        let mut counts = [0_u32; 10];
        (0..100_000).for_each(|_| counts[rng.below(10) as usize] += 1);
        assert!(counts.iter().all(|count| count.abs_diff(10_000) < 400), "{counts:?}");
        assert_eq!(rng.below(0), 0);
    }
}
