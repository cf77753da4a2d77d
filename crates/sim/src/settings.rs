//! Named settings: one declaration gives the field, its default, unit, range, help, and how it is read from a file or
//! from `--set key=value`.
//!
//! Times are written with a unit ("74.1us"), shares as "50 %" or "12.5 %", counts as whole numbers. Nothing is read
//! through floating point, so that a value means the same on every machine.

use crate::engine::Nanos;
use policy::Permille;

/// A value as a file or a command line gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Given {
    /// A whole number.
    Number(i128),
    /// Text in quotes, or a word of the command line.
    Text(String),
    /// true or false.
    Flag(bool),
}

impl Given {
    /// The value of `key=value` on a command line.
    pub fn word(text: &str) -> Given {
        match text {
            "true" => Given::Flag(true),
            "false" => Given::Flag(false),
            _ => text.parse().map_or_else(|_| Given::Text(text.to_owned()), Given::Number),
        }
    }
}

impl std::fmt::Display for Given {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Given::Number(number) => number.fmt(f),
            Given::Text(text) => text.fmt(f),
            Given::Flag(flag) => flag.fmt(f),
        }
    }
}

/// A setting's name and help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// As it is written.
    pub name: &'static str,
    /// One line.
    pub help: &'static str,
}

/// Why a setting was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No setting of that name.
    Unknown,
    /// What is wrong, with the fix.
    Wrong(String),
}

/// A group of named settings.
pub trait Settings {
    /// Takes a value.
    ///
    /// # Errors
    /// The name is unknown or the value is wrong.
    fn set(&mut self, key: &str, given: &Given) -> Result<(), Refused>;
    /// All names, in the order of declaration.
    fn keys() -> Vec<Key>;
    /// The value in force, as it would be written.
    fn show(&self, key: &str) -> Option<String>;
}

/// A type that a setting can have.
pub trait Value: Sized {
    /// Reads it.
    ///
    /// # Errors
    /// What is wrong, with the fix.
    fn read(given: &Given) -> Result<Self, String>;
    /// As it would be written.
    fn show(&self) -> String;
}

/// A span of time, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Nanos);

/// A share, written in percent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Share(pub Permille);

/// A count that may be without limit, written `"inf"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Limit(pub u64);

/// No limit.
pub const NO_LIMIT: Limit = Limit(u64::MAX);

/// A decimal number in units of 1 / 10^digits; `None` if it is none, is negative or has more digits.
fn decimal(text: &str, digits: usize) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, ""));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || !is_number(whole) || !is_number(part) || part.len() > digits {
        return None;
    }
    format!("{whole}{part:0<digits$}").parse().ok()
}

const UNITS: [(&str, usize); 4] = [("ns", 0), ("us", 3), ("ms", 6), ("s", 9)];

impl Value for Time {
    fn read(given: &Given) -> Result<Self, String> {
        let wrong = || Err("not a time with a unit; write it as \"74.1us\", \"10ms\" or \"2s\"".to_string());
        let Given::Text(text) = given else { return wrong() };
        for (unit, digits) in UNITS {
            let Some(number) = text.strip_suffix(unit) else { continue };
            if let Some(ns) = decimal(number.trim_end(), digits) {
                return Ok(Time(ns));
            }
        }
        wrong()
    }

    fn show(&self) -> String {
        let (unit, digits) = UNITS
            .into_iter()
            .rev()
            .find(|(_, digits)| self.0 > 0 && self.0 >= 10_u64.pow(*digits as u32))
            .unwrap_or(("ns", 0));
        let one = 10_u64.pow(digits as u32);
        let part = format!("{:0digits$}", self.0 % one);
        let part = if digits == 0 { "" } else { part.trim_end_matches('0') };
        let point = if part.is_empty() { "" } else { "." };
        format!("{}{point}{part}{unit}", self.0 / one)
    }
}

