# The tests of fsdpctl source this file. $fsdpd and $fsdpctl name the programs.
#
# Every check prints a line, and the first one that fails ends the test. Python
# with numpy makes and compares files, because it shares no code with fsdpctl:
# $PYTHON, or the first python3 that has numpy. Without it the test is skipped,
# or fails if root runs it.
set -u
# shellcheck source=../lib/check.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../lib/check.sh"

python=
for candidate in ${PYTHON:-python3 /usr/bin/python3}; do
	if "$candidate" -c 'import numpy' 2>/dev/null; then
		python=$candidate
		break
	fi
done
if [[ -z $python ]]; then
	lack "python3 with numpy (set PYTHON to one)"
fi
dir=$(mktemp -d)
gpu_dir=$(mktemp -d /dev/shm/fsdp-ctl-XXXXXX)
export FSDP_SOCKET=$dir/sock FAKECUDA_DIR=$gpu_dir
unset XDG_RUNTIME_DIR
mounted=
daemon=

finish()
{
	local rc=$?
	[[ -n $daemon ]] && kill "$daemon" 2>/dev/null && wait "$daemon"
	[[ -n $mounted ]] && umount "$mounted"
	((rc)) && cat "$dir/log" "$dir/err" 2>/dev/null
	rm -rf "$dir" "$gpu_dir"
	exit $rc
}
trap finish EXIT
cd "$dir" || exit 1

ctl()
{
	"$fsdpctl" "$@" 2>"$dir/err"
}

# refuse WHAT CODE TEXT ARGS...: fsdpctl must exit with CODE and print TEXT.
refuse()
{
	local what=$1 code=$2 text=$3 got
	shift 3
	"$fsdpctl" "$@" >"$dir/out" 2>"$dir/err"
	got=$?
	if ((got != code)) || ! grep -qF -- "$text" "$dir/err"; then
		echo "FAILED: $what: exit $got"
		exit 1
	fi
	echo "ok: $what"
}

# eventually WHAT COMMAND...: the command must succeed within 300 seconds.
eventually()
{
	local what=$1 end=$((SECONDS + 300))
	shift
	while ((SECONDS < end)); do
		if "$@" 2>/dev/null; then
			echo "ok: $what"
			return
		fi
		sleep 0.02
	done
	echo "FAILED: $what, after 300 seconds"
	exit 1
}

# json CONDITION: check that the condition is true for the document d on
# standard input.
json()
{
	"$python" -c '
import json, sys
d = json.load(sys.stdin)
sys.exit(not eval(sys.argv[1]))' "$1"
}

ctl_json()
{
	local condition=$1
	shift
	ctl "$@" --json | json "$condition"
}


# start_broker OPTIONS...
start_broker()
{
	"$fsdpd" --supervised --socket "$FSDP_SOCKET" "$@" >"$dir/log" 2>&1 &
	daemon=$!
	eventually "the broker answers" ctl ping
}
