#!/bin/sh
# docker.sh runs Docker's command line in the form this host has it: through
# sudo where the user may not talk to the engine, and "compose" as the plugin
# or as the older program of its own. BuildKit needs its plugin; without it the
# classic builder does the work.
#
#	systemd/docker.sh ARGUMENT...
#	systemd/docker.sh compose ARGUMENT...
set -eu

if [ "${1-}" != compose ] || docker compose version >/dev/null 2>&1; then
	set -- docker "$@"
else
	shift
	set -- docker-compose "$@"
fi
docker buildx version >/dev/null 2>&1 || set -- DOCKER_BUILDKIT=0 "$@"

if [ "$(id -u)" = 0 ] || docker version >/dev/null 2>&1; then
	exec env "$@"
fi
# What compose.yaml reads from the environment, past sudo.
for name in INPUTS TAG BASE PROFILE WITH_WHISPER http_proxy https_proxy no_proxy; do
	if value=$(printenv "$name"); then set -- "$name=$value" "$@"; fi
done
exec sudo env "$@"
