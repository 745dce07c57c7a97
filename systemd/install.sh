#!/bin/bash
# install.sh makes this service part of a host with systemd, changes it for
# another version, and takes it away again. It runs as root.
#
#	systemd/install.sh install BINARY [ARCHIVE]   install, or change, and start
#	systemd/install.sh uninstall                  remove every trace
#	systemd/install.sh prepare | withdraw         the parts that a package needs
#
# ARCHIVE is a runtime image made by docker save; without one, the image of this
# name that Docker has is taken; "keep" leaves the one that is there. A version
# that does not become healthy is taken back, and what ran before runs again: the
# exit code is 1 then. WAIT is how many seconds it has for that (180).
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
name=code-execution-sandbox
wait=${WAIT:-180}

bin=/usr/bin/$name
units=/usr/lib/systemd/system
etc=/etc/$name
share=/usr/share/$name
state=/var/lib/$name
run=/run/$name
profile=/etc/apparmor.d/$name
# What an installation replaces, and a failed one puts back.
files=("$bin" "$units/$name.service" "$units/$name.socket" "$units/$name-boxes.service" "$etc/config.toml.dist" "$profile")
previous=$state/previous
runtime=docker.io/library/$name-runtime

say() { printf 'install: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
[ "$(id -u)" = 0 ] || die "needs root"
[ -d /run/systemd/system ] || die "this host does not run systemd; make serve needs none"
ctr() { command ctr -n "$name" "$@"; }

# --- put in place -------------------------------------------------------------

# place FILE TARGET MODE: in one step, so that a crash leaves the old or the new.
place() {
	install -D -m "$3" "$1" "$2.new" && mv -f "$2.new" "$2" || { rm -f "$2.new"; return 1; }
}

place_files() { # BINARY
	place "$1" "$bin" 0755
	for unit in "$name.service" "$name.socket" "$name-boxes.service"; do
		place "$here/units/$unit" "$units/$unit" 0644
	done
	install -d -m 0755 "$etc" "$state"
	# This script and what it needs, to take the service away again.
	if [ "$here" != "$share/systemd" ]; then
		rm -rf "$share"
		install -d "$share/config"
		cp -r "$here" "$share/systemd"
		cp "$here/../config/config.toml.dist" "$share/config"
	fi
	place "$here/../config/config.toml.dist" "$etc/config.toml.dist" 0644
	# What an operator may have changed stays.
	[ -e "$etc/config.toml" ] || place "$here/config.toml" "$etc/config.toml" 0644
	prepare
}

# prepare makes what no package can hold.
prepare() {
	if [ ! -e "$etc/token" ]; then
		say "writing a new token to $etc/token"
		(umask 077 && { od -An -tx1 -N32 /dev/urandom | tr -d ' \n' && echo; } >"$etc/token.new" && mv "$etc/token.new" "$etc/token")
	fi
	if [ -x "$here/apparmor.sh" ]; then "$here/apparmor.sh"; fi
}

import() { # [ARCHIVE]
	[ "${1-}" = keep ] || "$bin" image import "$@" >&2
}

# --- is it well? --------------------------------------------------------------

# listens prints the address at which systemd listens, as this host reaches it.
listens() {
	systemctl show -P Listen "$name.socket" | sed -n 's/ (Stream)$//; s/^\(\[::\]\|0\.0\.0\.0\):/127.0.0.1:/; 1p'
}

# healthy: does /healthz answer 200? bash can ask without curl.
healthy() {
	local address
	address=$(listens)
	# shellcheck disable=SC2016 # for the inner shell
	timeout 10 bash -c 'exec 3<>"/dev/tcp/$1/$2" && printf "GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n" >&3 && head -n 1 <&3 | grep -q " 200 "' \
		healthz "${address%:*}" "${address##*:}" 2>/dev/null
}

# restart: with what is in place now, until it is healthy. It fails as soon as
# systemd has given up, and tells which of the two it was.
restart() {
	local now
	systemctl daemon-reload
	systemctl reset-failed "$name.service" "$name.socket" "$name-boxes.service" 2>/dev/null || true
	systemctl -q enable "$name.socket" "$name.service"
	systemctl start "$name.socket"
	systemctl restart --no-block "$name.service"
	for ((end = SECONDS + wait; SECONDS < end; )); do
		sleep 1
		# In one call: between two it may go from one state to the next.
		now=$(systemctl show -p Job -p ActiveState "$name.service") || continue
		case $now in
		# A server that is on its way out is no answer.
		*Job=[1-9]*) ;;
		*ActiveState=active*) healthy && return 0 ;;
		# With a dependency that failed it is inactive, and stays so.
		*ActiveState=failed* | *ActiveState=inactive*) say "systemd has given up starting it" && return 1 ;;
		esac
	done
	say "it had $wait seconds"
	return 1
}

# --- install, and back --------------------------------------------------------

keep_previous() {
	rm -rf "$previous"
	[ -x "$bin" ] || return 0
	install -d -m 0700 "$previous"
	for file in "${files[@]}"; do
		[ ! -e "$file" ] || cp -a --parents "$file" "$previous"
	done
	[ ! -d "$share" ] || cp -a --parents "$share" "$previous"
	for tag in $(image_tags); do
		ctr images tag --force "$runtime:$tag" "$runtime:previous-$tag" >/dev/null
	done
}

# image_tags [PREFIX]: those of our images that begin so; without, the images
# that are not kept from before.
image_tags() {
	ctr images ls -q 2>/dev/null | sed -n "s|^$runtime:||p" |
		if [ -n "${1-}" ]; then sed -n "s/^$1//p"; else sed '/^previous-/d'; fi
}