impl Value for Share {
    fn read(given: &Given) -> Result<Self, String> {
        let text = match given {
            Given::Text(text) => text.strip_suffix('%').map(str::trim_end),
            _ => None,
        };
        let permille = text.and_then(|text| decimal(text, 1)).filter(|permille| *permille <= 1000);
        permille
            .map(|permille| Share(permille as Permille))
            .ok_or_else(|| "not a share of at most 100 %; write it as \"50 %\" or \"12.5 %\"".to_string())
    }

    fn show(&self) -> String {
        match self.0 % 10 {
            0 => format!("{} %", self.0 / 10),
            tenths => format!("{}.{tenths} %", self.0 / 10),
        }
    }
}

impl Value for Limit {
    fn read(given: &Given) -> Result<Self, String> {
        match given {
            Given::Text(text) if text == "inf" => Ok(NO_LIMIT),
            Given::Number(number) => {
                u64::try_from(*number).map(Limit).map_err(|_| "out of range; give a count or \"inf\"".into())
            }
            _ => Err("not a count; give a whole number or \"inf\"".into()),
        }
    }

    fn show(&self) -> String {
        if *self == NO_LIMIT { "inf".into() } else { self.0.to_string() }
    }
}

impl Value for bool {
    fn read(given: &Given) -> Result<Self, String> {
        match given {
            Given::Flag(flag) => Ok(*flag),
            _ => Err("neither true nor false".into()),
        }
    }

    fn show(&self) -> String {
        self.to_string()
    }
}

macro_rules! whole {
    ($($type:ty),*) => {$(
        impl Value for $type {
            fn read(given: &Given) -> Result<Self, String> {
                let Given::Number(number) = given else {
                    return Err("not a whole number; write it without quotes and unit".into());
                };
                <$type>::try_from(*number).map_err(|_| format!("out of range; give at most {}", <$type>::MAX))
            }

            fn show(&self) -> String {
                self.to_string()
            }
        }
    )*};
}
whole!(u8, u16, u32, u64, i8);

/// Range of a type where every value will do.
pub fn any<T>(_: &T) -> Result<(), String> {
    Ok(())
}

/// Whether a value is in its range.
///
/// # Errors
/// The range, as the fix.
pub fn within<T: Value + PartialOrd>(value: &T, range: &std::ops::RangeInclusive<T>) -> Result<(), String> {
    if range.contains(value) {
        return Ok(());
    }
    Err(format!("out of range; give {} to {}", range.start().show(), range.end().show()))
}

/// The range of a setting: `any`, or an inclusive range.
#[doc(hidden)]
#[macro_export]
macro_rules! in_range {
    ($value:expr, any) => {
        $crate::settings::any($value)
    };
    ($value:expr, $range:expr) => {
        $crate::settings::within($value, &($range))
    };
}

