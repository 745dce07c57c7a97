#!/bin/sh
# setup.sh brings a host with Debian or Ubuntu to where the runtime image can be
# built and programs can be run: Docker's engine with compose, containerd and
# runc are installed from the distribution and started. What is there already
# stays as it is, whoever it came from. Running it again does nothing.
#
#	systemd/setup.sh          install and start what is missing
#	systemd/setup.sh stop     stop what setup started itself (only hosts without systemd)
#	systemd/setup.sh program NAME PACKAGE...   install PACKAGE... where there is no program NAME
#	systemd/setup.sh unpack DIR NAME PACKAGE...   the same, but only unpack it below DIR:
#	                          a daemon that a test runs must not run on the host
#
# It uses sudo for the single steps that need root.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
# Process ids and logs of the daemons that no init system looks after.
run_dir=/run/code-execution-sandbox-setup

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }
as_root() {
	if [ "$(id -u)" = 0 ]; then "$@"
	elif have sudo; then sudo "$@"
	else die "needs root, and there is no sudo: run make as root"
	fi
}

# Programs in sbin count as there for a user whose PATH lacks it.
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

containerd_answers() { as_root timeout 20 ctr version >/dev/null 2>&1; }
docker_answers() { timeout 20 "$here/docker.sh" version >/dev/null 2>&1; }
compose_there() { docker compose version >/dev/null 2>&1 || have docker-compose; }

# --- packages ---------------------------------------------------------------

# candidate PACKAGE: can apt install it now?
candidate() { LC_ALL=C apt-cache policy "$1" 2>/dev/null | grep -q 'Candidate: [^(]'; }
# first PACKAGE...: the first that apt can install.
first() {
	for package in "$@"; do
		if candidate "$package"; then echo "$package"; return; fi
	done
}
installed() { dpkg-query -W -f '${Status}' "$1" 2>/dev/null | grep -q 'ok installed'; }

# missing prints what is not there, one word each.
missing() {
	have dockerd || docker_answers || echo engine
	have docker || echo client
	have docker && compose_there || echo compose
	have containerd && have ctr || echo containerd
	have runc || echo runc
}

# packages WORD...: the packages of this distribution for these words. A host
# with Docker's own packages gets compose from there too: its containerd.io
# holds containerd and runc, and conflicts with the distribution's.
packages() {
	for word in "$@"; do
		case $word in
		engine) echo docker.io ;;
		client) first docker-cli docker.io ;;
		compose)
			if installed docker-ce-cli; then first docker-compose-plugin
			else first docker-compose-v2 docker-compose
			fi ;;
		containerd) if installed docker-ce; then echo containerd.io; else echo containerd; fi ;;
		runc) if installed containerd.io; then echo containerd.io; else echo runc; fi ;;
		esac
	done | sort -u
}

# --no-remove: nothing that is installed is ever replaced. The lock is waited
# for, since a freshly started machine often updates itself. What apt says is
# shown only when it fails.
apt_install() {
	log=$(mktemp)
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends --no-remove \
		-o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 "$@" >"$log" 2>&1 </dev/null || {
		tail -n 20 "$log" >&2
		rm -f "$log"
		return 1
	}
	rm -f "$log"
}

# known_distribution: else one message says what a person has to see to.
known_distribution() {
	. /etc/os-release
	case " $ID ${ID_LIKE-} " in
	*" debian "* | *" ubuntu "*) have apt-get && return ;;
	esac
	die "$PRETTY_NAME is not known here; install these yourself and run make again: $1"
}

# install_packages PACKAGE...: with fresh package lists only where it does not
# work without.
install_packages() {
	known_distribution "$*"
	say "installing $* (takes a minute or two)"
	if ! candidate "$1" || ! apt_install "$@"; then
		say "updating the package lists"
		as_root apt-get update -qq
		apt_install "$@" || die "apt could not install $*"
	fi
}

install_missing() {
	words=$(missing)
	[ -n "$words" ] || return 0
	known_distribution "Docker's engine and client, docker compose, containerd and runc"
	candidate docker.io || as_root apt-get update -qq # else the names cannot be chosen
	# shellcheck disable=SC2046,SC2086 # lists of words
	install_packages $(packages $words)
	words=$(missing | tr '\n' ' ')
	[ -z "$words" ] || die "still missing after the installation: $words"
}

