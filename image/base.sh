#!/bin/sh
# base.sh makes sure that Docker has the image that the runtime image starts
# from, and prints its name. It is the one that Dockerfile pins by digest, if
# a registry has it; or else the Debian of the same name that is there; or else
# one that is made here from Debian's packages under that name.
#
#	image/base.sh [--fresh]
#
# --fresh makes that last one anew. Root (or sudo) is needed only to make
# one, and to talk to Docker where the user may not.
set -eu

here=$(cd "$(dirname "$0")" && pwd)
pinned=$(sed -n 's/^ARG BASE=//p' "$here/Dockerfile")
image=${pinned%@*}
suite=$(expr "$image" : 'debian:\(.*\)-slim')

say() { printf 'image: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }
docker() { "$here/../systemd/docker.sh" "$@"; }

docker version >/dev/null || die "Docker does not answer; make setup starts it"
docker image inspect "$pinned" >/dev/null 2>&1 && { echo "$pinned"; exit 0; }
# One that was made here says that no registry is in reach.
note="made by image/base.sh"
if [ "${1-}" != --fresh ] && [ "$(docker image inspect -f '{{.Comment}}' "$image" 2>/dev/null)" = "$note" ]; then
	echo "$image"
	exit 0
fi
say "pulling $pinned"
docker pull --quiet "$pinned" >/dev/null 2>&1 && { echo "$pinned"; exit 0; }
if [ "${1-}" != --fresh ] && docker image inspect "$image" >/dev/null 2>&1; then
	say "no registry gives it; taking the $image that is here"
	echo "$image"
	exit 0
fi
say "no registry gives it; making $image from Debian's packages"

command -v apt-get >/dev/null ||
	die "that needs apt. On a machine with a registry: docker save $image -o base.tar; here: docker load -i base.tar"
install_packages() {
	as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
if ! command -v mmdebstrap >/dev/null || [ ! -e $keyring ]; then
	say "installing mmdebstrap and debian-archive-keyring"
	install_packages mmdebstrap debian-archive-keyring 2>/dev/null ||
		{ as_root apt-get update -qq && install_packages mmdebstrap debian-archive-keyring; }
fi

# The Debian mirrors that this host is set up for, told for the wanted suite.
# "mirror+file:" (Debian's cloud images) points to a list that the image would
# not have, so its first entry stands for it. On another distribution nothing
# is left over and mmdebstrap takes its default.
host=$(. /etc/os-release && [ "$ID" = debian ] && echo "$VERSION_CODENAME" || echo none)
sources=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
	while read -r uri release component; do
		case $uri in mirror+file:*)
			uri=$(grep -o -m1 'https\?://[^[:space:]]*' "${uri#mirror+file:}") || continue
		esac
		case "$uri $release $component" in
		http*" $host main" | http*" $host-updates main" | http*" $host-security main")
			echo "deb $uri $suite${release#"$host"} main" ;;
		esac
	done | sort -u)
case $sources in
*" $suite main"*) ;;
*) sources= ;;
esac

# Inside the image apt must be able to speak to the mirror.
include=
case $sources in *https:*) include=--include=ca-certificates ;; esac
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
# The keyring is named, since no other distribution's apt trusts Debian's keys.
make_tar() {
	# shellcheck disable=SC2086 # no word where there is nothing to include
	printf '%s\n' "$sources" |
		as_root mmdebstrap --variant=minbase --skip=output/dev --keyring=$keyring $include \
			--aptopt='APT::Install-Recommends "false"' \
			"$suite" - ${sources:+-} >"$tmp/base.tar" 2>"$tmp/log"
}
# Debian 12 before its last point releases does not know the keys of 13.
update_keys() {
	grep -q NO_PUBKEY "$tmp/log" || return 1
	say "apt does not know the keys of $suite; updating debian-archive-keyring"
	as_root apt-get update -qq && install_packages debian-archive-keyring
}
make_tar || { update_keys && make_tar; } || {
	grep -E '^(E|W|Err)' -A 1 "$tmp/log" | head -n 12 >&2
	die "mmdebstrap could not make $image; bring it from another machine: docker save $image -o base.tar; here: docker load -i base.tar"
}
docker import --message "$note" "$tmp/base.tar" "$image" >/dev/null
say "made $image"
echo "$image"
