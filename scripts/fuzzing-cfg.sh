#!/bin/sh
# Compiles a crate of the workspace with what only the fuzzer builds, warnings being errors: cargo's RUSTC_WORKSPACE_WRAPPER in
# `make lint`. Cargo does not see a change of the flags here, only one of this file's name.
exec "$@" --cfg fuzzing -D warnings