# unpack_packages DIR NAME PACKAGE...: the program NAME, unpacked below DIR from
# the first of the packages that has it. Libraries that it needs are installed.
unpack_packages() {
	dir=$1 name=$2
	shift 2
	known_distribution "$*"
	say "unpacking $name"
	candidate "$1" || as_root apt-get update -qq
	work=$(mktemp -d)
	for package in "$@"; do
		candidate "$package" || continue
		rm -f "$work"/*.deb
		(cd "$work" && apt-get download -qq -o APT::Sandbox::User=root "$package" >&2) || { as_root apt-get update -qq; (cd "$work" && apt-get download -qq -o APT::Sandbox::User=root "$package" >&2); }
		dpkg-deb -x "$work"/*.deb "$work/tree"
		# shellcheck disable=SC2046 # a list of words
		if [ -e "$work/tree/usr/bin/$name" ] || [ -e "$work/tree/usr/sbin/$name" ]; then
			missing=$(for library in $(dpkg-deb -f "$work"/*.deb Depends | tr ',' '\n' | sed -n 's/^ *\(lib[^ :|]*\).*/\1/p' | grep -v '^libjs-'); do
				installed "$library" || echo "$library"
			done)
			# shellcheck disable=SC2086 # a list of words
			[ -z "$missing" ] || install_packages $missing
			mkdir -p "$dir"
			cp -a "$work/tree/." "$dir/"
			rm -rf "$work"
			return 0
		fi
	done
	rm -rf "$work"
	die "no package of $* has the program $name"
}

# --- daemons ----------------------------------------------------------------

# await COMMAND PID: until COMMAND holds; fails when the process has ended or
# after two minutes (an emulated machine needs most of one).
await() {
	for _ in $(seq 240); do
		"$1" && return 0
		[ -d "/proc/$2" ] || return 1
		sleep 0.5
	done
	return 1
}

# spawn NAME COMMAND...: a daemon in a session of its own, held by nothing of
# ours: not by make's file descriptors, not by the terminal.
spawn() {
	name=$1; shift
	say "starting $name without an init system; log: $run_dir/$name.log; make stop-docker ends it"
	as_root sh -c '
		mkdir -p -m 0755 "$1"; cd /; name=$1/$2; shift 2
		ulimit -n "$(ulimit -Hn)"
		for fd in 3 4 5 6 7 8 9; do eval "exec $fd>&-"; done
		setsid "$@" >>"$name.log" 2>&1 </dev/null &
		echo $! >"$name.pid"' spawn "$run_dir" "$name" "$@"
}
daemon_pid() { cat "$run_dir/$1.pid"; }

start_by_hand() {
	if ! grep -q '^[^ ]* /sys/fs/cgroup[^ ]* cgroup' /proc/mounts; then
		say "mounting the cgroup file system"
		as_root mount -t cgroup2 -o nosuid,nodev,noexec cgroup2 /sys/fs/cgroup
	fi
	if ! containerd_answers; then
		spawn containerd containerd
		await containerd_answers "$(daemon_pid containerd)" || give_up containerd
	fi
	if ! docker_answers; then
		# The pid file of an engine that was killed can name another process
		# by now, and the engine refuses to start then.
		if pid=$(cat /run/docker.pid 2>/dev/null) && [ "$(cat "/proc/$pid/comm" 2>/dev/null)" != dockerd ]; then
			as_root rm -f /run/docker.pid
		fi
		spawn dockerd dockerd --containerd /run/containerd/containerd.sock
		await docker_answers "$(daemon_pid dockerd)" && return 0
		# A small kernel has no netfilter. Builds use the host's network, so
		# the engine serves without.
		say "dockerd did not start; trying without its network"
		stop dockerd
		spawn dockerd dockerd --containerd /run/containerd/containerd.sock --bridge=none --iptables=false --ip6tables=false
		await docker_answers "$(daemon_pid dockerd)" || give_up dockerd
	fi
}

give_up() {
	tail -n 5 "$run_dir/$1.log" >&2
	die "$1 does not answer; the end of $run_dir/$1.log stands above"
}

start_by_systemd() {
	say "starting containerd and Docker"
	as_root systemctl start containerd docker || die "systemctl start failed; see: systemctl status containerd docker"
	containerd_answers && docker_answers || {
		sleep 5
		containerd_answers || die "containerd does not answer; see: journalctl -u containerd"
		docker_answers || die "Docker does not answer; see: journalctl -u docker"
	}
}

# stop NAME: ends a daemon that spawn started, and no other: a process id is
# only believed while it still has that name.
stop() {
	pid=$(cat "$run_dir/$1.pid" 2>/dev/null) || return 0
	if [ "$(cat "/proc/$pid/comm" 2>/dev/null)" = "$1" ]; then
		say "stopping $1"
		as_root sh -c 'kill "$1"' sh "$pid" # a shell's own: the program is no part of a small system
		for _ in $(seq 60); do
			[ -d "/proc/$pid" ] || break
			sleep 0.5
		done
	fi
	as_root rm -f "$run_dir/$1.pid"
}

case ${1-} in
"")
	install_missing
	if ! containerd_answers || ! docker_answers; then
		if [ -d /run/systemd/system ]; then start_by_systemd; else start_by_hand; fi
	fi
	;;
stop)
	stop dockerd
	stop containerd
	;;
program)
	have "$2" || { shift 2; install_packages "$@"; }
	;;
unpack)
	have "$3" || [ -x "$2/usr/bin/$3" ] || [ -x "$2/usr/sbin/$3" ] || { shift; unpack_packages "$@"; }
	;;
*) die "usage: systemd/setup.sh [stop | program NAME PACKAGE... | unpack DIR NAME PACKAGE...]" ;;
esac
