#!/bin/sh
# Real drivers in emulated machines (docs/drivers.md): Debian kernels under QEMU without KVM.
# Everything that is downloaded or made lies under target/vm; removing that directory fetches the newest kernels again.
# Usage: vm-test.sh [--only TEXT]...   for example: --only 6.1. --only e1000e
# --only arm64 runs the machines of that processor, and no others: weir is built for them first, as scripts/static.sh does.
# WEIR_VM_PROGRAMS=DIRECTORY tests the programs there, for instance target/debug. WEIR_VM_CACHED=1 fetches and installs
# nothing: without kernels of an earlier run it is skipped.
# Exit codes: 0 all checks hold, or nothing could be run and the reason was said; 1 a check failed.
PATH=$PATH:/usr/sbin:/sbin
vm=$PWD/target/vm
kernels=$vm/kernels
programs=${WEIR_VM_PROGRAMS:-target/release}
# Suites that together have a kernel before busy polling, the oldest one that weir polls on here, the long-term one and
# the newest; newer versions of the first are in its suite of security updates.
suites="bullseye bookworm trixie sid"
updates="bullseye-security"
prefixes="5.10. 6.1. 6.12. newest"
# What is kept of their modules beside drivers; without the crc32c of crypto there is no table of connections before 6.14.
parts="net lib kernel crypto"
# What Debian and QEMU call the processor, and what marks a whole set of its kernels.
arch=amd64 qemu=qemu-system-x86_64 package=qemu-system-x86 complete=$vm/complete deps=vm
case "$*" in
*arm64*) arch=arm64 qemu=qemu-system-aarch64 package=qemu-system-arm complete=$vm/complete-arm64 deps=vm-arm64 ;;
esac
musl=$PWD/target/musl-aarch64
built=$PWD/target/aarch64-unknown-linux-musl/release

have() { command -v "$1" >/dev/null 2>&1; }
skip() {
    echo "skipped: vm-test needs $1"
    exit 0
}

if [ -n "$WEIR_VM_CACHED" ]; then
    ls -d "$kernels"/*/modules/crypto >/dev/null 2>&1 || skip "kernels that an earlier run has fetched"
else
    for tool in apt-get apt-cache dpkg-deb ldd; do
        have $tool || skip "$tool: it takes its kernels from Debian's packages"
    done
    sh scripts/deps.sh $deps
fi
have $qemu || skip "$qemu: sudo apt-get install $package"
have xz || skip "xz: sudo apt-get install xz-utils"

# The archive with this label that the machine's own apt uses.
archive() {
    apt-get indextargets --format '$(REPO_URI) $(LABEL) $(ORIGIN)' 'Created-By: Packages' 2>/dev/null |
        awk -v label="$1" '$2 == label && $3 == "Debian" {print $1; exit}'
}

# A package list of its own, from the archives that this machine uses already: nothing of the host's apt is changed.
# Usage: apt_setup DIRECTORY SOURCES, the latter being lines of URL and suite.
apt_setup() {
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    [ -r $keys ] || return 1
    mkdir -p "$1/lists/partial" "$1/archives/partial" "$1/parts" || return 1
    echo "$2" | sed -n "s|^\([^ ][^ ]*\) \([^ ][^ ]*\)\$|deb [arch=$arch signed-by=$keys] \1 \2 main|p" >"$1/sources.list"
    cat >"$1/conf" <<EOF
Dir::State "$1";
Dir::State::status "/var/lib/dpkg/status";
Dir::Cache "$1";
Dir::Etc::sourcelist "$1/sources.list";
Dir::Etc::sourceparts "$1/parts";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "$1/parts";
Acquire::Languages "none";
APT::Sandbox::User "";
APT::Architecture "$arch";
APT::Architectures "$arch";
EOF
    APT_CONFIG=$1/conf
    export APT_CONFIG
    # A suite that the archive no longer carries must not hide the others; what is missing then is named one by one.
    apt-get -qq update >&2 || :
}

# Usage: sources ARCHIVE SUITE...
sources() {
    [ -n "$1" ] || return 0
    url=$1
    shift
    for suite in "$@"; do echo "$url $suite"; done
}

# The newest version of the kernel's package that begins with $1.
newest() {
    best=
    for version in $(apt-cache madison "linux-image-$arch" | awk '{print $3}'); do
        case $version in *~bpo*) continue ;; "$1"*) ;; *) continue ;; esac
        if [ -z "$best" ] || dpkg --compare-versions "$version" gt "$best"; then best=$version; fi
    done
    echo "$best"
}

# Names of the packages that $1 depends on and that belong to one kernel.
needs() {
    apt-cache show "$1" | sed -n 's/^Depends: //p' | tr ',' '\n' |
        sed -n 's/^ *\(linux-\(image\|binary\|modules\)-[0-9][^ ]*\).*/\1/p' | sort -u
}

