# The tests of training source this file; $fsdpctl and $mlp name the programs. A
# test begins in a new folder $dir. It adds what it makes to $scratch, $daemons
# and $ranks, which are removed or killed at the end.
#
# Every check prints a line, and the first one that fails ends the test.
set -u

dir=$(mktemp -d)
scratch=("$dir")
daemons=()
declare -A ranks=()
unset XDG_RUNTIME_DIR

finish()
{
	local rc=$? pid

	for pid in "${ranks[@]}"; do
		kill -9 "$pid" 2>/dev/null
	done
	for pid in "${daemons[@]}"; do
		kill "$pid" 2>/dev/null && wait "$pid"
	done
	((rc)) && cat "$dir"/log* "$dir"/rank* 2>/dev/null
	rm -rf "${scratch[@]}"
	exit $rc
}
trap finish EXIT
cd "$dir" || exit 1

# start_broker SOCKET LOG: start a broker, and wait until it serves.
start_broker()
{
	"$fsdpd" --supervised --socket "$1" 2>"$2" &
	daemons+=($!)
	until FSDP_SOCKET=$1 "$fsdpctl" ping >/dev/null 2>&1; do
		kill -0 "${daemons[-1]}" || return
		sleep 0.01
	done
}

# check WHAT COMMAND...: the command must succeed.
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

# counter NAME: print a counter of fsdpctl status.
counter()
{
	"$fsdpctl" status --json | tr ',{' '\n\n' |
		sed -n "s/.*\"$1\": *\([0-9]*\).*/\1/p" | head -n 1
}

# Wait for all ranks that were started. All must succeed.
all_end()
{
	local rank rc=0

	for rank in "${!ranks[@]}"; do
		wait "${ranks[$rank]}" || rc=1
		unset "ranks[$rank]"
	done
	return $rc
}

# same_as_alone RUN WORLD STEPS: check that the run has the weights of one
# process that trains alone.
same_as_alone()
{
	local run=$1 world=$2 steps=$3

	"$mlp" --alone --world "$world" --steps "$steps" --out alone.bin &&
		cmp "$run.bin" alone.bin
}

# await_step RUN STEP: wait until the broker shows the step as committed.
await_step()
{
	local run=$1 step=$2 end=$((SECONDS + 300)) seen

	while ((SECONDS < end)); do
		seen=$("$fsdpctl" comms --json 2>/dev/null | tr -d '\n' |
			tr '{' '\n' | grep "\"name\": *\"$run\"" |
			sed -n 's/.*"step": *\([0-9]*\).*/\1/p')
		((${seen:-0} >= step)) && return 0
		sleep 0.01
	done
	return 1
}
