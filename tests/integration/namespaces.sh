#!/bin/bash
# Tests containers. A client in namespaces of its own needs only the socket to
# reach the broker, and two such clients pass a tensor. A broker that cannot see
# its clients' processes or users refuses them, and gives the reason.
#
#   namespaces.sh FSDPD FSDPCTL
set -u
# shellcheck source=../lib/check.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../lib/check.sh"

fsdpd=$1 fsdpctl=$2
dir=$(mktemp -d)
daemon=

stop()
{
	[[ -n $daemon ]] || return
	{ kill -KILL "$daemon" && wait "$daemon"; } 2>/dev/null
	daemon=
}

finish()
{
	local rc=$?
	stop
	((rc == 0 || rc == 77)) || cat "$dir/log"
	rm -rf "$dir"
	exit $rc
}
trap finish EXIT

is_answering()
{
	until "$fsdpctl" ping --count 1 >/dev/null 2>&1; do
		[[ -S $FSDP_SOCKET ]] && "$fsdpctl" ping --count 1 2>&1 |
			grep -q 'namespace' && return
		kill -0 "$daemon" || return
		sleep 0.01
	done
}

# start COMMAND...: start a broker with that command.
start()
{
	stop
	rm -f "$FSDP_SOCKET"
	"$@" "$fsdpd" --socket "$FSDP_SOCKET" </dev/null >>"$dir/log" 2>&1 &
	daemon=$!
	is_answering || fail "a broker starts"
	chmod 777 "$dir/run" "$FSDP_SOCKET"
}

put()
{
	"$fsdpctl" put "$dir/in.raw" --name "$1" --dtype u8 --shape 8
}

# shares WHAT COMMAND...: start a client with that command. It must publish a
# tensor that this script gets, and get one that this script publishes.
shares()
{
	local what=$1
	shift
	n=$((n + 1))
	"$@" "$fsdpctl" put "$dir/in.raw" --name "theirs/$n" --dtype u8 \
		--shape 8 >>"$dir/log" 2>&1 || fail "$what: it publishes"
	[[ $("$fsdpctl" get "theirs/$n" -o -) == abcdefgh ]] ||
		fail "$what: we get it"
	put "ours/$n" >>"$dir/log" 2>&1 || fail "we publish"
	[[ $("$@" "$fsdpctl" get "ours/$n" -o -) == abcdefgh ]] ||
		fail "$what: it gets ours"
	echo "ok: $what"
}

# refuses WHAT SENTENCE COMMAND...: start a client with that command. The broker
# must refuse it with that sentence.
refuses()
{
	local what=$1 sentence=$2
	shift 2
	"$@" "$fsdpctl" ping --count 1 >"$dir/said" 2>&1 &&
		fail "$what: it is refused"
	grep -q -- "$sentence" "$dir/said" || fail "$what: $(<"$dir/said")"
	echo "ok: $what"
}

# Make a root directory with programs and the socket, as a container has.
in_container()
{
	# shellcheck disable=SC2016 # for the shell inside
	unshare --mount --pid --fork --net --ipc --uts sh -c '
		set -e
		root=$0 dir=$1 build=$2
		shift 2
		mount -t tmpfs tmpfs "$root"
		mkdir -p "$root/usr" "$root/proc" "$root$dir" "$root$build"
		ln -s usr/lib usr/lib64 usr/bin "$root"
		for path in /usr "$build" "$dir"; do
			mount --bind "$path" "$root$path"
		done
		mount -t proc proc "$root/proc"
		exec chroot "$root" "$@"' "$dir/root" "$dir" \
		"$(dirname "$(realpath "$fsdpd")")" "$@"
}

[[ $(id -u) == 0 ]] || skip "root is needed to make namespaces"
unshare --mount --pid --fork --net --ipc --uts --user --map-root-user true \
	2>/dev/null || skip "no namespaces may be made here"
mkdir -p "$dir/root" "$dir/run"
chmod 755 "$dir"
printf 'abcdefgh' >"$dir/in.raw"
export FSDP_SOCKET=$dir/run/fsdpd.sock
n=0

start env
shares "another network namespace" unshare --net
shares "another pid namespace" unshare --pid --fork --mount-proc
shares "another pid namespace with our /proc" unshare --pid --fork
shares "another user namespace" unshare --user --map-root-user
shares "a user namespace that maps nobody" unshare --user
shares "other IPC, UTS, cgroup and mount namespaces" \
	unshare --ipc --uts --cgroup --mount
shares "a root directory and namespaces of its own" in_container
start unshare --pid --fork --kill-child --mount-proc
refuses "a broker in a pid namespace of its own sees no client" \
	"not visible in the broker's pid namespace" env
start unshare --user --map-root-user
refuses "a broker in a user namespace knows no other users" \
	"without a mapping in the broker's user namespace" \
	setpriv --reuid 1234 --regid 1234 --clear-groups
