#!/bin/sh
# vm.sh makes and runs a virtual machine as this service's hosts are: Debian 13
# with systemd, cgroup v2, AppArmor, and its own containerd, runc and Docker. It
# is made from Debian's packages alone and runs under QEMU, with or without KVM.
#
#	test/host/vm.sh build            make the disk, once; takes minutes
#	test/host/vm.sh boot DIR         start a machine that keeps its state in DIR, and wait for SSH
#	test/host/vm.sh ssh DIR CMD...   run a command in it as root
#	test/host/vm.sh put DIR FILE... TO   copy files into it
#	test/host/vm.sh stop DIR         power it off
#
# The disk stays as it was made: what a machine writes goes with the machine. A
# reboot keeps it. `ssh -F DIR/ssh_config vm` and scp work, too; so does
# `ops@vm`, who may use sudo. DIR/http is the address at which the host
# reaches the machine's port 8788, DIR/console.log what the machine said.
#
# VM_ACCEL=kvm|tcg decides how processors are made; without it KVM is tried.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
suite=trixie
state=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/code-execution-sandbox/vm

say() { printf 'vm: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
PATH=$PATH:/usr/sbin:/sbin

# What is there beside a minimal Debian, as an operator has it.
packages=systemd-sysv,systemd-timesyncd,dbus,libpam-systemd,udev,kmod,procps,iproute2,iptables,ca-certificates,sudo
packages=$packages,linux-image-cloud-amd64,openssh-server,apparmor,containerd,runc,docker.io,docker-cli,docker-compose

# The disk is made anew when what makes it has changed.
disk=$state/disk-$(sed -n '/^suite=/p; /^packages=/,/^accel()/p' "$here/vm.sh" | sha256sum | cut -c1-12)

build() {
	[ ! -e "$disk/ready" ] || return 0
	[ "$(uname -m)" = x86_64 ] || die "the machine is made for amd64 only"
	"$here/../../systemd/setup.sh" program mmdebstrap mmdebstrap debian-archive-keyring
	"$here/../../systemd/setup.sh" program qemu-system-x86_64 qemu-system-x86 seabios ipxe-qemu
	"$here/../../systemd/setup.sh" program mkfs.ext4 e2fsprogs
	"$here/../../systemd/setup.sh" program ssh openssh-client
	say "making the disk in $disk; takes minutes"
	as_root rm -rf "$state"
	mkdir -p "$disk"
	ssh-keygen -q -t ed25519 -N '' -C vm -f "$disk/key"
	root=$disk/root
	as_root mmdebstrap --variant=apt --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
		--aptopt='APT::Install-Recommends "false"' --aptopt='Acquire::Retries "3"' \
		--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/man/*' \
		--dpkgopt='path-exclude=/usr/share/locale/*' \
		--include="$packages" --customize-hook="sh '$here/vm.sh' furnish \"\$1\" '$disk/key.pub'" \
		"$suite" "$root" >"$disk/mmdebstrap.log" 2>&1 || {
		tail -n 20 "$disk/mmdebstrap.log" >&2
		die "mmdebstrap could not make the machine"
	}
	as_root sh -c 'cat "$1"/boot/vmlinuz-* >"$2/vmlinuz" && cat "$1"/boot/initrd.img-* >"$2/initrd" && chmod 0644 "$2/vmlinuz" "$2/initrd"' \
		sh "$root" "$disk"
	# No loop device is needed to fill it. What is never written takes no room.
	as_root mkfs.ext4 -q -d "$root" -E lazy_itable_init=1 "$disk/disk.img" 8G
	as_root chmod 0644 "$disk/disk.img"
	as_root rm -rf "$root"
	touch "$disk/ready"
}

# furnish ROOT KEY: what an installer would have asked.
furnish() {
	root=$1
	echo vm >"$root/etc/hostname"
	echo '127.0.0.1 localhost vm' >"$root/etc/hosts"
	: >"$root/etc/machine-id"
	# The network that QEMU gives a machine.
	cat >"$root/etc/systemd/network/10-vm.network" <<-END
		[Match]
		Name=en* eth*
		[Network]
		Address=10.0.2.15/24
		Gateway=10.0.2.2
	END
	rm -f "$root/etc/resolv.conf"
	echo 'nameserver 10.0.2.3' >"$root/etc/resolv.conf"
	echo '/dev/vda / ext4 defaults,noatime 0 1' >"$root/etc/fstab"
	chroot "$root" useradd --create-home --shell /bin/bash ops
	echo 'ops ALL=(ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/ops"
	for home in root home/ops; do
		mkdir -p "$root/$home/.ssh"
		chmod 0700 "$root/$home/.ssh"
		cat "$2" >"$root/$home/.ssh/authorized_keys"
	done
	chroot "$root" chown -R ops: /home/ops
	chroot "$root" systemctl -q enable systemd-networkd ssh containerd apparmor
	# Docker starts when somebody calls it. Nothing else is to stir by itself.
	chroot "$root" systemctl -q disable docker.service
	chroot "$root" systemctl -q enable docker.socket
	chroot "$root" systemctl -q mask apt-daily.timer apt-daily-upgrade.timer systemd-timesyncd e2scrub_all.timer \
		e2scrub_reap fstrim.timer dpkg-db-backup.timer systemd-networkd-wait-online systemd-random-seed
	# An emulated machine needs its time.
	mkdir -p "$root/etc/systemd/system.conf.d"
	printf '[Manager]\nDefaultTimeoutStartSec=300\nDefaultDeviceTimeoutSec=300\n' >"$root/etc/systemd/system.conf.d/slow.conf"
}

accel() {
	if [ -n "${VM_ACCEL-}" ]; then echo "$VM_ACCEL"; return; fi
	# A device alone says little: a kernel that has begun to speak does.
	if [ -w /dev/kvm ] && timeout 5 qemu-system-x86_64 -accel kvm -cpu max -m 512 -display none -nodefaults -no-reboot \
		-serial stdio -kernel "$disk/vmlinuz" -append 'console=ttyS0 earlyprintk=ttyS0 panic=-1' 2>/dev/null |
		grep -q -m 1 'Linux version'; then
		echo kvm
	else
		echo tcg,thread=multi
	fi
}

# A port that nobody listens on, below those that the kernel gives away.
port() {
	while p=$((20000 + $(od -An -N2 -tu2 /dev/urandom) % 12000)); do
		grep -qi ":$(printf %04X $p) 0*:0000 0A" /proc/net/tcp || break
	done
	echo "$p"
}

boot() {
	dir=$1
	build
	mkdir -p "$dir"
	dir=$(cd "$dir" && pwd)
	! running "$dir" || die "$dir: a machine runs there already"
	rm -f "$dir/qemu.pid"
	ssh_port=$(port) http_port=$(port) how=$(accel)
	cp "$disk/key" "$dir/key"
	chmod 0600 "$dir/key"
	echo "127.0.0.1:$http_port" >"$dir/http"
	cat >"$dir/ssh_config" <<-END
		Host vm
		HostName 127.0.0.1
		Port $ssh_port
		User root
		IdentityFile $dir/key
		IdentitiesOnly yes
		StrictHostKeyChecking no
		UserKnownHostsFile /dev/null
		LogLevel ERROR
		ConnectTimeout 60
		ServerAliveInterval 30
		ServerAliveCountMax 20
	END
	say "booting with $how; console: $dir/console.log"
	# snapshot=on: writes go to a file that ends with the process.
	# panic=-1 and oops=panic: a broken kernel does not look like a slow one.
	TMPDIR=$dir setsid qemu-system-x86_64 -accel "$how" -cpu max -smp 2 -m "${VM_MEMORY:-3072}" \
		-display none -serial "file:$dir/console.log" \
		-kernel "$disk/vmlinuz" -initrd "$disk/initrd" \
		-append "root=/dev/vda rw console=ttyS0 systemd.show_status=1 oops=panic panic=-1" \
		-drive "file=$disk/disk.img,if=virtio,format=raw,cache=unsafe,snapshot=on" \
		-nic "user,model=virtio-net-pci,hostfwd=tcp:127.0.0.1:$ssh_port-:22,hostfwd=tcp:127.0.0.1:$http_port-:8788" \
		-device virtio-rng-pci -pidfile "$dir/qemu.pid" >"$dir/qemu.log" 2>&1 </dev/null &
	while [ ! -e "$dir/qemu.pid" ]; do
		kill -0 $! 2>/dev/null || { cat "$dir/qemu.log" >&2; die "QEMU does not start"; }
		sleep 0.1
	done
	await "$dir"
}

# await DIR: until the machine answers; ten minutes are for an emulated one on a
# busy host.
await() {
	for _ in $(seq 300); do
		if timeout 60 ssh -F "$1/ssh_config" vm true 2>/dev/null; then return 0; fi
		running "$1" || { cat "$1/qemu.log" >&2; die "the machine has ended"; }
		sleep 2
	done
	tail -n 20 "$1/console.log" >&2
	die "the machine does not answer; see $1/console.log"
}

running() {
	pid=$(cat "$1/qemu.pid" 2>/dev/null) || return 1
	case $(cat "/proc/$pid/comm" 2>/dev/null) in qemu-system*) ;; *) return 1 ;; esac
}

stop() {
	running "$1" || return 0
	timeout 60 ssh -F "$1/ssh_config" vm systemctl poweroff >/dev/null 2>&1 || true
	for _ in $(seq 90); do
		running "$1" || return 0
		sleep 1
	done
	say "it does not power off; ending it"
	kill -9 "$(cat "$1/qemu.pid")"
}

what=${1-}
[ $# = 0 ] || shift
case $what in
build) build ;;
furnish) furnish "$@" ;;
boot) boot "$1" ;;
await) await "$1" ;;
ssh) dir=$1; shift; exec ssh -F "$dir/ssh_config" vm "$@" ;;
put) dir=$1; shift; for to; do :; done
	while [ $# -gt 1 ]; do scp -q -r -F "$dir/ssh_config" "$1" "vm:$to"; shift; done ;;
stop) stop "$1" ;;
*) die "usage: test/host/vm.sh build | boot DIR | ssh DIR COMMAND... | put DIR FILE... TO | stop DIR" ;;
esac
