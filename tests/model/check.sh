#!/bin/sh
# Verify one Promela model with spin: check.sh MODEL.pml clean|caught [-DX ...]
# PAN_CFLAGS are the options of the compiler of the verifier. PAN_WIDE=1 means
# that it searches tens of millions of states.
#
# clean: spin must search all states and find no error. caught: it must find
# one, so that the test fails if the model does not notice the mutation any more.
# The exit status is 77 (skipped) if spin or a compiler is missing.
set -eu

model=$1
wanted=$2
shift 2

# Compressed states take less than half of the memory, but twice the time. The
# table of states begins small and grows, unless it will be full anyway.
memory=2000
table=20
if [ -n "${PAN_WIDE:-}" ]; then
	PAN_CFLAGS='-O3 -march=native'
	table=26
	available=$(awk '/^MemAvailable:/ { print int($2 / 1024) }' /proc/meminfo)
	if [ "$available" -gt 12000 ]; then
		memory=8000
	else
		PAN_CFLAGS="$PAN_CFLAGS -DCOLLAPSE"
	fi
fi

# Most searches take less time than an optimised build of the verifier, or even
# an unoptimised one by cc. tcc is much faster.
compiler=cc
case " ${PAN_CFLAGS:-} " in
*" -O"*) ;;
*) ! command -v tcc >/dev/null || compiler=tcc ;;
esac
command -v spin >/dev/null && command -v $compiler >/dev/null || {
	echo "skipped: no spin or no cc; scripts/setup test installs them"
	exit 77
}

dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"

spin -a "$@" "$model"
# shellcheck disable=SC2086 # words on purpose
$compiler ${PAN_CFLAGS:-} -w -DSAFETY -DMEMLIM=$memory -o pan pan.c
./pan -w$table -m100000 >log 2>&1 || true
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
