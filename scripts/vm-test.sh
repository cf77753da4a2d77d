#!/bin/sh
# Real drivers in emulated machines (docs/drivers.md): Debian kernels under QEMU without KVM. Everything that is
# downloaded or made lies under target/vm; removing that directory fetches the newest kernels again.
# Usage: vm-test.sh [--only TEXT]...   for example: --only 6.1. --only e1000e
# Exit codes: 0 all checks hold, or nothing could be run and the reason was said; 1 a check failed.
PATH=$PATH:/usr/sbin:/sbin
vm=$PWD/target/vm
kernels=$vm/kernels
# Suites that together have the oldest kernel weir supports, the long-term one and the newest.
suites="bookworm trixie sid"

have() { command -v "$1" >/dev/null 2>&1; }
skip() {
    echo "skipped: vm-test needs $1"
    exit 0
}

for tool in apt-get apt-cache dpkg-deb ldd; do
    have $tool || skip "$tool: it takes its kernels from Debian's packages"
done
sh scripts/deps.sh vm
have qemu-system-x86_64 || skip "qemu-system-x86_64: sudo apt-get install qemu-system-x86"
have xz || skip "xz: sudo apt-get install xz-utils"

# A package list of its own, from the archive that this machine uses already: nothing of the host's apt is changed.
apt_setup() {
    mirror=$(apt-get indextargets --format '$(REPO_URI) $(LABEL) $(ORIGIN)' 'Created-By: Packages' 2>/dev/null |
        awk '$2 == "Debian" && $3 == "Debian" {print $1; exit}')
    [ -n "$mirror" ] || return 1
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    [ -r $keys ] || return 1
    mkdir -p "$vm/apt/lists/partial" "$vm/apt/archives/partial" "$vm/apt/parts" || return 1
    for suite in $suites; do
        echo "deb [arch=amd64 signed-by=$keys] $mirror $suite main"
    done >"$vm/apt/sources.list"
    cat >"$vm/apt/conf" <<EOF
Dir::State "$vm/apt";
Dir::State::status "/var/lib/dpkg/status";
Dir::Cache "$vm/apt";
Dir::Etc::sourcelist "$vm/apt/sources.list";
Dir::Etc::sourceparts "$vm/apt/parts";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "$vm/apt/parts";
Acquire::Languages "none";
APT::Sandbox::User "";
APT::Architecture "amd64";
EOF
    APT_CONFIG=$vm/apt/conf
    export APT_CONFIG
    apt-get -qq update >&2
}

# The newest version of linux-image-amd64 that begins with $1.
newest() {
    best=
    for version in $(apt-cache madison linux-image-amd64 | awk '{print $3}'); do
        case $version in "$1"*) ;; *) continue ;; esac
        if [ -z "$best" ] || dpkg --compare-versions "$version" gt "$best"; then best=$version; fi
    done
    echo "$best"
}

# Names of the packages that $1 depends on and that belong to one kernel.
needs() {
    apt-cache show "$1" | sed -n 's/^Depends: //p' | tr ',' '\n' |
        sed -n 's/^ *\(linux-\(image\|binary\|modules\)-[0-9][^ ]*\).*/\1/p' | sort -u
}

# Fetches version $1 of the kernel and leaves vmlinuz and modules in a directory of its own.
fetch() {
    package=$(needs "linux-image-amd64=$1")
    [ -n "$package" ] || return 1
    name=$(echo "$package" | head -1 | sed 's/linux-image-//; s/-amd64$//')
    [ -e "$kernels/$name/vmlinuz" ] && return 0
    echo "fetching the kernel $name" >&2
    work=$vm/fetch
    rm -rf "$work"
    mkdir -p "$work/root" || return 1
    for p in $package $(needs "$package"); do
        (cd "$work" && apt-get -qq download "$p" >&2) || return 1
    done
    for deb in "$work"/*.deb; do
        dpkg-deb -x "$deb" "$work/root" || return 1
    done
    image=$(find "$work/root" -name 'vmlinuz*' -type f | head -1)
    modules=$(find "$work/root" -path '*/lib/modules/*/kernel' -type d | head -1)
    [ -n "$image" ] && [ -n "$modules" ] || return 1
    mkdir -p "$work/done/modules/drivers" || return 1
    cp "$image" "$work/done/vmlinuz"
    cp -r "$modules/drivers/net" "$modules/drivers/virtio" "$work/done/modules/drivers/"
    cp -r "$modules/net" "$modules/lib" "$modules/kernel" "$work/done/modules/" 2>/dev/null
    mkdir -p "$kernels" && mv "$work/done" "$kernels/$name"
    rm -rf "$work"
}

if [ ! -e "$vm/complete" ]; then
    apt_setup || skip "a Debian archive that apt can reach, and its keys (debian-archive-keyring)"
    fetched=0
    for prefix in 6.1. 6.12. ""; do
        version=$(newest "$prefix")
        if [ -n "$version" ] && fetch "$version"; then
            fetched=$((fetched + 1))
        else
            echo "skipped: kernel ${prefix:-newest} cannot be had from this archive"
        fi
    done
    unset APT_CONFIG
    [ $fetched -gt 0 ] || skip "kernels from Debian's archive"
    [ $fetched -lt 3 ] || : >"$vm/complete"
fi

# Tap devices, for two queues, need a network namespace that may be changed: a user gets one in a user namespace.
enter=
if have unshare; then
    if [ "$(id -u)" = 0 ]; then enter="unshare -n"; else enter="unshare -rn"; fi
    $enter true 2>/dev/null || enter=
fi
[ -z "$enter" ] || export WEIR_VM_NETNS=1
# shellcheck disable=SC2086
exec $enter target/release/xtask vm-test --kernels "$kernels" --programs target/release "$@"
