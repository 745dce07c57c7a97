#!/bin/sh
# fetch.sh puts faster-whisper and its model into a tree for the image. It runs
# in the build, where the network is; programs have none.
#
#	fetch.sh PROFILE WITH_WHISPER TREE
#
# What lies in the folder local/ beside it is used instead of the network: the
# wheels of requirements.txt, the files of model.sha256. A requirements.txt or
# model.sha256 in there stands for ours. Whatever its source, a file that does
# not have its hash ends the build.
set -eu

tree=$3
here=$(cd "$(dirname "$0")" && pwd)
# In every image: what is empty, the classic builder of Docker cannot copy.
mkdir -p "$tree/usr/share/huggingface"
case $1/$2 in
full/1) ;;
full/0 | slim/[01]) exit 0 ;;
*) echo "image: PROFILE is full or slim, WITH_WHISPER is 1 or 0" >&2; exit 1 ;;
esac

own=$here/local
log=$(mktemp)
requirements=$here/requirements.txt
[ ! -e "$own/requirements.txt" ] || requirements=$own/requirements.txt
sums=$here/model.sha256
[ ! -e "$own/model.sha256" ] || sums=$own/model.sha256

# One line that says what to do: the build's last words.
die() {
	echo "image: no faster-whisper: $1; build without it: make docker-build WITH_WHISPER=0, or put the files into image/whisper/local" >&2
	exit 1
}
# What a log comes down to.
cause() {
	if grep -q "DO NOT MATCH THE HASHES" "$log"; then echo "a wheel does not have the hash in requirements.txt"
	elif grep -q "connection broken\|Connection" "$log"; then echo "$1 cannot be reached"
	else grep -v '^ *$' "$log" | tail -n 1 | cut -c1-200
	fi
}

apt-get update -qq >"$log" 2>&1 || die "$(cause "Debian's mirror")"
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends ca-certificates python3-pip \
	python3-filelock python3-fsspec python3-packaging python3-requests python3-tqdm python3-typing-extensions python3-yaml >"$log" 2>&1 ||
	die "$(cause "Debian's mirror")"
site=$tree$(python3 -c 'import sysconfig; print(sysconfig.get_path("purelib", "posix_local"))')

ls "$own"/*.whl >/dev/null 2>&1 && source=--no-index || source=
# The hashes say all: with --no-deps nothing comes that is not in the list.
python3 -m pip install --quiet --disable-pip-version-check --no-input --root-user-action ignore --retries 1 --timeout 15 \
	--no-cache-dir --no-compile --no-deps --only-binary :all: --require-hashes $source --find-links "$own" \
	--target "$site" -r "$requirements" >"$log" 2>&1 || die "$(cause PyPI)"
rm -rf "${site:?}/bin"

read -r _ model revision <"$sums"
cache=$tree/usr/share/huggingface/hub/models--$(echo "$model" | sed 's:/:--:g')
snapshot=$cache/snapshots/$revision
mkdir -p "$snapshot" "$cache/refs"
printf %s "$revision" >"$cache/refs/main"
files=$(sed -n 's/^[0-9a-f]\{64\}  //p' "$sums")
for file in $files; do
	if [ -e "$own/$file" ]; then
		cp "$own/$file" "$snapshot/"
	else
		PYTHONPATH=$site HF_HUB_DISABLE_PROGRESS_BARS=1 python3 -c 'import sys, huggingface_hub as hub
hub.hf_hub_download(sys.argv[1], sys.argv[2], revision=sys.argv[3], local_dir=sys.argv[4])' \
			"$model" "$file" "$revision" "$snapshot" >"$log" 2>&1 || die "the model $model: $(cause "its hub")"
	fi
done
rm -rf "$snapshot/.cache"
(cd "$snapshot" && grep -v '^#' "$sums" | sha256sum --check --quiet) >"$log" 2>&1 || die "not the file in model.sha256: $(head -n 1 "$log")"
