#!/bin/sh
# Builds the package for distributions that use rpm out of what `make` has built (BUILD, target/release):
# target/rpm/weir-VERSION-1.ARCH.rpm. Needs rpmbuild (Debian's rpm). The same tree gives the same bytes.
set -e
cd "$(dirname "$0")/.."
out=${1:-target/rpm}
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y CHANGELOG.md)}
export SOURCE_DATE_EPOCH

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
root=$work/root
# Where zsh looks for completions of packages but in Debian.
ZSH_COMPLETIONS=share/zsh/site-functions sh scripts/stage.sh "$root"
command -v rpmbuild >/dev/null || {
    echo "error: no rpmbuild; apt-get install rpm" >&2
    exit 3
}

# Directories for completions belong to every package that has some: which of the shells is there nobody knows.
(
    cd "$root"
    find . -type d \( -path '*/weir*' -o -path '*/share/*-completion*' -o -path '*/share/zsh*' -o -path '*/share/fish*' \) -printf '%%dir /%P\n'
    find . -type f -printf '/%P\n'
) |
    sed 's|^/etc/weir/|%config(noreplace) &|; s|^/.*/LICENSE-|%license &|' | sort >"$work/files"
awk -v root="$root" -v files="$work/files" -v version="$version" '
    /^@[a-z]+@$/ {
        script = "packaging/deb/" substr($0, 2, length($0) - 2)
        while ((getline line <script) > 0) { gsub(/%/, "%%", line); print line }
        close(script)
        next
    }
    { gsub(/@ROOT@/, root); gsub(/@FILES@/, files); gsub(/@VERSION@/, version); print }
' packaging/rpm/weir.spec >"$work/weir.spec"

rpmbuild -bb --quiet --define "_topdir $work" --define "_rpmdir $work/out" --define '_buildhost weir.invalid' \
    --define 'use_source_date_epoch_as_buildtime 1' --define 'clamp_mtime_to_source_date_epoch 1' \
    --define 'build_mtime_policy clamp_to_source_date_epoch' "$work/weir.spec" >"$work/log" 2>&1 || {
    cat "$work/log" >&2
    exit 1
}
mkdir -p "$out"
package=$(find "$work/out" -name '*.rpm')
cp "$package" "$out"
echo "built: $out/${package##*/}"
