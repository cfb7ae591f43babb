#!/bin/sh
# Verify one Promela model with spin: check.sh MODEL.pml clean|caught [-DX ...]
#
# clean: spin must search everything and find no error. caught: it must find
# one, so that a mutation which the model no longer notices is a failed test.
# Exits 77 (skipped) where spin or a compiler is missing.
set -eu

model=$1
wanted=$2
shift 2

command -v spin >/dev/null && command -v cc >/dev/null || {
	echo "skipped: no spin or no cc; scripts/setup test installs them"
	exit 77
}

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"

spin -a "$@" "$model"
# Most of these searches are shorter than what optimising them takes.
cc ${PAN_CFLAGS:--O0} -w -DSAFETY -DCOLLAPSE -DMEMLIM=2000 -o pan pan.c
./pan -m100000 >log 2>&1 || true
cat log

errors=$(sed -n 's/.*errors: \([0-9][0-9]*\).*/\1/p' log)
case $wanted in
clean)
	# A search that was cut short proves nothing.
	! grep -q 'MEMLIM bound\|out of memory\|search depth too small' log
	test "$errors" = 0
	;;
caught)
	test "$errors" -gt 0
	;;
*)
	echo "neither clean nor caught: $wanted" >&2
	exit 1
	;;
esac
