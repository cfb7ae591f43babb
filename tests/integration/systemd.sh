#!/bin/bash
# The broker under a real systemd: its memory in the fd store survives kill -9
# and `systemctl restart`, the socket unit hands over the listening socket, and
# a client goes on as if nothing had been.
#
#   systemd.sh BUILD_DIRECTORY
#
# Boots a container whose root is an overlay of this machine's own, so that
# nothing is copied and nothing is left. Skipped (exit 77) where that is not
# possible: not root, no systemd-nspawn, no overlay.
set -u

build=$(realpath "$1")
# Where the container sees it: its /tmp is its own, and ours may be there.
fsdpd=/opt/fsdp/fsdpd fsdpctl=/opt/fsdp/fsdpctl

skip()
{
	echo "skipped: $*"
	exit 77
}

[[ $(id -u) == 0 ]] || skip "root is needed to boot a container"
command -v systemd-nspawn >/dev/null || skip "no systemd-nspawn"
[[ -x /lib/systemd/systemd ]] || skip "no systemd"

dir=$(mktemp -d /run/fsdp-systemd.XXXXXX)
root=$dir/tmpfs/root
nspawn=
pid1=

finish()
{
	local rc=$?
	if [[ -n $pid1 && $rc != 0 && $rc != 77 ]]; then
		inside journalctl -u fsdpd --no-pager 2>/dev/null | tail -n 30
	fi
	if [[ -n $nspawn ]]; then
		kill -TERM "$nspawn" 2>/dev/null
		wait "$nspawn" 2>/dev/null
	fi
	mountpoint -q "$root" && umount "$root"
	mountpoint -q "$dir/tmpfs" && umount "$dir/tmpfs"
	rm -rf "$dir"
	# Left by systemd-nspawn; in one hierarchy only they would break the
	# next boot, so they go in all.
	find /sys/fs/cgroup -depth -type d \
		\( -path '*/payload*' -o -path '*/supervisor*' \) \
		-exec rmdir {} + 2>/dev/null
	exit $rc
}
trap finish EXIT

inside()
{
	nsenter -t "$pid1" -m -u -i -n -p -C -- env -i \
		PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
		LD_LIBRARY_PATH=/opt/fsdp FSDP_SOCKET=/run/fsdpd/fsdpd.sock "$@"
}

check()
{
	local what=$1
	shift
	if ! "$@"; then
		echo "FAILED: $what"
		exit 1
	fi
	echo "ok: $what"
}

# until WHAT COMMAND...: wait for a state that must come.
until_true()
{
	local what=$1 i
	shift
	for ((i = 0; i < 300; i++)); do
		if "$@" >/dev/null 2>&1; then
			echo "ok: $what"
			return
		fi
		sleep 0.1
	done
	echo "FAILED: $what"
	exit 1
}

make_root()
{
	mkdir -p "$dir/tmpfs" || return 1
	mount -t tmpfs tmpfs "$dir/tmpfs" || return 1
	mkdir "$dir/tmpfs/up" "$dir/tmpfs/work" "$root"
	mount -t overlay overlay -o "lowerdir=/,upperdir=$dir/tmpfs/up,workdir=$dir/tmpfs/work" \
		"$root" || return 1
}

# Nothing of this machine's own services starts in the container.
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

make_units()
{
	cat >"$root/etc/systemd/system/fsdpd.socket" <<-UNIT
	[Socket]
	ListenSequentialPacket=/run/fsdpd/fsdpd.sock
	SocketMode=0666
	UNIT
	cat >"$root/etc/systemd/system/fsdpd.service" <<-UNIT
	[Unit]
	Requires=fsdpd.socket
	After=fsdpd.socket
	StartLimitIntervalSec=0
	[Service]
	Type=notify
	ExecStart=$fsdpd
	Restart=on-failure
	RestartSec=0
	FileDescriptorStoreMax=1024
	WatchdogSec=30
	UNIT
}

boot()
{
	systemd-nspawn -q -D "$root" -M "fsdp$$" --register=no --keep-unit \
		--private-network --bind-ro="$build:/opt/fsdp" --kill-signal=SIGRTMIN+3 --console=pipe \
		--boot </dev/null >"$dir/boot.log" 2>&1 &
	nspawn=$!
	local i
	for ((i = 0; i < 100 && ${#pid1} == 0; i++)); do
		pid1=$(pgrep -P "$nspawn" -o)
		sleep 0.05
	done
	[[ -n $pid1 ]]
}

main_pid()
{
	inside systemctl show -p MainPID --value fsdpd
}

is_another_broker()
{
	local pid
	pid=$(main_pid)
	[[ $pid != 0 && $pid != "$1" ]] && inside "$fsdpctl" ping -c 1
}

make_root >"$dir/mount.log" 2>&1 || skip "no overlay of / can be mounted"
quiet_services
make_units
boot || skip "systemd-nspawn does not boot here: $(tail -n 1 "$dir/boot.log")"
until_true "systemd is up" inside systemctl is-active basic.target

check "the socket unit starts" inside systemctl start fsdpd.socket
printf 'abcdefgh' >"$root/opt/in.raw"
check "the first client starts the broker" inside "$fsdpctl" put /opt/in.raw \
	--name node/t --dtype u8 --shape 8
check "it is the unit's" inside systemctl is-active --quiet fsdpd

before=$(main_pid)
check "kill -9" inside kill -9 "$before"
until_true "another broker answers" is_another_broker "$before"
check "the tensor is there after kill -9" \
	test "$(inside "$fsdpctl" get node/t -o -)" = abcdefgh

before=$(main_pid)
check "systemctl restart" inside systemctl restart fsdpd
until_true "another broker answers" is_another_broker "$before"
check "the tensor is there after a restart" \
	test "$(inside "$fsdpctl" get node/t -o -)" = abcdefgh

check "systemctl stop" inside systemctl stop fsdpd
check "and start" inside systemctl start fsdpd
check "which is an empty broker: systemd 252 drops the store at stop" \
	test -z "$(inside "$fsdpctl" get node/t -o - 2>/dev/null)"
