#!/bin/bash
# Tests the installed system units under a booted systemd. The socket unit
# starts a broker that runs as a user of its own. Its memory in the fd store
# survives kill -9, a hang, `systemctl restart` and an upgrade, and neither
# readers nor ranks that train are disturbed. A stop and a reboot drop the
# memory, but not what was saved before.
#
#   systemd.sh BUILD_DIRECTORY
build=$(realpath "$1")
# shellcheck source=tests/integration/boot_lib.sh
. "$(dirname "$(realpath "$0")")/boot_lib.sh"

before_boot()
{
	local folder=$root/etc/systemd/system/fsdpd.service.d

	# The test would only have to wait longer for the unit's 30 seconds.
	mkdir -p "$folder"
	printf '[Service]\nWatchdogSec=3\n' >"$folder/watchdog.conf"
	# LeakSanitizer uses ptrace(), which the unit forbids. A build without
	# sanitizers ignores this.
	printf '[Service]\nEnvironment=ASAN_OPTIONS=detect_leaks=0\n' \
		>"$folder/sanitizer.conf"
	install -d -o 1234 -g 1234 "$root/opt/backups"
	# systemd keeps a journal in this directory, which can be read after the
	# container has ended.
	mkdir -p "$root/var/log/journal"
}

# Print the nice values of all tasks of a process, its own first.
nice_values()
{
	inside ps -L -o ni= -p "$1" | xargs
}

activation()
{
	# These are the steps that README describes.
	check "the user is made" inside systemd-sysusers
	check "the directory is made" inside systemd-tmpfiles --create fsdpd.conf
	check "the socket unit is enabled and starts" \
		inside systemctl enable --quiet --now fsdpd.socket
	check "no broker runs yet" test "$(main_pid)" = 0
	check "the first client, an ordinary user, starts the broker" \
		put node/t
	check "it is the unit's, and is ready" \
		inside systemctl is-active --quiet fsdpd
	check "it runs as a user of its own" test \
		"$(inside stat -c %U:%G "/proc/$(main_pid)")" = fsdpd:fsdpd
}

hardening()
{
	local broker status worker

	broker=$(main_pid)
	status=/proc/$broker/status
	check "it has no capability" inside \
		grep -qE '^CapBnd:\s*0+$' "$status"
	check "it may gain none" inside grep -qE '^NoNewPrivs:\s*1$' "$status"
	check "a filter of system calls is on" inside \
		grep -qE '^Seccomp:\s*2$' "$status"
	check "the broker's own sandbox is on" own_sandbox
	check "two ranks train" two_ranks
	check "their shards are given up" as_user fsdpctl end mlp
	worker=$(inside pgrep -P "$broker" -x fsdp-worker)
	check "only the loop's thread is above others" test \
		"$(nice_values "$broker" | tr ' ' '\n' | sort | uniq -c |
			awk '$2 != 0 { print $1, $2 }')" = "1 -10"
	check "no thread of fsdp-worker is" test \
		"$(nice_values "$worker" | tr ' ' '\n' | sort -u)" = 0
	may_spare || return 0
	check "the OOM killer spares the broker" inside \
		grep -qx -- -900 "/proc/$broker/oom_score_adj"
	check "and not fsdp-worker" inside \
		grep -qx 0 "/proc/$worker/oom_score_adj"
}

# Check that the broker is in its sandbox, which the unit must permit. Builds
# with sanitizers have none.
own_sandbox()
{
	journal_has "no sandbox: sanitizers" ||
		as_user fsdpctl status | grep -q "listed system calls, listed files" ||
		{ journal_has "gets no Landlock: Function not implemented" &&
			as_user fsdpctl status | grep -q "listed system calls"; }
}

# Returns whether systemd here can protect a process from the OOM killer, for
# which it needs CAP_SYS_RESOURCE.
may_spare()
{
	local mask
	mask=$(inside awk '/^CapEff:/ { print $2 }' /proc/self/status)
	((0x$mask & 1 << 24))
}

two_ranks()
{
	local rank ranks=()

	for rank in 0 1; do
		as_user "$build/mlp" --executor worker --world 2 --rank $rank \
			>"$dir/rank$rank" 2>&1 &
		ranks+=($!)
	done
	wait "${ranks[0]}" && wait "${ranks[1]}" || {
		cat "$dir/rank0" "$dir/rank1"
		return 1
	}
}

# Start ranks that do all work themselves, and train until they are stopped.
start_training()
{
	local rank

	ranks=()
	for rank in 0 1; do
		as_user "$build/mlp" --world 2 --rank $rank --name ongoing \
			--steps 1000000000 >"$dir/rank$rank" 2>&1 &
		ranks+=($!)
	done
	until_true "two ranks train" test_step 2
}

test_step()
{
	(($(last_step) >= $1))
}

last_step()
{
	as_user fsdpctl comms --json | sed -n 's/.*"step": *\([0-9]*\).*/\1/p'
}

# A rank prints a line if its run has failed.
trains_on()
{
	until_true "$1: the ranks commit further steps" \
		test_step $(($(last_step) + 2))
	check "$1: no rank has noticed" test ! -s "$dir/rank0" -a ! -s "$dir/rank1"
}

stop_training()
{
	inside pkill -x mlp
	wait "${ranks[@]}"
	check "their shards are given up, too" as_user fsdpctl end ongoing
}

configure()
{
	local folder=$root/etc/fsdpd/fsdpd.conf.d

	mkdir -p "$folder"
	printf '[%s]\n%s = %s\n' "$@" >"$folder/site.conf"
}

has_warm_ms()
{
	as_user fsdpctl config | grep -qE "warm_ms +$1 +.*/site.conf:2"
}

