#!/bin/bash
# Tests the installed user units under a booted systemd. A user without rights
# on the node has a broker of their own, which the first client starts. Its
# memory survives kill -9 and `systemctl --user restart`, and other users cannot
# use it.
#
#   systemd_user.sh BUILD_DIRECTORY
build=$(realpath "$1")
# shellcheck source=tests/integration/boot_lib.sh
. "$(dirname "$(realpath "$0")")/boot_lib.sh"

runtime=/run/user/1234

before_boot()
{
	# logind, which is reached by D-Bus, starts the user's manager.
	rm -f "$root"/etc/systemd/system/{dbus,systemd-logind}.service
}

# These functions replace those for the system's broker.
as_user()
{
	inside setpriv --reuid 1234 --regid 1234 --clear-groups env \
		HOME=/home/ann XDG_RUNTIME_DIR=$runtime "$@"
}

main_pid()
{
	as_user systemctl --user show -p MainPID --value fsdpd
}

as_other()
{
	inside setpriv --reuid 4321 --regid 4321 --clear-groups env \
		FSDP_SOCKET=$runtime/fsdpd.sock "$@"
}

user_journal_has()
{
	inside journalctl _SYSTEMD_USER_UNIT=fsdpd.service --no-pager |
		grep -qF -- "$1"
}

activation()
{
	check "there is a user" inside useradd --uid 1234 --create-home ann
	# These are the steps that docs/deploy.md describes.
	check "the user's manager is to run without a login" inside \
		loginctl enable-linger ann
	until_true "the user's manager runs" as_user \
		systemctl --user is-active basic.target
	check "the socket unit is enabled and starts" as_user \
		systemctl --user enable --quiet --now fsdpd.socket
	check "no broker runs yet" test "$(main_pid)" = 0
	check "the first client starts the broker" put node/t
	check "it is the unit's, and is ready" as_user \
		systemctl --user is-active --quiet fsdpd
	check "it runs as the user" test \
		"$(inside stat -c %u "/proc/$(main_pid)")" = 1234
	check "it may gain no right" inside grep -qE '^NoNewPrivs:\s*1$' \
		"/proc/$(main_pid)/status"
	check "another user cannot connect" \
		eval '! as_other fsdpctl ping -c 1'
}

configure()
{
	local folder=$root/home/ann/.config/systemd/user/fsdpd.service.d

	install -d "$folder"
	printf '[Service]\nExecStart=\nExecStart=%s --config %s\n' \
		/usr/local/bin/fsdpd /home/ann/fsdpd.conf >"$folder/config.conf"
	# The unit also forbids what LeakSanitizer needs (systemd.sh).
	printf '[Service]\nEnvironment=ASAN_OPTIONS=detect_leaks=0\n' \
		>"$folder/sanitizer.conf"
	printf '[memory]\nwarm_ms = 77s\n' >"$root/home/ann/fsdpd.conf"
	as_user systemctl --user daemon-reload
}

has_warm_ms()
{
	as_user fsdpctl config | grep -qE "warm_ms +$1 +.*/fsdpd.conf:2"
}

reloads()
{
	printf '[memory]\nwarm_ms = 78s\n' >"$root/home/ann/fsdpd.conf"
	check "systemctl --user reload" as_user systemctl --user reload fsdpd
	check "the new value is used" has_warm_ms 78s
}

stops()
{
	check "systemctl --user stop" as_user systemctl --user stop fsdpd
	check "the journal names what a stop drops" user_journal_has \
		"1 tensor (64 bytes)"
	check "the next client starts an empty broker: systemd 252 drops the store" \
		test "$(as_user fsdpctl ls --json)" = "[]"
}

boot
activation
start_reader
goes_on "kill -9" inside sh -c "kill -9 $(main_pid)"
check "a configuration of the user's own" configure
goes_on "systemctl --user restart" as_user systemctl --user restart fsdpd
check "the restarted broker reads it" has_warm_ms 77s
reloads
stop_reader
stops
