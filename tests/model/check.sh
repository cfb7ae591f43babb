#!/bin/sh
# Verify one Promela model with spin: check.sh MODEL.pml clean|caught [-DX ...]
# PAN_CFLAGS are the options of the compiler of the verifier.
#
# clean: spin must search all states and find no error. caught: it must find
# one, so that the test fails if the model does not notice the mutation any more.
# The exit status is 77 (skipped) if spin or a compiler is missing.
set -eu

model=$1
wanted=$2
shift 2

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
$compiler ${PAN_CFLAGS:-} -w -DSAFETY -DMEMLIM=2000 -o pan pan.c
./pan -w20 -m100000 >log 2>&1 || true
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
