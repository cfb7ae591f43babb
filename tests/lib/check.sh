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

# check WHAT COMMAND...: the command must succeed.
check()
{
	local what=$1
	shift
	"$@" || fail "$what"
	echo "ok: $what"
}
