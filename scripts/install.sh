#!/bin/sh
# Installs what `make` has built: PREFIX (/usr/local), SYSCONFDIR (/etc), DESTDIR (empty), BUILD (target/release),
# ZSH_COMPLETIONS (below PREFIX).
# With --remove it takes the same files away; a weir.toml that was changed stays, and is named.
set -e
cd "$(dirname "$0")/.."
build=${BUILD:-target/release}
prefix=${PREFIX:-/usr/local}
etc=${SYSCONFDIR:-/etc}
root=${DESTDIR:-}
weir=$build/weir

# Debian's zsh reads packages' completions elsewhere than those of an administrator.
case $prefix in
/usr) zsh=share/zsh/vendor-completions ;;
*) zsh=share/zsh/site-functions ;;
esac
zsh=${ZSH_COMPLETIONS:-$zsh}
doc=share/doc/weir
config=$root$etc/weir/weir.toml

fail() {
    echo "error: $1" >&2
    exit 2
}

put() {
    install -D -m "$1" "$2" "$root$3" || exit
}

if [ "${1:-}" = --remove ]; then
    [ -z "$root" ] && [ -d /run/systemd/system ] && systemctl stop 'weir-guard@*.service'
    # What a guard that was killed has left can be put back only while the program is there.
    if [ -z "$root" ] && [ "$(id -u)" = 0 ] && [ -x "$prefix/bin/weir" ]; then "$prefix/bin/weir" undo || true; fi
    cd "$root$prefix" 2>/dev/null || fail "$root$prefix: no such directory; is PREFIX the one of make install?"
    rm -f bin/weir lib/weir/weir-guard lib/weir/udp-sink lib/weir/hog lib/weir/echo lib/weir/probe lib/weir/screen lib/weir/tap lib/weir/web-workers lib/weir/web-clients lib/weir/sender lib/systemd/system/weir-guard@.service
    rm -f share/man/man1/weir.1 share/man/man1/weir-*.1
    rm -f share/bash-completion/completions/weir "$zsh/_weir" share/fish/vendor_completions.d/weir.fish
    rm -rf "$doc" share/weir/grafana share/weir/prometheus share/weir/kubernetes
    [ ! -d share/weir ] || rmdir --ignore-fail-on-non-empty share/weir
    [ ! -d lib/weir ] || rmdir --ignore-fail-on-non-empty lib/weir
    cd - >/dev/null
    if [ -z "$root" ] && [ "$(id -u)" = 0 ]; then
        # What `systemctl enable weir-guard@IF` made of this unit, and locks that no guard holds.
        for wanted in /etc/systemd/system/*.wants/weir-guard@*.service; do
            [ "$(readlink "$wanted")" != "$prefix/lib/systemd/system/weir-guard@.service" ] || rm -f "$wanted"
        done
        for lock in /run/weir/.lock /run/weir/*.lock; do
            [ ! -f "$lock" ] || flock -n "$lock" rm -f "$lock" 2>/dev/null || true
        done
        [ ! -d /run/weir ] || rmdir --ignore-fail-on-non-empty /run/weir || true
    fi
    if [ -e "$config" ] && ! cmp -s packaging/weir.toml "$config"; then
        echo "$config was changed and stays"
    else
        rm -f "$config"
        [ ! -d "$root$etc/weir" ] || rmdir --ignore-fail-on-non-empty "$root$etc/weir"
    fi
    if [ -z "$root" ] && [ -d /run/systemd/system ]; then systemctl daemon-reload || true; fi
    exit 0
fi

for program in weir weir-guard udp-sink hog echo probe screen tap web-workers web-clients sender; do
    [ -x "$build/$program" ] || fail "$build/$program is not there; build it first: make; if cargo builds elsewhere, name that: BUILD=DIR/release"
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

put 755 "$weir" "$prefix/bin/weir"
for program in weir-guard udp-sink hog echo probe screen tap web-workers web-clients sender; do
    put 755 "$build/$program" "$prefix/lib/weir/$program"
done

"$weir" man "$work"
for page in "$work"/*.1; do
    put 644 "$page" "$prefix/share/man/man1/${page##*/}"
done
for shell in bash zsh fish; do
    "$weir" completions $shell >"$work/$shell"
done
put 644 "$work/bash" "$prefix/share/bash-completion/completions/weir"
put 644 "$work/zsh" "$prefix/$zsh/_weir"
put 644 "$work/fish" "$prefix/share/fish/vendor_completions.d/weir.fish"

sed "s|@PREFIX@|$prefix|g; s|@SYSCONFDIR@|$etc|g" packaging/weir-guard@.service >"$work/unit"
put 644 "$work/unit" "$prefix/lib/systemd/system/weir-guard@.service"
if [ -e "$config" ] && ! cmp -s packaging/weir.toml "$config"; then
    echo "$config was changed and stays; the new one is $root$prefix/$doc/weir.toml"
else
    put 644 packaging/weir.toml "$etc/weir/weir.toml"
fi
put 644 packaging/weir.toml "$prefix/$doc/weir.toml"

# Pages stand one level higher than in the source tree, those of directories below docs too.
for page in README.md CHANGELOG.md ARCHITECTURE.md CONTRIBUTING.md LICENSE-MIT LICENSE-APACHE; do
    put 644 "$page" "$prefix/$doc/$page"
done
find docs -type f | while read -r page; do
    put 644 "$page" "$prefix/$doc/${page#docs/}"
done
sed -i 's|](docs/|](|g; s|](\.\./|](|g' "$root$prefix/$doc"/*.md
put 644 crates/serve/assets/uplot/LICENSE "$prefix/$doc/LICENSE-uPlot"
put 644 packaging/grafana/weir.json "$prefix/share/weir/grafana/weir.json"
put 644 packaging/prometheus/weir.rules.yml "$prefix/share/weir/prometheus/weir.rules.yml"
put 644 packaging/prometheus/weir.test.yml "$prefix/share/weir/prometheus/weir.test.yml"
put 644 packaging/kubernetes/weir.yaml "$prefix/share/weir/kubernetes/weir.yaml"
if [ -z "$root" ] && [ -d /run/systemd/system ]; then systemctl daemon-reload; fi
echo "installed: $root$prefix/bin/weir; next: weir check"