# Read the metrics as a scraper on this machine does.
broker_is_up()
{
	inside /usr/bin/python3 -c "import urllib.request as r
print(r.urlopen('http://127.0.0.1:9471/metrics').read().decode())" |
		grep -qx "fsdpd_up 1"
}

# The group of the exporter is in no file: only libnss_systemd knows it.
reload_finds_group()
{
	configure access admin_group fsdp-exporter
	inside getent group fsdp-exporter >/dev/null &&
		inside systemctl reload fsdpd &&
		as_user fsdpctl config | grep -q "admin_group.*/site.conf:2"
}

exports()
{
	check "the exporter starts" inside systemctl start fsdp-exporter
	check "its metrics say that the broker is up" broker_is_up
	check "a reload finds a group of a name service" reload_finds_group
	check "its unit keeps it from nothing" \
		eval '! inside journalctl -u fsdp-exporter | grep "not permitted"'
	check "it ends" inside systemctl stop fsdp-exporter
}

reloads()
{
	local before

	before=$(main_pid)
	configure memory warm_ms 77s
	check "systemctl reload" inside systemctl reload fsdpd
	check "the new value is used" has_warm_ms 77s
	configure memory warm_ms 77x
	check "systemctl reload fails on a bad file" \
		eval '! inside systemctl reload fsdpd'
	check "the journal names its line" journal_has "/site.conf:2: "
	check "the value has stayed" has_warm_ms 77s
	check "the same broker runs" test "$(main_pid)" = "$before"
	check "the tensor is there" tensor_is_there
	configure memory warm_ms 78s
}

watchdog_kills_it()
{
	inside kill -STOP "$(main_pid)"
}

# Replace the file of the running program, as dpkg does.
upgrade()
{
	local program=/usr/local/bin/fsdpd

	cp "$root$program" "$root$program.new" &&
		echo "another build" >>"$root$program.new" &&
		mv "$root$program.new" "$root$program" &&
		inside systemctl restart fsdpd
}

runs_upgraded()
{
	inside cmp "/proc/$(main_pid)/exe" /usr/local/bin/fsdpd
}

# Kill the broker, and let the next starts find a catalog of another layout, as
# those of another version do, until one of them says so.
other_version_starts()
{
	inside bash -c '
		set_layout()
		{
			printf "\\x$(printf %x "$1")" |
				dd bs=1 seek=8 conv=notrunc of=/dev/fd/3
		}
		file=$(find /proc/$1/fd -lname "*fsdpd-catalog*" | head -n 1)
		[[ $file ]] && exec 3<>"$file" || exit
		set_layout 99
		kill -9 "$1"
		until journalctl -u fsdpd | grep -q "catalog has layout 99"; do
			((SECONDS < $2)) && sleep 0.1 || exit
		done
		set_layout "$(fsdpd --version | sed -n "s/^catalog layout //p")"
		' other_version_starts "$(main_pid)" "$HANG_SECONDS"
}

# save WHAT: save all tensors to a directory that survives the container.
save()
{
	check "$1: all is saved" as_user fsdpctl save "/opt/backups/$1" node/
}

restore()
{
	check "$1: it is restored" as_user fsdpctl restore "/opt/backups/$1"
	check "$1: the tensor is there" tensor_is_there
}

stops()
{
	save stop
	check "systemctl stop" inside systemctl stop fsdpd
	check "the journal names what a stop drops" journal_has \
		"1 tensor (64 bytes)"
	check "the next client starts an empty broker: systemd 252 drops the store" \
		test "$(inside fsdpctl ls --json)" = "[]"
	restore stop
}

reboots()
{
	check "another tensor is published" put node/u
	save reboot
	kill -TERM "$nspawn"
	wait "$nspawn"
	nspawn='' pid1=''
	journalctl -D "$root/var/log/journal" -u fsdpd --no-pager |
		grep -qF "2 tensors (128 bytes)" ||
		fail "the journal names what a reboot drops"
	echo "ok: the journal names what a reboot drops"
	start_container
	until_true "systemd is up again" is_up
	check "no broker runs yet" test "$(main_pid)" = 0
	restore reboot
	check "the other tensor, too" as_user fsdpctl stat node/u
}

may_connect()
{
	inside setpriv --reuid 1234 --regid "$1" --clear-groups fsdpctl ping -c 1
}

limits_to_group()
{
	local folder=$root/etc/systemd/system/fsdpd.socket.d

	mkdir -p "$folder"
	printf '[Socket]\nSocketGroup=users\nSocketMode=0660\n' \
		>"$folder/group.conf"
	inside systemctl daemon-reload
	check "both units stop" inside systemctl stop fsdpd.socket fsdpd
	check "both units start" inside systemctl start fsdpd.socket fsdpd
	check "a member of the socket's group connects" may_connect users
	check "other users do not" eval '! may_connect 1234'
	check "the broker's own user reloads it" \
		inside systemctl reload fsdpd
}

boot
activation
check "nothing is wrong with the units" inside systemd-analyze verify \
	--man=no fsdpd.socket fsdpd.service
hardening
exports
start_reader
reloads
start_training
goes_on "kill -9" inside sh -c "kill -9 $(main_pid)"
trains_on "kill -9"
goes_on "a hang" watchdog_kills_it
check "the journal has the watchdog" journal_has "Watchdog timeout"
goes_on "systemctl restart" inside systemctl restart fsdpd
goes_on "an upgrade" upgrade
trains_on "an upgrade"
goes_on "a start by another version" other_version_starts
stop_training
check "the upgraded program runs" runs_upgraded
check "a restart reads the configuration" has_warm_ms 78s
stop_reader
stops
reboots
limits_to_group
