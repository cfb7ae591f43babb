#!/bin/bash
# Tests that systemd accepts the installed units, and that it rates the exposure
# of the system's service as low. docs/deploy.md explains each remaining point.
#
#   units.sh BUILD_DIRECTORY
set -u
# shellcheck source=../lib/check.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../lib/check.sh"

build=$(realpath "$1")
# The unit is ten times that of `systemd-analyze security`, where 100 is the
# worst.
MAX_EXPOSURE=20
prefix=$(mktemp -d)
# The user manager looks for its units in this folder.
export XDG_RUNTIME_DIR=$prefix
trap 'rm -rf "$prefix"' EXIT

# verify MANAGER: verify the units. Warnings are failures, too, although the
# exit status does not show them.
verify()
{
	local folder=$prefix/lib/systemd/$1 said

	said=$(systemd-analyze verify "--$1" --man=no "$folder"/*.service \
		"$folder"/*.socket 2>&1) && [[ -z $said ]] ||
		fail "units of $1: $said"
	echo "ok: units of $1"
}

cmake --install "$build" --prefix "$prefix" >"$prefix/log" 2>&1 ||
	fail "install: $(<"$prefix/log")"
verify system
verify user
for unit in fsdpd fsdp-exporter; do
	systemd-analyze security --offline=true --threshold=$MAX_EXPOSURE \
		--no-pager "$prefix/lib/systemd/system/$unit.service" \
		>"$prefix/log" 2>&1 || fail "exposure: $(<"$prefix/log")"
	echo "ok: $(tail -n 1 "$prefix/log")"
done
