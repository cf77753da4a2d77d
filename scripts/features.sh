#!/bin/sh
# Prints the cargo flags for what is installed: nothing, or --no-default-features if the BPF programs cannot be
# built. What is missing is named by scripts/deps.sh.
command -v "${BPF_CLANG:-clang}" >/dev/null 2>&1 &&
    command -v pkg-config >/dev/null 2>&1 &&
    pkg-config --exists libelf zlib ||
    echo --no-default-features
