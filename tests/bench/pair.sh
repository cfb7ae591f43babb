#!/bin/bash
# Tests that two versions are compared row by row. Here both are the same one.
#
#   pair.sh BENCH_PAIR FSDP_BENCH
set -u
# shellcheck source=../lib/check.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../lib/check.sh"

pair=$1 build=$(dirname "$2")
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

"$pair" "$build" "$build" --quick --turns 2 rpc_ping rpc_get >"$dir/out" ||
	fail "two builds are not compared"
check "each row has figures of both" test \
	"$(awk '/^rpc_/ && $2 > 0 && $3 > 0 && $5 > 0 { print $1 }' "$dir/out" |
		xargs)" = "rpc_ping rpc_get"
check "a row that is not there is refused" grep -q "the row 'nix'" \
	<("$pair" "$build" "$build" nix 2>&1)
check "so is what is neither a directory nor a commit" grep -q "no commit" \
	<("$pair" "$dir/nothing" "$build" 2>&1)
check "so is a directory without fsdp-bench" grep -q "there is no fsdp-bench" \
	<("$pair" "$dir" "$build" 2>&1)
