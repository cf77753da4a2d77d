#!/bin/sh
# The package for rpm (root): built twice to the same bytes, its files those of the Debian package, then installed, upgraded and
# erased in a Debian that is thrown away, where its programs run and its unit verifies. The scripts run there too, without a
# service manager: crates/weir/tests/packaging.rs has what they tell it.
set -e
cd "$(dirname "$0")/.."
skip() {
    echo "skipped: rpm-test needs $1"
    exit 0
}
[ "$(id -u)" = 0 ] || skip "root: sudo env PATH=\"\$PATH\" HOME=\"\$HOME\" make rpm-test"
command -v rpmbuild >/dev/null || skip 'rpm: apt-get install rpm'
why=$(sh scripts/debian-root.sh) || skip "$why"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
fail() {
    echo "error: $1" >&2
    exit 1
}

sh scripts/rpm.sh
package=$(ls -t target/rpm/weir-*.rpm | head -n 1)
sh scripts/rpm.sh "$work/again" >/dev/null
cmp "$package" "$work/again/${package##*/}"
echo "built twice: the same $(stat -c %s "$package") bytes"
rpm -K "$package"

# The same files, but for what only Debian's policy asks for, the licences that Debian has elsewhere, and the directory of zsh.
sh scripts/deb.sh "$work/deb" >/dev/null
dpkg-deb --fsys-tarfile "$work"/deb/weir_*.deb | tar -tf - | sed 's|^\./|/|' | grep -v '/$' |
    sed 's|/zsh/vendor-completions/|/zsh/site-functions/|' |
    grep -vxE '/usr/share/lintian/overrides/weir|/usr/share/doc/weir/(copyright|changelog.gz)' | sort >"$work/of-deb"
rpm -qp --qf '[%{FILEMODES:perms} %{FILENAMES}\n]' "$package" | grep -v '^d' | cut -d' ' -f2 |
    grep -v '/LICENSE-' | sort >"$work/of-rpm"
diff "$work/of-deb" "$work/of-rpm"
echo "the same $(wc -l <"$work/of-rpm") files as in the Debian package"
[ "$(rpm -qp --configfiles "$package")" = /etc/weir/weir.toml ] || fail 'weir.toml is no file of settings'
[ "$(rpm -qp --licensefiles "$package" | wc -l)" = 3 ] || fail 'three licences were to be there'

root=$work/root
cp -a target/debian-root "$root"
list() {
    (cd "$root" && find . -path ./proc -prune -o -path './var/lib/rpm*' -prune -o -path ./root -prune -o \( -type d -printf '%p %m\n' -o -printf '%p %m %y %s\n' \) | sort)
}
list >"$work/before"
[ "$(wc -l <"$work/before")" -gt 1000 ] || fail 'no files in the root directory'
with() {
    rpm --root "$root" --define "_dbpath /root/rpm" --nodeps "$@"
}
with -i "$package"
chroot "$root" weir --version
chroot "$root" /usr/lib/weir/weir-guard --version
chroot "$root" weir lab list >/dev/null
with -V weir
systemd-analyze verify --man=no --root="$root" weir-guard@in0.service
echo 'the unit verifies'
# An administrator's file outlives an upgrade, and is kept aside by the removal.
echo '# mine' >>"$root/etc/weir/weir.toml"
with -U --force "$package"
grep -q '^# mine$' "$root/etc/weir/weir.toml" || fail 'the changed weir.toml was replaced'
with -e weir
grep -q '^# mine$' "$root/etc/weir/weir.toml.rpmsave" || fail 'the changed weir.toml was removed'
rm -r "$root/etc/weir"
list | diff "$work/before" - || fail 'that is left, or gone'
echo 'installed, upgraded and erased: nothing is left'
