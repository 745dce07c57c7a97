#!/bin/sh
# apparmor.sh loads the AppArmor profile of the sandboxes, where the kernel has
# AppArmor, and puts it where it is loaded at every start of the host.
# `apparmor.sh unload` takes it out again.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
name=code-execution-sandbox
source=$here/apparmor.d/$name
target=/etc/apparmor.d/$name
profiles=/sys/kernel/security/apparmor/profiles

say() { echo "apparmor: $*"; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
# The parser is where no PATH of a plain user looks.
PATH=$PATH:/usr/sbin:/sbin
export PATH

[ "$(cat /sys/module/apparmor/parameters/enabled 2>/dev/null)" = Y ] || exit 0
as_root test -e "$profiles" || as_root mount -t securityfs securityfs /sys/kernel/security

case ${1-} in
"")
	if cmp -s "$source" "$target" && as_root grep -q "^$name (enforce)" "$profiles"; then
		exit 0
	fi
	"$here/setup.sh" program apparmor_parser apparmor
	say "loading the profile $name"
	as_root install -D -m 0644 "$source" "$target"
	as_root apparmor_parser -r "$target"
	;;
unload)
	if [ -e "$target" ]; then
		as_root apparmor_parser -R "$target" || true # not loaded
		as_root rm -f "$target" /var/cache/apparmor/*/"$name"
	fi
	;;
*) echo "usage: systemd/apparmor.sh [unload]" >&2; exit 1 ;;
esac
