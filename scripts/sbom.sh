#!/bin/sh
# Writes what weir and weir-guard are made of, in the format of CycloneDX 1.5: target/sbom, or the directory that is given. The
# same Cargo.lock gives the same bytes. XTASK: the program that does it, where it is built already.
set -e
cd "$(dirname "$0")/.."
out=${1:-target/sbom}
if [ -n "${XTASK:-}" ]; then
    "$XTASK" sbom "$out"
else
    "${CARGO:-cargo}" run -p xtask -- sbom "$out"
fi
