# Tests in shell source this file. Each check prints a line, and the first one
# that fails ends the test.

skip()
{
	echo "skipped: $*"
	exit 77
}

fail()
{
	echo "FAILED: $*"
	exit 1
}

# lack WHAT: a package is missing. Root can have it installed by scripts/setup, so
# nothing is skipped for want of it.
lack()
{
	[[ $(id -u) == 0 ]] && fail "there is no $*; run scripts/setup test"
	skip "there is no $*; scripts/setup test installs it"
}

# check WHAT COMMAND...: the command must succeed.
check()
{
	local what=$1
	shift
	"$@" || fail "$what"
	echo "ok: $what"
}