# put_back goes on where a part cannot be put back.
put_back() {
	local file tag
	for file in "${files[@]}"; do
		[ ! -e "$previous$file" ] || place "$previous$file" "$file" "$(stat -c %a "$previous$file")"
	done
	if [ -d "$previous$share" ] && [ "$here" != "$share/systemd" ]; then
		rm -rf "$share" && cp -a "$previous$share" "$share"
	fi
	# A profile that is not what the script beside it has would be replaced again.
	if [ -e "$previous$profile" ]; then apparmor_parser -r "$profile"; fi
	for tag in $(image_tags previous-); do
		ctr images tag --force "$runtime:previous-$tag" "$runtime:$tag" >/dev/null
	done
}

do_install() { # BINARY [ARCHIVE]
	local binary=$1 version=unknown failed
	shift
	keep_previous
	version=$(timeout 60 "$binary" version 2>/dev/null | head -n 1) || true
	say "installing ${version:-a binary that does not tell its version}"
	# Neither a condition nor part of one: the shell would go on after what fails.
	set +e
	(
		set -e
		place_files "$binary"
		import "$@"
		restart
	)
	failed=$?
	set -e
	if [ "$failed" = 0 ]; then
		say "healthy at $(listens)"
		for tag in $(image_tags previous-); do ctr images rm "$runtime:previous-$tag" >/dev/null; done
		return
	fi
	say "it does not become healthy:"
	systemctl show -P StatusText "$name.service" >&2
	journalctl -u "$name.service" -n 15 --no-pager -o cat >&2 || true
	[ -d "$previous" ] || die "nothing ran here before, so it stays as it is; systemctl status $name"
	say "putting back what ran before"
	put_back || say "not all of it could be put back"
	restart || die "what ran before does not become healthy either; systemctl status $name"
	say "rolled back: $("$bin" version | head -n 1) serves again"
	exit 1
}

# --- away ---------------------------------------------------------------------

# empty_containerd removes our namespace with all that is in it.
empty_containerd() {
	command -v ctr >/dev/null && timeout 30 ctr version >/dev/null 2>&1 ||
		die "containerd does not answer: start it, or what this service has in it stays"
	command ctr namespaces ls -q | grep -qx "$name" || return 0
	local snapshotter key keys id _
	for id in $(ctr tasks ls -q); do ctr tasks rm -f "$id" >/dev/null; done
	for id in $(ctr containers ls -q); do ctr containers rm "$id"; done
	for id in $(ctr images ls -q); do ctr images rm --sync "$id" >/dev/null; done
	for id in $(ctr leases ls -q); do ctr leases rm "$id" >/dev/null; done
	# Children before their parents: each round removes the leaves. containerd
	# cleans up at the same time, so what fails may be gone a moment later.
	for snapshotter in overlayfs native; do
		for _ in $(seq 30); do
			keys=$(ctr snapshots --snapshotter "$snapshotter" ls 2>/dev/null | awk 'NR > 1 { print $1 }')
			[ -n "$keys" ] || break
			for key in $keys; do ctr snapshots --snapshotter "$snapshotter" rm "$key" 2>/dev/null || true; done
			sleep 1
		done
		[ -z "$keys" ] || die "snapshots of $name cannot be removed: $keys"
	done
	for id in $(ctr content ls -q); do ctr content rm "$id" >/dev/null 2>&1 || true; done
	command ctr namespaces rm "$name" >/dev/null
	# What containerd, its shims and runtimes keep for a namespace: crun its cache,
	# gVisor an empty network. The rest is empty by now.
	umount "/run/containerd/runsc/$name/null-netns" 2>/dev/null || true
	rm -rf "/run/containerd/runc/$name/.cache" "/run/containerd/runsc/$name"
	rmdir /run/containerd/runsc 2>/dev/null || true
	rmdir "/run/containerd/runc/$name" {/run,/var/lib}/containerd/io.containerd.runtime.v2.task/"$name" 2>/dev/null || true
}

# withdraw takes the service out of the host; its files stay.
withdraw() {
	systemctl -q disable --now "$name.service" "$name.socket" 2>/dev/null || true
	systemctl stop "$name.service" "$name.socket" "$name-boxes.service" 2>/dev/null || true
	[ ! -x "$bin" ] || "$bin" sweep >/dev/null || true
	empty_containerd
	if docker=$(docker image ls -q "$name-runtime" 2>/dev/null) && [ -n "$docker" ]; then
		# shellcheck disable=SC2086 # a list
		docker image rm -f $docker >/dev/null
	fi
	[ ! -x "$here/apparmor.sh" ] || "$here/apparmor.sh" unload
	rm -rf "$run" "$run-ids"
}

do_uninstall() {
	withdraw
	rm -rf "${files[@]}" "$etc" "$state" "$share" "$units/$name.service.d" "/etc/systemd/system/$name.service.d" "/etc/systemd/system/$name.socket.d"
	systemctl daemon-reload
	systemctl reset-failed "$name.service" "$name.socket" "$name-boxes.service" 2>/dev/null || true
	say "$name is gone"
}

case ${1-} in
install) [ $# = 2 ] || [ $# = 3 ] || die "usage: install.sh install BINARY [ARCHIVE]"; shift; do_install "$@" ;;
uninstall) do_uninstall ;;
prepare) prepare ;;
withdraw) withdraw ;;
*) die "usage: systemd/install.sh install BINARY [ARCHIVE] | uninstall" ;;
esac
