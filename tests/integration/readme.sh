#!/bin/bash
# Runs README's commands one after another, as a reader does who has just built
# fsdpd: as root, and as an ordinary user without XDG_RUNTIME_DIR.
#
#   readme.sh BUILD_DIRECTORY
#
# It runs every line of README's blocks that begins with "$ ", except those with
# "...", which the reader must complete. The commands run in namespaces, because
# they use the socket and directories of the system. The test is skipped (exit
# 77) if no namespace can be made.
set -eu -o pipefail

here=$(dirname "$(realpath "$0")")
source=$(realpath "$here/../..")
build=$(realpath "$1")
id=$(id -u)

if [[ ${2:-} != inside ]]; then
	own=(--mount)
	((id == 0)) || own+=(--user --map-current-user --keep-caps)
	if ! why=$(unshare "${own[@]}" true 2>&1); then
		echo "skipped: no namespace may be made here: $why"
		exit 77
	fi
	exec unshare "${own[@]}" "$0" "$build" inside
fi

# The source and the build may be below /tmp, which the reader's own /tmp hides.
mount -t tmpfs tmpfs /mnt
mkdir /mnt/source /mnt/build
mount --bind "$source" /mnt/source
mount --bind "$build" /mnt/build
mount -t tmpfs -o mode=1777 tmpfs /tmp
mount -t tmpfs tmpfs /run

# Write the reader's commands as a script. It ends with the first command that
# fails. After a command that starts a broker it waits until the broker replies.
write_script()
{
	echo "trap 'kill \"\$broker\" && wait' EXIT"
	awk '/^```/ { inside = !inside }
	inside && /^\$ / && !/\.\.\./ {
		print substr($0, 3)
		if ($2 == "fsdpd")
			print "broker=$!; until fsdpctl ping >ping.out 2>&1;",
				"do kill -0 $broker; sleep 0.05; done"
	}' /mnt/source/README.md
}

# type_as UID: run the commands in a checkout of that user, with a build.
type_as()
{
	local dir=/tmp/reader$1 become=()

	(($1 == id)) || become=(setpriv --reuid "$1" --regid "$1" --clear-groups)
	mkdir -p "$dir/build"
	ln -s /mnt/build "$dir/build/release"
	ln -s /mnt/source/{scripts,docs} "$dir"
	write_script >"$dir/script"
	chmod 755 "$dir"
	(($1 == id)) || chown -R "$1:$1" "$dir"
	cd "$dir"
	"${become[@]}" env -u XDG_RUNTIME_DIR -u FSDP_SOCKET HOME="$dir" \
		PATH=/usr/local/bin:/usr/bin:/bin bash -ev script
	# README says that numpy can read this file.
	"${PYTHON:-/usr/bin/python3}" -c '
import numpy
assert numpy.load("w.npy").dtype == "float32"'
	cd /
	rm -r "$dir"
	echo "ok: README's commands, typed by uid $1"
}

type_as "$id"
((id != 0)) || type_as 12345
