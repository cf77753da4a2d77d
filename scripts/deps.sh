#!/bin/sh
# Installs what the build or the tests need through apt where it may (root, or sudo without a password).
# Otherwise names what is missing, what is lost without it, and the command that installs it.
# Usage: deps.sh build|test|deb|rpm|rpm-test|apt-repo|package-test|static|image|image-test|kube-test|rules|monitor-test|fuzz|vm|vm-arm64|browser. Fails only if nothing can be built.
PATH=$PATH:/usr/sbin:/sbin
what=${1:-build}
# For what is skipped without root nothing is installed.
case $what in
rpm-test | package-test) [ "$(id -u)" = 0 ] || exit 0 ;;
esac

have() { command -v "$1" >/dev/null 2>&1; }
library() { have pkg-config && pkg-config --exists "$1"; }

# Debian packages that are missing now, in $needed (without them nothing or no BPF is built) and $wanted (tests).
look() {
    needed= wanted=
    have cc || needed="$needed gcc libc6-dev"
    have make || needed="$needed make"
    have pkg-config || needed="$needed pkg-config"
    library libelf || needed="$needed libelf-dev"
    library zlib || needed="$needed zlib1g-dev"
    have "${BPF_CLANG:-clang}" || needed="$needed clang"
    case $what in
    vm) have qemu-system-x86_64 || wanted="$wanted qemu-system-x86" ;;
    vm-arm64)
        have qemu-system-aarch64 || wanted="$wanted qemu-system-arm"
        have aarch64-linux-gnu-gcc || wanted="$wanted gcc-aarch64-linux-gnu"
        [ -d /usr/aarch64-linux-gnu/include/asm ] || wanted="$wanted linux-libc-dev-arm64-cross"
        ;;
    esac
    case $what in vm | vm-arm64) have xz || wanted="$wanted xz-utils" ;; esac
    case $what in
    deb | rpm-test | apt-repo | package-test) have dpkg-shlibdeps || wanted="$wanted dpkg-dev" ;;
    esac
    case $what in
    rpm | rpm-test) have rpmbuild || wanted="$wanted rpm" ;;
    esac
    case $what in
    apt-repo | package-test) have apt-ftparchive || wanted="$wanted apt-utils" ;;
    esac
    case $what in
    static | image | image-test | kube-test) have musl-gcc || wanted="$wanted musl-tools" ;;
    esac
    case $what in
    image | image-test | kube-test) have buildah || wanted="$wanted buildah" ;;
    esac
    case $what in
    rules | monitor-test) have promtool || wanted="$wanted prometheus" ;;
    esac
    case $what in
    image-test | kube-test)
        have podman || wanted="$wanted podman"
        have crun || have runc || wanted="$wanted runc"
        ;;
    esac
    # The process that holds a pod together.
    if [ "$what" = kube-test ]; then
        have catatonit || wanted="$wanted catatonit"
    fi
    if [ "$what" = fuzz ]; then
        "${BPF_CLANG:-clang}" -print-runtime-dir 2>/dev/null | grep -q . &&
            ls "$("${BPF_CLANG:-clang}" -print-runtime-dir)"/libclang_rt.fuzzer* >/dev/null 2>&1 ||
            wanted="$wanted libclang-rt-14-dev"
        ls /usr/lib/gcc/*/*/libstdc++.so >/dev/null 2>&1 || wanted="$wanted libstdc++-12-dev"
    fi
    if [ "$what" = browser ]; then
        have chromium || have chromium-browser || wanted="$wanted chromium"
    fi
    case $what in
    rpm-test | package-test) have debootstrap || wanted="$wanted debootstrap" ;;
    esac
    if [ "$what" = package-test ]; then
        have systemd-nspawn || wanted="$wanted systemd-container"
        have lintian || wanted="$wanted lintian"
        have gpg || wanted="$wanted gpg"
    fi
    case $what in
    test | package-test) ;;
    *) return 0 ;;
    esac
    have ip || wanted="$wanted iproute2"
    have ethtool || wanted="$wanted ethtool"
    have setpriv || wanted="$wanted util-linux"
    have nft || wanted="$wanted nftables"
    have nsd || wanted="$wanted nsd"
    have dnsperf || wanted="$wanted dnsperf"
    have iptables || wanted="$wanted iptables"
    have iperf3 || wanted="$wanted iperf3"
    have nginx || wanted="$wanted nginx"
    have wrk || wanted="$wanted wrk"
    have perl || wanted="$wanted perl"
}

