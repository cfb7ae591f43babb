#!/bin/bash
# Tests the prolog, the epilog and the job scripts of docs/deploy.md in a Slurm
# cluster of this one node. All of its processes run in namespaces and end with
# this script, which is process 1 there.
#
#   slurm.sh BUILD_DIRECTORY
# shellcheck disable=SC2016 # for the shells of jobs
set -u
# shellcheck source=../lib/check.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../lib/check.sh"

build=$(realpath "$1")
deploy=$(dirname "$(realpath "$0")")/../../docs/deploy.md
dir=/run/cluster
HANG_SECONDS=200

enter_namespaces()
{
	local program

	[[ $(id -u) == 0 ]] || skip "root is needed to run Slurm's daemons"
	for program in slurmctld slurmd sbatch munged ip; do
		command -v "$program" >/dev/null || lack "$program"
	done
	unshare --mount --net --pid --fork --uts true 2>/dev/null ||
		skip "no namespaces may be made here"
	exec unshare --mount --net --pid --fork --kill-child --mount-proc --uts \
		"$0" "$build" inside
}
(($# > 1)) || enter_namespaces

finish()
{
	local rc=$?
	((rc == 0)) || tail -n 20 "$dir"/*.log "$dir"/home/*.out 2>/dev/null
	exit $rc
}
trap finish EXIT

# until WHAT COMMAND...: wait until the command succeeds, which it must.
until_true()
{
	local what=$1
	shift
	until "$@" >/dev/null 2>&1; do
		((SECONDS < HANG_SECONDS)) || fail "$what"
		sleep 0.1
	done
	echo "ok: $what"
}

# Print the block in the section about Slurm that contains the text.
block()
{
	awk -v text="$1" '
		/^## / { section = $2 }
		section != "Slurm" { next }
		/^```$/ { if (inside && index(lines, text)) printf "%s", lines
			inside = !inside; lines = ""; next }
		inside { lines = lines $0 "\n" }' "$deploy"
}

# script FILE TEXT [LINE...]: make a program of the block that contains the
# text, followed by more lines.
script()
{
	local file=$1 text=$2
	shift 2
	block "$text" >"$file"
	[[ -s $file ]] || fail "docs/deploy.md has a block with $text"
	(($# == 0)) || printf '%s\n' "$@" >>"$file"
	chmod 755 "$file"
}

# The users, the name of the node and the folders exist only in these
# namespaces.
prepare()
{
	local file

	mount -t tmpfs -o mode=755 tmpfs /run || return
	mkdir -p "$dir"/{mounts,home,munge,state,spool} /run/fsdpd
	chmod 777 "$dir/home"
	cp /etc/passwd /etc/group "$dir/mounts"
	echo "fsdptest:x:1234:1234::$dir/home:/bin/sh" >>"$dir/mounts/passwd"
	echo "fsdptest:x:1234:" >>"$dir/mounts/group"
	echo "127.0.0.1 localhost node" >"$dir/mounts/hosts"
	for file in passwd group hosts; do
		mount --bind "$dir/mounts/$file" "/etc/$file" || return
	done
	mount -t tmpfs tmpfs /usr/local/bin &&
		ln -s "$build/fsdpd" "$build/fsdpctl" "$build/mlp" \
			"$build/witness" /usr/local/bin &&
		mount -t tmpfs tmpfs /etc/slurm || return
	mkdir /etc/slurm/prolog.d /etc/slurm/epilog.d
	hostname node
	# Slurm looks up addresses only if there is one other than the loopback
	# address.
	ip link set lo up && ip address add 192.0.2.1/32 dev lo
}

configure()
{
	cat >/etc/slurm/slurm.conf <<END
ClusterName=test
SlurmctldHost=node(127.0.0.1)
SlurmUser=root
AuthInfo=socket=$dir/munge/socket
MpiDefault=none
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_min_interval=100000
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
NodeName=node NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
$(block Prolog=)
END
	script /etc/slurm/prolog.d/fsdpd "fsdpctl ping --count 1 >/dev/null
"
	script /etc/slurm/epilog.d/fsdpd "fsdpctl rm --prefix"
}

start()
{
	head -c 32 /dev/urandom >"$dir/munge/key"
	chmod 600 "$dir/munge/key"
	munged --force --foreground --num-threads=1 \
		--socket="$dir/munge/socket" --key-file="$dir/munge/key" \
		--pid-file="$dir/munge/pid" --seed-file="$dir/munge/seed" \
		>"$dir/munge.log" 2>&1 &
	until_true "munged listens" test -S "$dir/munge/socket"
	slurmctld -D >"$dir/slurmctld.log" 2>&1 &
	slurmd -D -N node >"$dir/slurmd.log" 2>&1 &
	start_broker
	until_true "the node is idle" node_is idle
}

start_broker()
{
	fsdpd --socket /run/fsdpd/fsdpd.sock </dev/null >>"$dir/fsdpd.log" 2>&1 &
	broker=$!
	until_true "a broker answers" fsdpctl ping --count 1
}

node_is()
{
	[[ $(sinfo -h -o %T) == "$1" ]]
}

# submit FILE [OPTION...]: submit a job and print its number.
submit()
{
	local file=$1
	shift
	setpriv --reuid 1234 --regid 1234 --clear-groups --inh-caps=-all \
		sbatch --parsable -D "$dir/home" "$@" "$file"
}

# Slurm lists a job until its epilog has ended.
all_ended()
{
	[[ -z $(squeue -h -o %i) ]]
}

has_printed()
{
	grep -q -- "$2" "$dir/home/slurm-$1.out"
}

nothing_is_left()
{
	[[ $(fsdpctl ls --json) == "[]" && $(fsdpctl comms --json) == "[]" ]] &&
		fsdpctl status --json | grep -q '"bytes_live": *0[,}]'
}

job()
{
	printf '%s\n' '#!/bin/sh' "$@" >"$dir/home/job"
}

publishes_and_trains()
{
	local id

	job 'fsdpctl put in.raw --name job-$SLURM_JOB_ID/t --dtype u8 --shape 8' \
		'mlp --world 1 --rank 0 --steps 2 --name job-$SLURM_JOB_ID' \
		'fsdpctl ls job- ; fsdpctl comms'
	id=$(submit "$dir/home/job")
	until_true "a job ends" all_ended
	check "it had published a tensor" has_printed "$id" "^job-$id/t "
	check "and had trained" has_printed "$id" "^job-$id .*kept"
	check "the epilog has removed both" nothing_is_left
	check "and has left the node in service" node_is idle
}

# Two steps hold a tensor; one is killed, and the job is then cancelled.
is_killed()
{
	local id

	job 'fsdpctl put in.raw --name job-$SLURM_JOB_ID/t --dtype u8 --shape 8' \
		'hold() { srun -n1 --exact sh -c \
			"sleep infinity | witness job-$SLURM_JOB_ID/t abcdefgh"; }' \
		'hold & hold & wait %1 %2 ; echo both have ended'
	id=$(submit "$dir/home/job" -n 2)
	until_true "two steps of a job hold a tensor" holders_are "$id" 2
	kill -9 "$(pgrep -nx witness)"
	until_true "the hold of a killed step ends" holders_are "$id" 1
	scancel "$id"
	until_true "the cancelled job ends" all_ended
	check "nothing is left of it" nothing_is_left
}

holders_are()
{
	[[ $(fsdpctl who "job-$1/t" --json | grep -o '"pid"' | wc -l) == "$2" ]]
}

array_shares()
{
	local id header='{"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8]}}'

	printf '%b%s%s' '\x35\0\0\0\0\0\0\0' "$header" abcdefgh \
		>"$dir/home/model.safetensors"
	script "$dir/home/array" "fsdpctl load --once" \
		'fsdpctl get "array-$SLURM_ARRAY_JOB_ID/w" -o -'
	id=$(submit "$dir/home/array" --array=0-3%2)
	until_true "an array ends" all_ended
	check "each task had the model" test \
		"$(grep -l abcdefgh "$dir"/home/slurm-"$id"_* | wc -l)" = 4
	check "one had loaded it" test \
		"$(grep -L "is there" "$dir"/home/slurm-"$id"_* | wc -l)" = 1
	check "no epilog has removed it" fsdpctl rm "array-$id/"
}

has_its_own_broker()
{
	local id

	script "$dir/home/own" "fsdpd --supervised &" \
		'fsdpctl put in.raw --name t --dtype u8 --shape 8' \
		'srun fsdpctl ls'
	id=$(submit "$dir/home/own")
	until_true "a job with a broker of its own ends" all_ended
	check "its step found that broker" has_printed "$id" "^t "
	check "which has ended" test "$(pgrep -cx fsdpd)" = 1
	check "the node's broker knew nothing of it" nothing_is_left
}

needs_a_broker()
{
	kill "$broker"
	wait "$broker"
	job 'touch has-run'
	submit "$dir/home/job" >/dev/null
	until_true "without a broker the node is taken out of service" \
		node_is drained
	check "Slurm says why" test "$(sinfo -h -R -o %E)" = "Prolog error"
	check "slurmd's log has the cause" grep -q "cannot connect to fsdpd" \
		"$dir/slurmd.log"
	check "the job has not run" test ! -e "$dir/home/has-run"
}

unset FSDP_SOCKET XDG_RUNTIME_DIR SLURM_CONF
export PATH=/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
check "the node is prepared" prepare
configure
printf abcdefgh >"$dir/home/in.raw"
start
publishes_and_trains
is_killed
array_shares
has_its_own_broker
needs_a_broker
