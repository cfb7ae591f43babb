#!/bin/bash
# Tests training on devices, with the fakes of the driver and of NCCL: with one
# broker, with two brokers that stand for two nodes, and with deaths during the
# run.
#
#   train_devices.sh FSDPD FSDPCTL MLP [EXECUTOR]
#
# EXECUTOR is "rank" or "worker".
#
# The fakes add in the order of the ranks, as one process alone does, so the
# weights are the same, bit by bit. On a real driver, with FSDP_TEST_GPUS
# devices, this holds for two ranks. If there is only one device, the ranks
# share it, and NCCL treats each of them as a node.
fsdpd=$1 fsdpctl=$2 mlp=$3 executor=${4:-rank}
# shellcheck source=tests/integration/train_lib.sh
. "${0%/*}/train_lib.sh"
FAKECUDA_DIR=$(mktemp -d -p /dev/shm)
scratch+=("$FAKECUDA_DIR")
export FAKECUDA_DIR FAKECUDA_DEVICES=4 FSDP_SOCKET=$dir/node1
n_gpus=${FSDP_TEST_GPUS:-4}
most=4
((n_gpus < 4)) && most=2
[[ -v FSDP_TEST_GPUS ]] && export NCCL_SOCKET_IFNAME=${NCCL_SOCKET_IFNAME:-lo}

# rank NODE RUN WORLD STEPS RANK ARGS...: start a rank on the device that has
# its number.
rank()
{
	local node=$1 run=$2 world=$3 steps=$4 rank=$5
	local shared=()
	shift 5
	((world > n_gpus)) && shared=("NCCL_HOSTID=node-$rank")
	env "${shared[@]}" FSDP_SOCKET="$dir/node$node" "$mlp" --name "$run" --world "$world" \
		--rank "$rank" --steps "$steps" --out "$dir/$run.bin" \
		--device $((rank % n_gpus)) --executor "$executor" "$@" >>"$dir/rank$rank" 2>&1 &
	ranks[$rank]=$!
}

start_broker "$dir/node1" "$dir/log1"
start_broker "$dir/node2" "$dir/log2"

for ((world = 1; world <= most; world *= 2)); do
	for ((r = 0; r < world; r++)); do
		rank 1 "plain$world" "$world" 10 "$r"
	done
	check "$world ranks train to the end" all_end
	check "$world ranks have the weights of one process" \
		same_as_alone "plain$world" "$world" 10
done

half=$((most / 2)) last=$((most - 1))
for ((r = 0; r < most; r++)); do
	rank $((1 + r / half)) nodes $most 10 "$r" --local $half --id "$dir/id"
done
check "$most ranks of 2 nodes train to the end" all_end
check "2 nodes have the weights of one process" same_as_alone nodes $most 10

if [[ $executor == rank ]]; then
	for ((r = 0; r < most; r++)); do
		rank $((1 + r / half)) offload $most 10 "$r" --local $half --id "$dir/id" --offload
	done
	check "$most ranks of 2 nodes train with their shards on the host" all_end
	check "shards on the host change no bit" same_as_alone offload $most 10
fi

for ((r = 0; r < most; r++)); do
	((r == half)) || rank 1 killed $most 20 "$r"
done
rank 1 killed $most 20 $half --die-at 6
victim=${ranks[$half]}
wait "$victim" 2>/dev/null
check "rank $half was killed" test $? = 137
rank 1 killed $most 20 $half
check "the others went on with a new rank $half" all_end
check "a death on the way changes no bit" same_as_alone killed $most 20

for ((r = 0; r < last; r++)); do
	rank $((1 + r / half)) torn $most 20 "$r" --local $half --id "$dir/id"
done
rank 2 torn $most 20 $last --local $half --id "$dir/id" --die-at 6
wait "${ranks[$last]}" 2>/dev/null
check "rank $last, of the other node, was killed" test $? = 137
rank 2 torn $most 20 $last --local $half --id "$dir/id"
check "both nodes went on with a new rank $last" all_end
check "a death on another node changes no bit" same_as_alone torn $most 20

for r in 0 1; do
	rank 1 broker 2 200 "$r"
done
check "the run is under way" await_step broker 10
kill -9 "$(pgrep -P "${daemons[0]}" | head -n 1)"
check "the ranks went on after the broker's death" all_end
check "the broker's death changes no bit" same_as_alone broker 2 200

[[ $executor == worker ]] || exit 0
for r in 0 1; do
	rank 1 worker 2 200 "$r"
done
check "the next run is under way" await_step worker 10
worker=$(counter worker_pid)
# kill -9 0 would kill all processes of the group.
check "a worker is there" test "$worker" -gt 0
kill -9 "$worker"
check "the ranks went on after the worker's death" all_end
check "the worker's death changes no bit" same_as_alone worker 2 200