if ! have "${CARGO:-cargo}"; then
    # rustup installs for one user, and sudo resets PATH.
    if [ -n "$SUDO_USER" ] && [ "$SUDO_USER" != root ]; then
        echo "error: root has no Rust toolchain; build as $SUDO_USER with make, then sudo sh scripts/demo.sh;" \
            "for tests as root: sudo env PATH=\"\$PATH\" HOME=\"\$HOME\" make TARGET" >&2
        exit 3
    fi
    echo "error: no Rust toolchain; install Rust 1.95 or later with rustup" >&2
    exit 3
fi
# An older cargo does not understand the manifest, and says neither why nor what to do.
version=$("${CARGO:-cargo}" --version 2>/dev/null)
version=${version#cargo 1.}
version=${version%%.*}
case $version in
'' | *[!0-9]*) ;;
*)
    if [ "$version" -lt 95 ]; then
        echo "error: cargo 1.$version is too old; install Rust 1.95 or later with rustup (rustup update)" >&2
        exit 3
    fi
    ;;
esac
look
[ -n "$needed$wanted" ] || exit 0

as_root=
[ "$(id -u)" = 0 ] || as_root="sudo -n"
if have apt-get && { [ -z "$as_root" ] || $as_root true 2>/dev/null; }; then
    echo "installing:$needed$wanted" >&2
    # Programs that are only measured in namespaces must not be started on the host: neither now, nor when it boots.
    services="nginx nsd prometheus prometheus-node-exporter iperf3"
    enabled() { [ "$(systemctl is-enabled "$1.service" 2>/dev/null)" = enabled ]; }
    runs() { systemctl is-active -q "$1.service" 2>/dev/null; }
    before=
    for service in $services; do
        if enabled "$service" || runs "$service"; then before="$before $service"; fi
    done
    policy=/usr/sbin/policy-rc.d
    if [ ! -e $policy ] && printf '#!/bin/sh\nexit 101\n' | $as_root tee $policy >/dev/null; then
        $as_root chmod 755 $policy
        trap '$as_root rm -f $policy' EXIT
        trap 'exit 130' INT TERM
    fi
    install="env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=60 install --no-install-recommends -y"
    # shellcheck disable=SC2086
    $as_root $install $needed $wanted >/dev/null </dev/null ||
        { $as_root apt-get -qq update </dev/null && $as_root $install $needed $wanted >/dev/null </dev/null; } ||
        echo "apt-get did not install everything" >&2
    for service in $services; do
        case "$before " in *" $service "*) continue ;; esac
        ! enabled "$service" || $as_root systemctl disable --now "$service.service" >/dev/null 2>&1 ||
            echo "$service.service is enabled; sudo systemctl disable --now $service.service ends that" >&2
    done
    look
fi

if [ -n "$needed" ]; then
    echo "missing:$needed" >&2
    echo "  without them weir is built without BPF programs: no guard, no lab" >&2
    echo "  install them: sudo apt-get install$needed" >&2
fi
if [ -n "$wanted" ]; then
    echo "missing:$wanted" >&2
    case $what in
    deb | rpm) echo "  without them there is no package" >&2 ;;
    static | image) echo "  without them there is no static program, and no image" >&2 ;;
    *) echo "  without them some tests are skipped or fail" >&2 ;;
    esac
    echo "  install them: sudo apt-get install$wanted" >&2
fi
if ! have cc; then
    echo "error: no C compiler, and Rust needs one to link; install gcc and libc6-dev" >&2
    exit 3
fi
