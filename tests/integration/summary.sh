#!/bin/bash
# Tests what scripts/test makes of CTest's output. Every skipped test must count
# and be listed with its reason, whatever program names it. Every program that
# hung and was run again must be listed, too.
#
#   summary.sh SOURCE_DIR
set -u

source=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

fail()
{
	echo "FAILED: $*"
	head -n 100 "$dir"/*
	exit 1
}

# ran NAME END: write the output of CTest for a program that ended in this way
# and printed standard input.
ran()
{
	printf ' 1/99 Test #7: %s ...%s   0.25 sec\n' "$1" "$2" >>"$dir/ctest"
	printf '%s\n' "1/99 Testing: $1" "Output:" "$(cat)" "<end of output>" \
		"\"$1\" time elapsed: 00:00:00" >>"$dir/log"
}

# expect FILE LINE...: the file has these lines, in any order.
expect()
{
	local file=$1
	shift
	diff <(printf '%s\n' "$@" | sort) <(sort "$dir/$file") >"$dir/diff" ||
		fail "the file $file is not as expected"
}

ran unit/test_some "   Passed" <<'EOF'
[SKIP] some::one: needs 2 GPUs
[SKIP] some::other: needs 2 GPUs
[====] Synthesis: Tested: 5 | Passing: 5 | Failing: 0 | Crashing: 0
EOF
ran python/most "   Passed" <<'EOF'
.s.s
SKIPPED [2] ../tests/test_most.py:83: auditwheel: it is not there
SKIPPED [1] ../tests/test_most.py: mypy is not installed
2 passed, 3 skipped in 0.01s
EOF
ran integration/ctl "   Passed" <<'EOF'
ok: this
skipped: no devices
EOF
ran integration/boot "***Skipped" <<<"skipped: no root"
ran integration/mute "***Skipped" <<<"[this says nothing]"
ran unit/test_hung "***Timeout" <<<"[RUN ] hung::test"
ran unit/test_broken "***Failed" <<'EOF'
[----] test_broken.c:3: Assertion failed
skipped: a part
[====] Synthesis: Tested: 3 | Passing: 1 | Failing: 2 | Crashing: 0
EOF
ran unit/test_hung "   Passed" <<'EOF'
[====] Synthesis: Tested: 4 | Passing: 4 | Failing: 0 | Crashing: 0
EOF

awk -v preset=points -v reasons="$dir/reasons" -v times="$dir/times" \
	-v hung="$dir/hung" -v failures="$dir/failures" \
	-f "$source/scripts/summary.awk" "$dir/ctest" "$dir/log" \
	>"$dir/out" 2>"$dir/err" || fail "exit status $?"
# The counts are those of programs and of tests: 5 + 1 + 1 + 1 + 4 passed, 2
# failed.
expect out "7 12 2 9"
expect reasons \
	"unit/test_some: needs 2 GPUs (points, 2)" \
	"python/most: auditwheel: it is not there (points, 2)" \
	"python/most: mypy is not installed (points, 1)" \
	"integration/ctl: no devices (points, 1)" \
	"integration/boot: no root (points, 1)" \
	"integration/mute: it does not say why (points, 1)" \
	"unit/test_broken: a part (points, 1)"
expect hung "unit/test_hung (points)"
expect failures "[----] test_broken.c:3: Assertion failed" \
	"test: FAILED: unit/test_broken (points)"
[ "$(wc -l <"$dir/times")" = 8 ] || fail "not the time of each run"
echo "ok"
