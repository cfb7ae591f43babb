#!/bin/bash
# Tests that training with sharded parameters ends with the same weights as one
# process that trains alone, bit by bit: when it is undisturbed, when it is run
# twice, and when a rank, the worker or the broker is killed during the run.
#
#   train.sh FSDPD FSDPCTL MLP
fsdpd=$1 fsdpctl=$2 mlp=$3
# shellcheck source=tests/integration/train_lib.sh
. "${0%/*}/train_lib.sh"
export FSDP_SOCKET=$dir/sock

# rank RUN WORLD STEPS RANK ARGS...: start a rank.
rank()
{
	local run=$1 world=$2 steps=$3 rank=$4
	shift 4
	"$mlp" --name "$run" --world "$world" --rank "$rank" --steps "$steps" \
		--out "$dir/$run.bin" "$@" >>"$dir/rank$rank" 2>&1 &
	ranks[$rank]=$!
}

start_broker "$FSDP_SOCKET" "$dir/log"

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

# kept VERB: print what the broker shows of a run that has ended.
kept()
{
	"$fsdpctl" "$@" | awk -v run=plain4 '$1 == run'
}
check "mlp says which step comms shows" \
	grep -q "committed as step $(kept comms | awk '{ print $7 }') " rank0
check "groups counts the reductions of runs that are over" \
	test -z "$(kept groups | awk '$(NF - 1) == 0')"
# The ranks do not tell the broker of unshards in place.
check "and the gathers of groups that are copied" \
	test -z "$(kept groups | awk '!/ in place / && $(NF - 2) == 0')"
check "of which there is one" test -n "$(kept groups | grep -v " in place ")"

# Check the tables, too, and not only --json.
for verb in comms groups; do
	"$fsdpctl" $verb >tables || exit 1
	check "$verb shows what is kept" grep -q plain4 tables
done
# The plan of a group must name the same parameters in both forms.
group=$(kept groups | awk 'NR == 1 { print $2 }')
"$fsdpctl" groups plain4 "$group" >plan || exit 1
check "a plan says over what it is" \
	grep -q "^4 shards, 1 replica, layout .*, hash [0-9a-f]*$" plan
"$fsdpctl" groups plain4 "$group" --json >plan.json || exit 1
check "and lists the parameters, for programs the same" \
	cmp <(awk 'NR > 3 { print $1 }' plan) \
	<(sed -n 's/.*"name": "\([^"]*\)".*/\1/p' plan.json)
check "and at least one" test -n "$(sed -n 4p plan)"
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

# await_executor RUN EXECUTOR: wait until comms shows this executor for the run.
await_executor()
{
	local end=$((SECONDS + 300))

	while ((SECONDS < end)); do
		"$fsdpctl" comms | awk -v run="$1" -v executor="$2" '
			$1 == run && $6 == executor { found = 1 }
			END { exit !found }' && return 0
		sleep 0.01
	done
	return 1
}

# The run cannot end while a rank is missing.
rank worker 2 400 0 --executor worker
check "fsdp-worker is shown as executor" await_executor worker worker
check "top counts one communicator" grep -q "^collectives: 1 communicator; " \
	<("$fsdpctl" top --batch -n 1)
rank worker 2 400 1 --executor worker
check "the run is under way" await_step worker 20
worker=$(counter worker_pid)
# kill -9 0 would kill all processes of the group.
check "a worker is there" test "$worker" -gt 0
kill -9 "$worker"
check "the ranks went on after the worker's death" all_end
check "the worker's death changes no bit" same_as_alone worker 2 400

rank broker 2 400 0
check "the ranks are shown as executors" await_executor broker rank
rank broker 2 400 1
check "the next run is under way" await_step broker 20
kill -9 "$(pgrep -P "${daemons[0]}" | head -n 1)"
check "the ranks went on after the broker's death" all_end
check "the broker's death changes no bit" same_as_alone broker 2 400
