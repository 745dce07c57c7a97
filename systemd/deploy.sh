#!/bin/sh
# deploy.sh brings the service to another host, over SSH, and starts it there; a
# version that does not become healthy is taken back by install.sh.
#
#	systemd/deploy.sh [USER@]HOST
#
#	IMAGE_FROM=build  ship what the runtime image is made from and build it there,
#	                   with that host's Docker (the default)
#	IMAGE_FROM=FILE   ship this archive, made by docker save
#	IMAGE_FROM=keep   leave the image that is there
#	BINARY=FILE        ship this one instead of building it for that host
#	SSH_OPTIONS        for ssh, such as "-F file"
#
# That user is root or may use sudo without a password.
set -eu

cd "$(dirname "$0")/.."
host=$1
image=${IMAGE_FROM:-build}

say() { printf 'deploy: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
# shellcheck disable=SC2086,SC2029 # options are words; commands are for the host
remote() { ssh ${SSH_OPTIONS-} "$host" "$@"; }

machine=$(remote 'test -d /run/systemd/system || echo none; uname -m') || die "no SSH to $host"
case $machine in
x86_64) arch=amd64 ;;
aarch64 | arm64) arch=arm64 ;;
none*) die "$host does not run systemd" ;;
*) die "$host is a $machine; there are binaries for amd64 and arm64" ;;
esac
if [ -z "${BINARY-}" ]; then
	make --no-print-directory build-linux ARCH=$arch
	BINARY=bin/code-execution-sandbox-linux-$arch
fi
case $image in
build | keep) ;;
*) [ -r "$image" ] || die "IMAGE_FROM=$image: no such file; build, keep, or an archive" ;;
esac

say "shipping to $host ($arch)"
dir=$(remote 'mktemp -d')
trap 'remote "rm -rf $dir"' EXIT
files="systemd config/config.toml.dist"
[ "$image" != build ] || files="$files Makefile image"
# shellcheck disable=SC2086 # a list
tar -cz $files | remote "tar -xz -C $dir"
gzip -c "$BINARY" | remote "gzip -dc >$dir/binary && chmod 0755 $dir/binary"

sudo='' archive=''
[ "$(remote 'id -u')" = 0 ] || sudo='sudo -n'
case $image in
build)
	say "building the image there"
	remote "cd $dir && systemd/setup.sh program make make && make docker-build ${PROFILE:+PROFILE=$PROFILE} ${WITH_WHISPER:+WITH_WHISPER=$WITH_WHISPER}"
	;;
keep) archive=keep ;;
*)
	say "shipping the image"
	archive=$dir/image.tar
	gzip -1 -c "$image" | remote "gzip -dc >$archive"
	;;
esac
remote "$sudo env WAIT=${WAIT:-180} $dir/systemd/install.sh install $dir/binary $archive"
