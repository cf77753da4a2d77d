#!/bin/sh
# What is linked into weir, against deny.toml: licences, sources, versions. With `advisories` against the list of known defects,
# which cargo-deny fetches. Without cargo-deny it says so and is no failure: it is no part of Debian or of rustup.
cd "$(dirname "$0")/.." || exit
cargo=${CARGO:-cargo}
what=${*:-licenses sources bans}
"$cargo" deny --version >/dev/null 2>&1 || {
    echo "skipped: $what of what is linked in need cargo-deny: cargo install --locked cargo-deny"
    exit 0
}
# shellcheck disable=SC2086
exec "$cargo" deny --log-level error check $what
