#!/bin/bash
# Tests shell completion: fsdpctl prints the possible words, and bash uses them.
#
#   ctl_complete.sh FSDPD FSDPCTL HOARD
fsdpd=$1 fsdpctl=$2 hoard=$3
. "$(dirname "$0")/ctl_lib.sh"
scripts=$(dirname "$0")/../../client/ctl

# offers WORDS...: print the candidates for the last word in one line.
offers()
{
	"$fsdpctl" complete -- "$@" | cut -f 1 | tr '\n' ' '
}

offer()
{
	local what=$1 want=$2
	shift 2
	check "$what" test "$(offers "$@")" = "$want"
}

# This works without a broker.
offer "verbs complete" "save " sa
offer "after a global option, too" "save " --json sa
offer "options are those of the verb" "--long " ls --lo
offer "an option's value is one of its words" "bytes " ls --sort b
offer "also after a letter" ":files " get x -o ""
offer "names need a broker" "" stat x
offer "files are the shell's" ":files " load ""
offer "levels are words" "warning " log-level w
offer "an unknown verb completes to nothing" "" nix --l
for verb in $(offers ""); do
	[[ $verb = help ]] || check "help of $verb" grep -q "^usage: fsdpctl $verb " <(ctl help "$verb")
done

start_broker
head -c 4 /dev/zero >x.raw
ctl put x.raw --dtype u8 --shape 4 --name run/a >/dev/null
ctl put x.raw --dtype u8 --shape 4 --name run/b >/dev/null
offer "names come from the broker" "run/a run/b " stat r
offer "of the socket that is named" "run/a run/b " \
	--socket "$FSDP_SOCKET" rm x r
offer "the second operand has its own kind" "run/a run/b " save dir r

"$python" - >set.safetensors <<'PY'
import json, sys
header = json.dumps({name: {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i, name in enumerate("ab")}).encode()
sys.stdout.buffer.write(len(header).to_bytes(8, "little") + header + bytes(2))
PY
ctl load set.safetensors --prefix set/ >/dev/null
offer "a bundle comes once, with its members" "set/ set/a set/b " stat s
offer "and alone where only a bundle can be" "set/ " load --prefix s

mkfifo go
"$hoard" memory <go >ticket &
"$hoard" board <go &
exec 9>go
eventually "there is a ticket" test -s ticket
eventually "and a communicator" ctl_json "[c['name'] for c in d] == ['team/job']" comms
secret=$(cat ticket)
offer "tickets are offered without their secret" "${secret:0:16} " revoke ""
offer "communicators, too" "team/job " groups te
gpu=$(offers load --device GPU-)
check "and devices" test "${gpu%% *}" = \
	"$(ctl devices --json | "$python" -c 'import json, sys; print(json.load(sys.stdin)["devices"][0]["device"])')"
ctl stat late --timeout 1h >late &
waiting=$!
eventually "stat waits for a name" ctl_json "d['counters']['waiters'] == 1" status
ctl put x.raw --dtype u8 --shape 4 --name late >/dev/null
check "and shows it" wait $waiting
check "with its version" grep -q "^version    1$" late

# Complete in bash as if a user had typed these words.
COMP_WORDS=("$fsdpctl" stat run/) COMP_CWORD=2
compopt() { :; }
. "$scripts/fsdpctl.bash"
_fsdpctl
check "bash completes names" test "${COMPREPLY[*]}" = "run/a run/b"
name='bad/x;$(touch made) y'
ctl put x.raw --dtype u8 --shape 4 --name "$name" >/dev/null
for typed in bad/ 'bad/x\;\$\('; do
	COMP_WORDS=("$fsdpctl" stat "$typed") COMP_CWORD=2
	_fsdpctl
	check "a name that is a command is quoted after $typed" \
		test "${COMPREPLY[*]}" = 'bad/x\;\$\(touch\ made\)\ y'
done
COMP_WORDS=("$fsdpctl" load x.r) COMP_CWORD=2
_fsdpctl
check "and files" test "${COMPREPLY[*]}" = x.raw
for shell in zsh fish; do
	check "$shell reads its script" $shell -n "$scripts/fsdpctl.$shell"
done
