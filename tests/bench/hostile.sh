#!/bin/bash
# Tests that each attack works in a rehearsal, and that the table of attacks has
# three rows for each attack that is named and refuses unknown names. Its
# figures are not checked.
#
#   hostile.sh FSDP_BENCH
set -u

bench=$1
dir=$(mktemp -d)
# The attackers run as another user, who must find the socket in this directory.
chmod 755 "$dir"
export TMPDIR=$dir
trap 'rm -rf "$dir"' EXIT

fail()
{
	echo "FAILED: $*"
	cat "$dir"/out "$dir"/err
	exit 1
}

"$bench" rehearsal >"$dir/out" 2>"$dir/err" || fail "exit status $?"
[ "$(tr '\n' ' ' <"$dir/out")" = "seal evict close_memfd close_linger \
bundle_get bundle_first_get bundle_commit deadlines keeper " ] ||
	fail "not each attack was rehearsed"

"$bench" hostile --quick --json seal >"$dir/out" 2>"$dir/err" ||
	fail "exit status $?"
for row in '", .*"unit": "us".*"budget": 2}' '_worst", .*"budget": 1}' \
	'_loop", .*"unit": "ms"'; do
	grep -q "\"hostile_seal$row" "$dir/out" || fail "no row hostile_seal$row"
done
[ "$(wc -l <"$dir/out")" = 3 ] || fail "not three rows"

"$bench" hostile no-such-attack >"$dir/out" 2>"$dir/err"
rc=$?
((rc == 2)) || fail "exit status $rc for an unknown attack, not 2"
grep -q '"no-such-attack"' "$dir/err" || fail "it does not name the attack"
echo "ok"
