# Tests that boot systemd source this file. It boots a container whose root is
# an overlay of this machine's root, with the build installed, and removes
# everything at the end. The test is skipped (exit 77) without root, or if no
# overlay or container can be made. It fails if a package is missing, because
# scripts/setup installs the packages.
#
# The test sets `build`, the directory of the build, and calls boot. A function
# before_boot() may change $root first.
set -u
# shellcheck source=../lib/check.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../lib/check.sh"

# A test that hangs ends after this time, with the container's output. Nothing
# else has a time limit.
HANG_SECONDS=300

[[ $(id -u) == 0 ]] || skip "root is needed to boot a container"
for program in systemd-nspawn /lib/systemd/systemd; do
	command -v "$program" >/dev/null || lack "$program"
done
# systemd-nspawn leaves control groups, which finish() removes. The lock
# prevents it from removing those of another container that boots at the same
# time.
exec {lock}</run
flock "$lock"
SECONDS=0

dir=$(mktemp -d /run/fsdp-systemd.XXXXXX)
root=$dir/tmpfs/root
nspawn=
pid1=

finish()
{
	local rc=$?
	if ((rc != 0 && rc != 77)); then
		tail -n 30 "$dir/boot.log"
		inside journalctl -u fsdpd.socket -u fsdpd --no-pager |
			tail -n 30
		inside journalctl _SYSTEMD_USER_UNIT=fsdpd.service \
			--no-pager | tail -n 30
	fi 2>/dev/null
	if [[ -n $nspawn ]]; then
		kill -TERM "$nspawn" 2>/dev/null
		wait "$nspawn" 2>/dev/null
	fi
	mountpoint -q "$root" && umount "$root"
	mountpoint -q "$dir/tmpfs" && umount "$dir/tmpfs"
	rm -rf "$dir"
	# systemd-nspawn leaves these directories. They are removed in all
	# hierarchies, because any that stay would make the next boot fail.
	find /sys/fs/cgroup -depth -type d \
		\( -path '*/payload*' -o -path '*/supervisor*' \) \
		-exec rmdir {} + 2>/dev/null
	exit $rc
}
trap finish EXIT

inside()
{
	nsenter -t "$pid1" -m -u -i -n -p -C -- env -i \
		PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin "$@"
}

# until WHAT COMMAND...: wait until the command succeeds, which it must.
until_true()
{
	local what=$1
	shift
	until "$@" >/dev/null 2>&1; do
		if ((SECONDS > HANG_SECONDS)) || ! kill -0 "$nspawn"; then
			echo "FAILED: $what"
			exit 1
		fi
		sleep 0.1
	done
	echo "ok: $what"
}

make_root()
{
	mkdir -p "$dir/tmpfs" || return 1
	mount -t tmpfs tmpfs "$dir/tmpfs" || return 1
	mkdir "$dir/tmpfs/up" "$dir/tmpfs/work" "$root"
	mount -t overlay overlay -o "lowerdir=/,upperdir=$dir/tmpfs/up,workdir=$dir/tmpfs/work" \
		"$root" || return 1
}

# Keep this machine's own services from starting in the container.
quiet_services()
{
	local unit

	: >"$root/etc/machine-id"
	rm -f "$root/etc/fstab"
	rm -rf "$root"/etc/systemd/system/*.wants "$root"/etc/systemd/system/*.requires
	for unit in "$root"/etc/init.d/*; do
		ln -sf /dev/null \
			"$root/etc/systemd/system/$(basename "$unit").service"
	done
	for unit in systemd-logind.service getty.target console-getty.service \
		apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer \
		fstrim.timer man-db.timer systemd-resolved.service \
		systemd-networkd.service systemd-timesyncd.service; do
		ln -sf /dev/null "$root/etc/systemd/system/$unit"
	done
}

before_boot()
{
	:
}

install_build()
{
	DESTDIR=$root cmake --install "$build" --prefix /usr/local
}

# Print the pid of the container's init. It is the only child that is process 1
# in a namespace of its own. nspawn also has helpers, which start and end while
# it boots.
find_pid1()
{
	local pid

	for pid in $(pgrep -P "$nspawn"); do
		if awk '/^NSpid:/ { found = NF == 3 && $3 == 1 }
			END { exit !found }' "/proc/$pid/status"; then
			pid1=$pid
			return
		fi
	done
	return 1
}

is_up()
{
	[[ -n $pid1 ]] || find_pid1 || return
	inside systemctl is-active basic.target
}

start_container()
{
	# Hosts permit their services these calls, but containers of nspawn 252
	# do not.
	systemd-nspawn -q -D "$root" -M "fsdp$$" --register=no --keep-unit \
		--system-call-filter="landlock_create_ruleset
			landlock_add_rule landlock_restrict_self" \
		--private-network --kill-signal=SIGRTMIN+3 --console=pipe \
		--boot </dev/null >"$dir/boot.log" 2>&1 &
	nspawn=$!
}

# Returns whether a container can be made at all. That this fails is not a
# failure of fsdpd.
can_start_container()
{
	systemd-nspawn -q -D "$root" -M "fsdp$$" --register=no --keep-unit \
		--private-network --console=pipe /bin/true </dev/null \
		>"$dir/boot.log" 2>&1
}

main_pid()
{
	inside systemctl show -p MainPID --value fsdpd
}

is_another_broker()
{
	local pid
	pid=$(main_pid)
	[[ $pid != 0 && $pid != "$1" ]] && as_user fsdpctl ping -c 1
}

as_user()
{
	inside setpriv --reuid 1234 --regid 1234 --clear-groups "$@"
}

# An ordinary user publishes `abcdefgh` under a name.
put()
{
	as_user fsdpctl put /opt/in.raw --name "$1" --dtype u8 --shape 8
}

tensor_is_there()
{
	[[ $(as_user fsdpctl get node/t -o -) == abcdefgh ]]
}

start_reader()
{
	mkfifo "$dir/stdin"
	as_user "$build/witness" node/t abcdefgh \
		<"$dir/stdin" >"$dir/reader" 2>&1 &
	reader=$!
	exec {reader_stdin}>"$dir/stdin"
	until_true "a reader holds the tensor" grep -q holds "$dir/reader"
}

stop_reader()
{
	exec {reader_stdin}>&-
	wait "$reader" || fail "$(<"$dir/reader")"
	echo "ok: the reader was not disturbed"
}

# goes_on WHAT COMMAND...: run the command. After it another broker must have
# the same tensors.
goes_on()
{
	local what=$1 before
	before=$(main_pid)
	shift
	check "$what" "$@"
	until_true "$what: another broker answers" is_another_broker "$before"
	check "$what: the tensor is there" tensor_is_there
	check "$what: the reader runs" kill -0 "$reader"
}

journal_has()
{
	inside journalctl -u fsdpd --no-pager | grep -qF -- "$1"
}

# boot: start a container with the build installed, and return when it is up.
boot()
{
	make_root >"$dir/mount.log" 2>&1 || skip "no overlay of / can be mounted"
	can_start_container || skip "no container may be made here: $(tail -n 1 "$dir/boot.log")"
	quiet_services
	printf 'abcdefgh' >"$root/opt/in.raw"
	install_build >"$dir/boot.log" 2>&1 || fail "install"
	before_boot
	start_container
	until_true "systemd is up" is_up
}
