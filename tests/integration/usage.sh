#!/bin/bash
# Tests that each program refuses an unknown option with status 2 and says how
# to get its help, and that the help exists. The argument is the build folder.
set -u

check()
{
	local what=$1
	shift
	"$@" || { echo "FAILED: $what" && cat "$said" && exit 1; }
	echo "ok: $what"
}

# program [VERB]: check the program, which has no option --nothing.
check_usage()
{
	local name="${*##*/}"

	"$@" --nothing >/dev/null 2>"$said"
	check "$name: an unknown option is wrong usage" test $? = 2
	check "$name: the way to the help is named" \
		grep -q "see $name --help$" "$said"
	check "$name: it is one or two lines" test "$(wc -l <"$said")" -le 2
	"$@" --help >"$said" 2>&1
	check "$name: the help is there" test $? = 0
}

said=$(mktemp)
trap 'rm -f "$said"' EXIT
for program in fsdpd fsdp-worker fsdp-exporter fsdp-bench fsdpctl; do
	check_usage "$1/$program"
done
check_usage "$1/fsdpctl" ls

# A check of the configuration prints its values with their origins, and its
# errors.
"$1/fsdpd" --config /dev/null --set warm_ms=250ms --check-config >"$said" 2>&1
check "a configuration is checked" test $? = 0
check "each value has its origin" grep -qx "warm_ms = 250ms ; --set" "$said"
"$1/fsdpd" --config /dev/null --set warm_ms=1x --check-config >"$said" 2>&1
check "a wrong one is refused" test $? = 1
check "and named" grep -q "warm_ms=1x" "$said"
for program in fsdpd fsdp-worker fsdp-exporter fsdpctl; do
	"$1/$program" --version >"$said" 2>&1
	check "$program has a version" grep -qE "^$program [0-9]+\.[0-9]" "$said"
done
