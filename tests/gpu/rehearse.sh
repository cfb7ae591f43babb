#!/bin/bash
# Tests tests/gpu/run without a GPU, on fakes that pose as a plain driver and
# NCCL, with programs that were copied to another folder.
#
#   rehearse.sh BUILD
set -u

build=$1
dir=$(mktemp -d)
export TMPDIR=$dir FAKECUDA_PLAIN="DEVICES=1"
trap 'rm -rf "$dir"' EXIT

fail()
{
	echo "FAILED: $*"
	cat "$dir/said" "$dir/report" 2>/dev/null
	exit 1
}

# reports PATTERN: check that a line of the report matches.
reports()
{
	grep -q -- "$1" "$dir/report" || fail "no line '$1' in the report"
}

# The commands of a machine with a GPU, as far as the report uses them.
mkdir "$dir/commands"
: >"$dir/kernel"
cat >"$dir/commands/dmesg" <<EOF_DMESG
#!/bin/bash
cat "$dir/kernel"
EOF_DMESG
cat >"$dir/commands/nvidia-smi" <<'EOF_SMI'
#!/bin/bash
echo "nvidia-smi was asked: $*"
EOF_SMI
chmod +x "$dir/commands/"*

run()
{
	PATH=$dir/commands:$PATH "$dir/pack/run" --rehearse "$build/fakes/plain" \
		"$@" >"$dir/said" 2>&1
}

# program NAME: make a test program in the pack from standard input.
program()
{
	cat >"$dir/pack/bin/$1" && chmod +x "$dir/pack/bin/$1"
}

"${0%/*}/run" --build "$build" --no-build --pack "$dir/pack" >"$dir/said" 2>&1 ||
	fail "exit status $? of packing"
size=$(du -sm "$dir/pack" | cut -f 1)
((size < 64)) || fail "the pack has $size MiB, and 64 can be carried"
for library in libfsdp libcriterion libuv libprotobuf-c libnanomsg; do
	compgen -G "$dir/pack/lib/$library.so*" >/dev/null ||
		fail "$library is not carried"
done

# A stage that hangs or crashes does not affect the others, and the report exists
# meanwhile.
program unit_test_hangs <<EOF_HANGS
#!/bin/bash
trap '' TERM
echo "[RUN ] hangs::for_ever"
setsid sleep 1000 &
echo \$! >"$dir/left"
sleep 1000
EOF_HANGS
program unit_test_crashes <<EOF_CRASHES
#!/bin/bash
echo "NVRM: Xid (PCI:0000:01:00): 31, of this stage" >>"$dir/kernel"
kill -SEGV \$\$
EOF_CRASHES
program unit_test_passes <<EOF_PASSES
#!/bin/bash
grep -q "unit_test_hangs.*OUT OF TIME" "$dir/report" || exit 1
echo "[SKIP] passes::two: needs 2 GPUs"
echo "[====] Synthesis: Tested: 9 | Passing: 6 | Failing: 3 | Crashing: 2"
EOF_PASSES
run --stage-limit 5 "$dir/report" unit_test_hangs unit_test_crashes \
	unit_test_passes unit_test_missing
rc=$?
((rc == 1)) || fail "exit status $rc where a program is missing, not 1"
reports "| unit_test_hangs | OUT OF TIME |"
reports "^\[RUN \] hangs::for_ever"
# The parent may not have waited yet for a process that was killed.
for _ in {1..600}; do
	state=$(sed 's/.*) //; s/ .*//' "/proc/$(cat "$dir/left")/stat" 2>/dev/null)
	[[ -n $state && $state != [ZX] ]] || break
	sleep 0.1
done
[[ -z $state || $state == [ZX] ]] || fail "the stage that hung left a process"
reports "| unit_test_crashes | KILLED by signal 11 | .* | 1 |$"
reports "^NVRM: Xid .* 31, of this stage"
reports "| unit_test_passes | ended | 6 | 3 | 1 |"
reports "1 needs 2 GPUs"
reports "| unit_test_missing | NOT RUN: not built |"
reports "^- tests: 6 passed, 3 failed, 1 skipped"

run --limit 10 "$dir/report" unit_test_passes
reports "| unit_test_passes | NOT RUN: no time left |"

# The probes in another folder are run last, in the time that is left.
mkdir "$dir/kit"
cat >"$dir/kit/run.sh" <<'EOF_KIT'
#!/bin/bash
mkdir -p "$1" && echo "there were $GPU_PROBE_TOTAL s" >"$1/report.md"
echo "the kit speaks"
EOF_KIT
chmod +x "$dir/kit/run.sh"
run --probe "$dir/kit" "$dir/report" unit_test_crashes || fail "exit status $?"
reports "^| probe | ended |"
reports "^there were [0-9]* s"
reports "^the kit speaks"
grep -q "^=== unit_test_crashes" "$dir/report.log" || fail "no log of all stages"
"$dir/pack/run" --list | grep -qx facts || fail "--list does not show stages"

# The real stages succeed on a plain driver, and list the tests that they skip.
FAKECUDA_PLAIN+=";QUEUES=8"
run "$dir/report" facts idle_broker unit_test_vmm unit_test_fence \
	integration_test_stream_death queues bench_import_and_map \
	integration_test_client integration_test_device_access python ||
	fail "exit status $? of stages that are there"
reports "^# REHEARSAL"
reports "stages: 10 of 10 run"
reports "tests: .* passed, 0 failed"
for attribute in 102 103 110 113 122 125 128; do
	reports "attribute $attribute, [A-Z0-9_]*: [01]$"
done
reports "attribute 113, READ_ONLY_HOST_REGISTER_SUPPORTED: 0"
reports "^nvidia-smi was asked: .*persistence_mode,mig.mode.current"
reports "^nvidia-smi was asked: .*--query-compute-apps=pid"
reports "^NCCL: .*/plain/libnccl.so.2"
for stage in facts idle_broker unit_test_vmm unit_test_fence \
	integration_test_stream_death queues bench_import_and_map \
	integration_test_client integration_test_device_access; do
	reports "^| $stage | ended |"
done
reports "^| python | exit status 77 |"
reports "needs a device that registers pages read-only (attribute 113)"
reports "needs the fake driver: calls must fail"
reports "^of 8 queues: HELD UP"
reports "^of 32 queues: none held up"
reports "^gpu_import"

# Without a GPU and without --rehearse there is nothing to run.
if [[ ! -e /dev/nvidiactl ]]; then
	"$dir/pack/run" "$dir/none" >"$dir/said" 2>&1
	rc=$?
	((rc == 77)) || fail "exit status $rc without a GPU, not 77"
	[[ ! -e $dir/none ]] || fail "a report without a GPU"
fi
echo "ok"
