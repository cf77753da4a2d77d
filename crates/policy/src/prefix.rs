//! Address prefixes as users write them, `10.0.0.0/8` or `2001:db8::/32`.

use std::net::IpAddr;

/// Why a text is no prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PrefixError {
    /// Neither an address nor a prefix.
    Unreadable,
    /// It has bits beyond its length; the prefix that was meant.
    Beyond(String),
}

/// A prefix. Both families count from the left: an IPv4 address stands in the first of four words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// An IPv6 prefix.
    pub v6: bool,
    /// The bits that an address must have.
    pub bits: u128,
    /// Which bits those are.
    pub mask: u128,
}

impl Prefix {
    /// What to give instead of what is unreadable.
    pub const WANTED: &str = "an address or a prefix, as 10.0.0.0/8 or 2001:db8::/32";

    /// Reads an address, or a prefix without bits beyond its length.
    ///
    /// # Errors
    /// [`PrefixError`] says what is wrong.
    pub fn parse(text: &str) -> Result<Prefix, PrefixError> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| PrefixError::Unreadable)?;
        let most: u8 = if address.is_ipv4() { 32 } else { 128 };
        let length = match length {
            None => most,
            Some(l) => {
                let ok = |n: &u8| *n <= most && !l.starts_with('+');
                l.parse::<u8>().ok().filter(ok).ok_or(PrefixError::Unreadable)?
            }
        };
        let bits = aligned(address);
        let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
        if bits & !mask != 0 {
            let meant = match address {
                IpAddr::V4(_) => IpAddr::V4((((bits & mask) >> 96) as u32).into()),
                IpAddr::V6(_) => IpAddr::V6((bits & mask).into()),
            };
            return Err(PrefixError::Beyond(format!("{meant}/{length}")));
        }
        Ok(Prefix { v6: address.is_ipv6(), bits, mask })
    }
}

/// The address as [`Prefix`] counts it.
#[must_use]
pub fn aligned(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(a) => u128::from(a.to_bits()) << 96,
        IpAddr::V6(a) => a.to_bits(),
    }
}
