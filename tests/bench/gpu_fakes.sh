#!/bin/bash
# Tests the table of devices with the fakes of the driver and of NCCL. Every row
# must be there and must say that its figures mean nothing. Without a driver
# there must be no row.
#
#   gpu_fakes.sh FSDP_BENCH
set -u

bench=$1
dir=$(mktemp -d)
FAKECUDA_DIR=$(mktemp -d -p /dev/shm)
export FAKECUDA_DIR TMPDIR=$dir
trap 'rm -rf "$dir" "$FAKECUDA_DIR"' EXIT

fail()
{
	echo "FAILED: $*"
	cat "$dir"/out "$dir"/err
	exit 1
}

for FAKECUDA_DEVICES in 1 2; do
	export FAKECUDA_DEVICES
	"$bench" gpu --quick --json >"$dir/out" 2>"$dir/err" ||
		fail "exit status $? with $FAKECUDA_DEVICES devices"
	for row in attach_1000 import publish_to_consume kernels all_gather \
		reduce_scatter; do
		grep -q "\"gpu_$row\".*\"is_fake\": true" "$dir/out" ||
			fail "no row gpu_$row with $FAKECUDA_DEVICES devices"
	done
	n=$(grep -c "by worker" "$dir/out")
	((n == (FAKECUDA_DEVICES - 1) * 2)) ||
		fail "$n rows by the worker with $FAKECUDA_DEVICES devices"
	grep -q "FIGURES MEAN NOTHING" "$dir/err" || fail "it does not warn"
done

"$bench" gpu --quick --json import_and_map >"$dir/out" 2>"$dir/err" ||
	fail "exit status $? for one section"
[[ $(cut -d '"' -f 4 "$dir/out" | sort -u) == gpu_import ]] ||
	fail "other rows than those of the section"
"$bench" gpu --quick nonsense >"$dir/out" 2>"$dir/err"
rc=$?
((rc == 2)) || fail "exit status $rc for a section that is none, not 2"
grep -q 'gpu has no "nonsense"' "$dir/err" || fail "it does not say so"

"$bench" gpu --quick gemm >"$dir/out" 2>"$dir/err" ||
	fail "exit status $? without cuBLAS"
grep -q "gemm: left out: " "$dir/err" || fail "it does not say why"
FSDP_LIBCUBLAS=/nowhere/libcublas.so.13 "$bench" gpu --quick gemm \
	>"$dir/out" 2>"$dir/err" || fail "exit status $? without cuBLAS"
grep -q "gemm: left out: there is no cuBLAS: /nowhere" "$dir/err" ||
	fail "it does not name what cannot be opened"
FSDP_LIBCUBLAS=$FSDP_LIBCUDA "$bench" gpu --quick gemm \
	>"$dir/out" 2>"$dir/err" || fail "exit status $? with another library"
grep -q "gemm: left out: the cuBLAS here has no cublasCreate_v2" "$dir/err" ||
	fail "it does not name what is missing"

FSDP_LIBCUDA=/nowhere/libcuda.so.1 "$bench" gpu >"$dir/out" 2>"$dir/err"
rc=$?
((rc == 77)) || fail "exit status $rc without a driver, not 77"
test "$(wc -l <"$dir/err")" = 1 || fail "not one sentence without a driver"
echo "ok"
