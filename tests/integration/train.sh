#!/bin/bash
# Training with sharded parameters ends with the weights of one process that
# trains alone, bit by bit: undisturbed, twice, and when a rank, the worker or
# the broker is killed on the way.
#
#   train.sh FSDPD FSDPCTL MLP
#
# Every check prints a line; the first one that does not hold ends it all.
set -u

fsdpd=$1 fsdpctl=$2 mlp=$3
dir=$(mktemp -d)
export FSDP_SOCKET=$dir/sock
unset XDG_RUNTIME_DIR
daemon=
declare -A ranks=()

finish()
{
	local rc=$? pid

	for pid in "${ranks[@]}"; do
		kill -9 "$pid" 2>/dev/null
	done
	[[ -n $daemon ]] && kill "$daemon" 2>/dev/null && wait "$daemon"
	((rc)) && cat "$dir"/log "$dir"/rank* 2>/dev/null
	rm -rf "$dir"
	exit $rc
}
trap finish EXIT
cd "$dir" || exit 1

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

# A counter of fsdpctl status.
counter()
{
	"$fsdpctl" status --json | tr ',{' '\n\n' |
		sed -n "s/.*\"$1\": *\([0-9]*\).*/\1/p" | head -n 1
}

# rank RUN WORLD STEPS RANK ARGS...: start one.
rank()
{
	local run=$1 world=$2 steps=$3 rank=$4
	shift 4
	"$mlp" --name "$run" --world "$world" --rank "$rank" --steps "$steps" \
		--out "$dir/$run.bin" "$@" >>"$dir/rank$rank" 2>&1 &
	ranks[$rank]=$!
}

# All ranks that were started end well.
all_end()
{
	local rank rc=0

	for rank in "${!ranks[@]}"; do
		wait "${ranks[$rank]}" || rc=1
		unset "ranks[$rank]"
	done
	return $rc
}

same_as_alone()
{
	local run=$1 world=$2 steps=$3

	"$mlp" --alone --world "$world" --steps "$steps" --out alone.bin &&
		cmp "$run.bin" alone.bin
}

# Until a rank has said that a step was committed, by what the broker shows.
await_step()
{
	local run=$1 step=$2 seen

	for _ in {1..6000}; do
		seen=$("$fsdpctl" comms --json 2>/dev/null | tr ',{' '\n\n' |
			sed -n 's/.*"step": *\([0-9]*\).*/\1/p' | tail -n 1)
		((${seen:-0} >= step)) && return 0
		sleep 0.01
	done
	return 1
}

"$fsdpd" --supervised --socket "$FSDP_SOCKET" 2>"$dir/log" &
daemon=$!
for _ in {1..1000}; do
	"$fsdpctl" ping >/dev/null 2>&1 && break
	sleep 0.01
done

for world in 1 2 4; do
	for ((r = 0; r < world; r++)); do
		rank "plain$world" "$world" 30 "$r"
	done
	check "$world ranks train to the end" all_end
	check "$world ranks have the weights of one process" \
		same_as_alone "plain$world" "$world" 30
done

for ((r = 0; r < 4; r++)); do
	rank again 4 30 "$r"
done
check "4 ranks train once more" all_end
check "two runs give the same bits" cmp plain4.bin again.bin

# What the broker shows of a run that is over.
kept()
{
	"$fsdpctl" "$@" | awk -v run=plain4 '$1 == run'
}
check "mlp says which step comms shows" \
	grep -q "committed as step $(kept comms | awk '{ print $7 }') " rank0
# Of unshards in place, which all of these are, the broker is not told.
check "groups counts the reductions of runs that are over" \
	test -z "$(kept groups | awk '$(NF - 1) == 0')"

# The tables, and not only what --json says: those have columns enough?
for verb in comms groups; do
	"$fsdpctl" $verb >tables || exit 1
	check "$verb shows what is kept" grep -q plain4 tables
done
check "what nobody is in can be ended" "$fsdpctl" end plain4 again
if "$fsdpctl" end again 2>err; then
	echo "FAILED: what is not there was ended"
	exit 1
fi
check "and is gone then" grep -q "no communicator 'again'" err

for r in 0 1 3; do
	rank killed 4 40 "$r"
done
rank killed 4 40 2 --die-at 11
victim=${ranks[2]}
wait "$victim" 2>/dev/null
check "rank 2 was killed" test $? = 137
rank killed 4 40 2
check "the others went on with a new rank 2" all_end
check "a death on the way changes no bit" same_as_alone killed 4 40
check "survivors were told who died" grep -q "rank 2 (pid $victim, mlp)" rank0

for r in 0 1; do
	rank worker 2 400 "$r" --executor worker
done
check "the run is under way" await_step worker 20
worker=$(counter worker_pid)
# 0 would be everybody.
check "a worker is there" test "$worker" -gt 0
((worker > 0)) && kill -9 "$worker"
check "the ranks went on after the worker's death" all_end
check "the worker's death changes no bit" same_as_alone worker 2 400

for r in 0 1; do
	rank broker 2 400 "$r"
done
check "the next run is under way" await_step broker 20
kill -9 "$(pgrep -P "$daemon" | head -n 1)"
check "the ranks went on after the broker's death" all_end
check "the broker's death changes no bit" same_as_alone broker 2 400
