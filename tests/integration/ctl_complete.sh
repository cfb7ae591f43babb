#!/bin/bash
# Tests shell completion: fsdpctl prints what can follow, and bash uses it.
#
#   ctl_complete.sh FSDPD FSDPCTL HOARD
fsdpd=$1 fsdpctl=$2
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

# Complete in bash, as if a person typed.
COMP_WORDS=("$fsdpctl" stat run/) COMP_CWORD=2
compopt() { :; }
. "$scripts/fsdpctl.bash"
_fsdpctl
check "bash completes names" test "${COMPREPLY[*]}" = "run/a run/b"
COMP_WORDS=("$fsdpctl" load x.r) COMP_CWORD=2
_fsdpctl
check "and files" test "${COMPREPLY[*]}" = x.raw
for shell in zsh fish; do
	command -v $shell >/dev/null || continue
	check "$shell reads its script" $shell -n "$scripts/fsdpctl.$shell"
done