# Fetches version $1 of the kernel and leaves vmlinuz and modules in a directory of its own; its name ends with -arm64, or
# names no processor.
fetch() {
    package=$(needs "linux-image-$arch=$1")
    [ -n "$package" ] || return 1
    name=$(echo "$package" | head -1 | sed 's/linux-image-//; s/-amd64$//')
    [ -e "$kernels/$name/vmlinuz" ] && [ -d "$kernels/$name/modules/crypto" ] && return 0
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
    for drivers in net virtio ptp pps i2c dca; do
        cp -r "$modules/drivers/$drivers" "$work/done/modules/drivers/" 2>/dev/null
    done
    for part in $parts; do
        cp -r "$modules/$part" "$work/done/modules/" 2>/dev/null
    done
    mkdir -p "$kernels" "$work/done/modules/crypto" && rm -rf "${kernels:?}/$name" && mv "$work/done" "$kernels/$name"
    rm -rf "$work"
}

# A QEMU that has the device igb (8.0 and later) beside an older one of this machine: from the backports of its suite,
# unpacked and not installed. It uses the libraries of the one that is installed.
newer_qemu() {
    codename=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
    main=$(archive Debian)
    [ -n "$codename" ] && [ -n "$main" ] || return 1
    echo "fetching a QEMU with the device igb" >&2
    rm -rf "$vm/qemu"
    apt_setup "$vm/qemu" "$(sources "$main" "$codename" "$codename-backports")" || return 1
    apt-get -qq -y --no-install-recommends --download-only install \
        "qemu-system-x86/$codename-backports" >&2 || return 1
    for deb in "$vm/qemu/archives"/*.deb; do
        dpkg-deb -x "$deb" "$vm/qemu/root" || return 1
    done
    mkdir -p "$vm/qemu/bin" || return 1
    cat >"$vm/qemu/bin/qemu-system-x86_64" <<EOF
#!/bin/sh
exec "$vm/qemu/root/usr/bin/qemu-system-x86_64" -L "$vm/qemu/root/usr/share/qemu" \
    -L "$vm/qemu/root/usr/share/seabios" "\$@"
EOF
    chmod 755 "$vm/qemu/bin/qemu-system-x86_64"
    igb
}

# QEMU's exit code does not tell.
igb() { qemu-system-x86_64 -device igb,help 2>/dev/null | grep -q options; }

if [ $arch = amd64 ] && ! igb; then
    path=$PATH
    PATH=$vm/qemu/bin:$PATH
    igb || { [ -z "$WEIR_VM_CACHED" ] && (newer_qemu); } || PATH=$path
fi

if [ -z "$WEIR_VM_CACHED" ] && [ "$(cat "$complete" 2>/dev/null)" != "$prefixes $parts" ]; then
    main=$(archive Debian)
    [ -n "$main" ] || skip "a Debian archive that apt can reach"
    # shellcheck disable=SC2086
    apt_setup "$vm/apt-$arch" "$(sources "$main" $suites; sources "$(archive Debian-Security)" $updates)" ||
        skip "the keys of Debian's archive (debian-archive-keyring)"
    fetched=0
    missing=0
    for prefix in $prefixes; do
        version=$(newest "${prefix#newest}")
        if [ -n "$version" ] && fetch "$version"; then
            fetched=$((fetched + 1))
        else
            echo "skipped: kernel $prefix cannot be had from this archive"
            missing=$((missing + 1))
        fi
    done
    unset APT_CONFIG
    [ $fetched -gt 0 ] || skip "kernels from Debian's archive"
    [ $missing -gt 0 ] || echo "$prefixes $parts" >"$complete"
fi

# The headers of musl for the other processor, whose C library is in Rust's target already.
musl_headers() {
    [ ! -e "$musl/stdio.h" ] || return 0
    work=$vm/fetch
    rm -rf "$work" "$musl"
    mkdir -p "$work" || return 1
    (cd "$work" && APT_CONFIG=$vm/apt-$arch/conf apt-get -qq download musl-dev >&2) || return 1
    dpkg-deb -x "$work"/musl-dev_*.deb "$work/root" || return 1
    mv "$work/root/usr/include/aarch64-linux-musl" "$musl" && rm -rf "$work"
}

if [ $arch = arm64 ]; then
    if [ -z "$WEIR_VM_CACHED" ]; then
        musl_headers || skip "the headers of musl for arm64 (musl-dev)"
        what="-p weir -p xtask -p weir-consumers"
        for program in weir weir-guard xtask udp-sink; do what="$what --bin $program"; done
        STATIC_MACHINE=aarch64 STATIC_WHAT=$what sh scripts/static.sh ||
            skip "a weir for arm64, and it cannot be built here"
    fi
    [ -x "$built/xtask" ] || skip "programs that an earlier run has built for arm64"
fi

# Tap devices, for two queues, need a network namespace that may be changed: a user gets one in a user namespace.
enter=
if have unshare; then
    if [ "$(id -u)" = 0 ]; then enter="unshare -n"; else enter="unshare -rn"; fi
    $enter true 2>/dev/null || enter=
fi
[ -z "$enter" ] || export WEIR_VM_NETNS=1
# shellcheck disable=SC2086
exec $enter "$programs/xtask" vm-test --kernels "$kernels" --programs "$programs" --arm64-programs "$built" "$@"