/// Declares a struct of [`Settings`]: `/// help`, then `name: Type = default, range;` with `any` for no range.
#[macro_export]
macro_rules! settings {
    (
        $(#[$meta:meta])*
        pub struct $name:ident {
            $( #[doc = $help:literal] $field:ident: $type:ty = $default:expr, $range:tt; )*
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq)]
        pub struct $name { $( #[doc = $help] pub $field: $type, )* }

        impl Default for $name {
            fn default() -> Self {
                Self { $( $field: $default, )* }
            }
        }

        impl $crate::settings::Settings for $name {
            fn set(
                &mut self,
                key: &str,
                given: &$crate::settings::Given,
            ) -> Result<(), $crate::settings::Refused> {
                let wrong = $crate::settings::Refused::Wrong;
                match key {
                    $( stringify!($field) => {
                        let value = <$type as $crate::settings::Value>::read(given).map_err(wrong)?;
                        $crate::in_range!(&value, $range).map_err(wrong)?;
                        self.$field = value;
                        Ok(())
                    } )*
                    _ => Err($crate::settings::Refused::Unknown),
                }
            }

            fn keys() -> Vec<$crate::settings::Key> {
                vec![ $( $crate::settings::Key { name: stringify!($field), help: $help.trim_ascii() }, )* ]
            }

            fn show(&self, key: &str) -> Option<String> {
                match key {
                    $( stringify!($field) => Some($crate::settings::Value::show(&self.$field)), )*
                    _ => None,
                }
            }
        }
    };
}
pub use settings;

/// Declares an enum whose values are words.
#[macro_export]
macro_rules! choice {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $( #[doc = $help:literal] $variant:ident = $word:literal, )+
        }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $( #[doc = $help] $variant, )+ }

        impl $crate::settings::Choice for $name {
            const NAMES: &'static [&'static str] = &[$($word),+];
        }

        impl $crate::settings::Value for $name {
            fn read(given: &$crate::settings::Given) -> Result<Self, String> {
                match given {
                    $( $crate::settings::Given::Text(text) if text == $word => Ok(Self::$variant), )+
                    _ => Err(format!("no such choice; choose from {}",
                        <Self as $crate::settings::Choice>::NAMES.join(", "))),
                }
            }

            fn show(&self) -> String {
                match self { $( Self::$variant => $word.to_string(), )+ }
            }
        }
    };
}
pub use choice;

/// An enum whose values are words.
pub trait Choice {
    /// The words.
    const NAMES: &'static [&'static str];
}

#[cfg(test)]
mod tests {
    use super::*;

    settings! {
        /// For the test.
        pub struct Example {
            /// descriptors
            ring: u32 = 32, (1..=4096);
            /// cost of an interrupt
            device: Time = Time(74_100), (Time(0)..=Time(1_000_000));
            /// packets of a turn
            quota: Limit = NO_LIMIT, (Limit(1)..=NO_LIMIT);
            /// a switch
            on: bool = true, any;
            /// a share
            limit: Share = Share(1000), any;
        }
    }

    fn text(text: &str) -> Given {
        Given::Text(text.into())
    }

    #[test]
    fn values_are_read_exactly_and_shown_as_they_are_written() {
        let mut s = Example::default();
        for (key, given, shown) in [
            ("ring", Given::Number(64), "64"),
            ("device", text("74.125us"), "74.125us"),
            ("device", text("0.5ms"), "500us"),
            ("quota", Given::Number(5), "5"),
            ("quota", text("inf"), "inf"),
            ("on", Given::Flag(false), "false"),
            ("limit", text("12.5 %"), "12.5 %"),
        ] {
            assert_eq!(s.set(key, &given), Ok(()), "{key}");
            assert_eq!(s.show(key).as_deref(), Some(shown));
        }
        assert_eq!(s.device, Time(500_000));
        assert_eq!(Example::keys()[1], Key { name: "device", help: "cost of an interrupt" });
    }

    #[test]
    fn wrong_values_say_the_fix() {
        let mut s = Example::default();
        for (key, given, fix) in [
            ("ring", Given::Number(0), "give 1 to 4096"),
            ("ring", Given::Number(1 << 40), "give at most"),
            ("ring", text("32"), "without quotes"),
            ("device", Given::Number(74), "with a unit"),
            ("device", text("-1us"), "with a unit"),
            ("device", text("1.0005ns"), "with a unit"),
            ("device", text("2s"), "give 0ns to 1ms"),
            ("quota", Given::Number(0), "give 1 to inf"),
            ("limit", text("101 %"), "at most 100 %"),
            ("on", Given::Number(1), "true nor false"),
        ] {
            match s.set(key, &given) {
                Err(Refused::Wrong(why)) => assert!(why.contains(fix), "{key}: {why}"),
                other => panic!("{key}: {other:?}"),
            }
        }
        assert_eq!(s.set("rnig", &Given::Number(1)), Err(Refused::Unknown));
        assert_eq!(s, Example::default());
    }
}
