#!/bin/bash
# Tests fsdpctl with a real broker: the session of its man page, its refusals,
# and the two examples.
#
#   ctl.sh FSDPD FSDPCTL LOADER TRAINER
#
# The checks of devices are left out if there are none. $FSDP_LIBCUDA names the
# fake driver.
fsdpd=$1 fsdpctl=$2 loader=$3 trainer=$4
. "$(dirname "$0")/ctl_lib.sh"

cat >files.py <<'PY'
"""Make model.safetensors, and compare files with what is in it."""
import json, struct, sys
import numpy as np

SIZES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "I64": 8, "BOOL": 1, "F16": 2}

def model():
    rng = np.random.default_rng(7)
    def raw(n): return rng.integers(0, 256, n, dtype=np.uint8).tobytes()
    t = {"lm_head.weight": ("F32", [64, 32], rng.standard_normal((64, 32)).astype("<f4").tobytes()),
         "norm": ("BF16", [7, 5], raw(70)),
         "gate": ("F8_E4M3", [256], bytes(range(256))),
         "step": ("I64", [], struct.pack("<q", -5)),
         "none": ("F32", [0, 4], b""),
         "mask": ("BOOL", [3], b"\1\0\1"),
         "half": ("F16", [3, 2], rng.standard_normal(6).astype("<f2").tobytes())}
    for i in range(600):
        t[f"layers.{i}.w"] = ("F32", [i % 7, 3], raw(i % 7 * 12))
    return t

def write(path, tensors):
    header, data = {"__metadata__": {"format": "pt"}}, b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + data)

def read(path):
    blob = open(path, "rb").read()
    n, = struct.unpack("<Q", blob[:8])
    assert (8 + n) % 8 == 0
    header, data = json.loads(blob[8:8 + n]), blob[8 + n:]
    header.pop("__metadata__", None)
    assert sum(i["data_offsets"][1] - i["data_offsets"][0] for i in header.values()) == len(data)
    return {k: (v["dtype"], v["shape"], data[slice(*v["data_offsets"])]) for k, v in header.items()}

def f8(byte):
    s, e, m = byte >> 7, byte >> 3 & 15, byte & 7
    if byte & 127 == 127: return np.nan
    return (-1) ** s * (m * 2.0 ** -9 if e == 0 else (1 + m / 8) * 2.0 ** (e - 7))

def same_npy(path, name):
    dtype, shape, raw = model()[name]
    got = np.load(path, allow_pickle=False)
    if dtype == "BF16":
        want = (np.frombuffer(raw, "<u2").astype("<u4") << 16).view("<f4")
    elif dtype == "F8_E4M3":
        want = np.array([f8(b) for b in raw], "<f4")
    elif dtype == "F16" and got.dtype == np.float32:
        want = np.frombuffer(raw, "<f2").astype("<f4")
    else:
        want = np.frombuffer(raw, {"F32": "<f4", "I64": "<i8", "BOOL": "?", "F16": "<f2"}[dtype])
    want = want.reshape(shape)
    return got.dtype == want.dtype and got.shape == want.shape and np.array_equal(
        got, want, equal_nan=got.dtype.kind == "f")

verb, *args = sys.argv[1:]
if verb == "make":
    write(args[0], model())
elif verb == "huge":
    with open(args[0], "wb") as f:
        n = int(args[1])
        text = json.dumps({"x": {"dtype": "U8", "shape": [n], "data_offsets": [0, n]}}).encode()
        f.write(struct.pack("<Q", len(text)) + text)
        f.truncate(8 + len(text) + n)
elif verb == "npy":
    np.save(args[0], np.arange(24, dtype="<i4").reshape(2, 3, 4))
elif verb == "fortran":
    np.save(args[0], np.asfortranarray(np.arange(6).reshape(2, 3)))
elif verb == "same_npy":
    sys.exit(not same_npy(*args))
elif verb == "same_bundle":
    sys.exit(read(args[0]) != model())
elif verb == "same_one":
    sys.exit(read(args[0]) != {args[1]: model()[args[2]]})
PY

files()
{
	"$python" files.py "$@"
}
files make model.safetensors

# --- without a broker -------------------------------------------------------

refuse "no broker is said with the way out" 1 "fsdpd --supervised" ping
refuse "an unknown verb gets a suggestion" 2 "did you mean 'load'" laod x
refuse "an option of another verb is refused" 2 "ls has no option --replace" \
	ls --replace
refuse "an option is named as it was written" 2 "watch has no option -n" watch -n 1
refuse "a missing operand is refused" 2 "stat needs NAME" stat

start_broker

# --- the story --------------------------------------------------------------

ctl load model.safetensors --prefix llama/ >load.out
check "load says what it made" grep -q "llama/ version 1: 607 tensors" load.out
ctl ls llama/ >ls.out
# The lines are titles, 607 tensors and their metadata, an empty line, and the
# total.
check "ls has a row for each" test "$(wc -l <ls.out)" = 611
check "ls is sorted" bash -c "sed -n 2,609p ls.out | LC_ALL=C sort -c -k1,1"
check "ls says what it comes to" grep -q "^total: 608 tensors, " ls.out
check "ls shows dtype, shape and size" grep -Eq \
	"^llama/lm_head.weight +1 +f32 +\[64, 32\] +8.0 KiB +0 +" ls.out
check "ls shows the owner" grep -Eq \
	"^llama/norm .* $(id -un) +host" ls.out
check "ls of nothing lists nothing" \
	test "$(ctl ls nothing/ | tail -n 1)" = "total: 0 tensors, 0 B"
check "ls --json is one document" ctl_json \
	'len(d) == 608 and {e["name"]: e for e in d}["llama/none"]["shape"] == [0, 4]' \
	ls llama/
check "stat shows one" ctl_json \
	'd["dtype"] == "bf16" and d["bytes"] == 70 and d["mode"] == "0600"' \
	stat llama/norm
refuse "stat of an unknown name fails" 1 "llama/nix" stat llama/nix
refuse "get of an unknown name fails" 1 "llama/nix" get llama/nix -o x.npy
refuse "a wait for a name ends" 1 "" get llama/nix -o x.npy --timeout 50

for name in lm_head.weight step none mask half; do
	ctl get llama/$name -o $name.npy
	check "numpy reads $name" files same_npy $name.npy $name
done
for name in norm gate half; do
	ctl get llama/$name -o $name.npy --cast f32
	check "numpy reads $name as f32" files same_npy $name.npy $name
done
refuse "npy cannot hold bf16" 1 "--cast f32" get llama/norm -o n.npy
refuse "integers are not cast" 1 "i64" get llama/step -o n.npy --cast f32
check "a refusal leaves no file" test ! -e n.npy
ctl get llama/norm -o one.safetensors
check "one tensor is a safetensors file" \
	files same_one one.safetensors llama/norm norm
ctl get llama/ -o all.safetensors
check "a bundle comes back as it was" files same_bundle all.safetensors
ctl get llama/gate -o gate.raw
ctl get llama/gate -o - >gate.out
check "raw is the same in a file and on standard output" cmp gate.raw gate.out
check "raw is the elements" \
	"$python" -c 'assert open("gate.raw", "rb").read() == bytes(range(256))'
refuse "a bundle is no npy file" 2 ".safetensors" get llama/ -o x.npy

refuse "a bundle is not replaced by accident" 1 "fsdpctl: --replace; Python: replace=True" \
	load model.safetensors --prefix llama/ --quiet
check "it is replaced on demand" ctl_json 'd["version"] == 2' \
	load model.safetensors --prefix llama/ --replace

# --- put, who, limbo, rm ----------------------------------------------------

files npy a.npy
check "put publishes" ctl_json 'd == {"name": "t/a", "version": 1}' \
	put a.npy --name t/a
ctl get t/a -o b.npy
check "put and get of npy are the identity" cmp a.npy b.npy
refuse "a name is not replaced by accident" 1 \
	"fsdpctl: --replace; Python: replace=True" put a.npy --name t/a
check "it is replaced on demand" ctl_json 'd["version"] == 2' \
	put a.npy --name t/a --replace
head -c 96 /dev/urandom >r.raw
ctl put r.raw --name t/r --dtype f16 --shape 6,8 --ttl 1h --evictable \
	--mode 0644 >/dev/null
ctl get t/r -o - >r.out
check "put and get of raw are the identity" cmp r.raw r.out
check "stat shows what put set" ctl_json \
	'd["shape"] == [6, 8] and d["evictable"] and d["mode"] == "0644" and 0 < d["ttl_left_ms"] <= 3600000' \
	stat t/r
ctl put one.safetensors --name t/s >/dev/null
check "a single tensor is put from safetensors" ctl_json \
	'd["dtype"] == "bf16" and d["shape"] == [7, 5]' stat t/s
refuse "several tensors are not one" 1 "fsdpctl load" \
	put model.safetensors --name t/m
refuse "raw needs a type" 1 "--dtype and --shape" put r.raw --name t/x
refuse "raw must have the size of its type" 1 "need 64 bytes, but the file has 96" \
	put r.raw --name t/x --dtype f32 --shape 16
files fortran f.npy
refuse "Fortran order is refused" 1 "Fortran" put f.npy --name t/x
refuse "a missing file is said" 1 "No such file" put nix.npy --name t/x
refuse "a directory is no file" 1 \
	"cannot read .: it is a directory; name a file in it" put . --name t/x
mkfifo pipe.npy
refuse "a FIFO is refused with the remedy" 1 \
	"cannot read pipe.npy: it is not a regular file; copy its bytes to" \
	put pipe.npy --name t/x
head -c 3000 model.safetensors >short.safetensors
refuse "a truncated model is refused" 1 "truncated" \
	load short.safetensors --prefix x/
check "nothing of it is there" ctl_json 'd == []' ls x/

# A get into a FIFO that no process reads holds its tensor until the FIFO is
# read.
head -c 1000000 /dev/urandom >big.raw
ctl put big.raw --name t/big --dtype u8 --shape 1000000 >/dev/null
mkfifo held.raw
"$fsdpctl" get t/big -o held.raw &
holder=$!
exec 7<held.raw
eventually "who shows the holder" ctl_json \
	"[(h['pid'], h['holds']) for h in d] == [($holder, 1)]" who t/big
check "by the name of its user" grep -Eq \
	"^ *$holder +fsdpctl +$(id -un) +1 +reading\$" <(ctl who t/big)
check "ls counts it" ctl_json 'd["holders"] == 1' stat t/big
check "clients lists it" ctl_json \
	"any(c['pid'] == $holder and c['connected'] for c in d)" clients
check "with its user, too" grep -Eq " $holder +$(id -un) +fsdpctl " <(ctl clients)
ctl rm t/big
refuse "a removed name is gone" 1 "t/big" stat t/big
check "limbo has it, with its holder" ctl_json \
	"len(d) == 1 and d[0]['bytes'] == 1000000 and d[0]['held_by'][0]['pid'] == $holder" \
	limbo
check "limbo is a table, too" grep -Eq \
	" t/big .* $holder +fsdpctl +$(id -un) +1 +reading\$" <(ctl limbo)
cat <&7 >held.out &
exec 7<&-
wait $!
check "the holder read on after rm" cmp big.raw held.out
check "the holder ended well" wait $holder
eventually "limbo is empty" ctl_json 'd == []' limbo
refuse "rm of an unknown name fails" 1 "t/nix" rm t/a t/nix
check "rm removes all or none" ctl_json 'd["name"] == "t/a"' stat t/a
check "prefixes counts names and bundles" ctl_json \
	"[(p['names'] > 1, p['bundles'], p['configured']) for p in d if p['name'] == 't'] == [(True, 0, False)]" \
	prefixes
check "prefixes is a table" grep -Eq "^llama +$(id -un) +0 +1 +used +-\$" <(ctl prefixes)
ctl rm t/a t/r llama/
check "what is not used any more will be free" grep -Eq \
	"^llama +$(id -un) +0 +0 +used +[0-9]" <(ctl prefixes)
check "a bundle is removed by its prefix" ctl_json 'd == []' ls llama/

# --- devices ------------------------------------------------------------------

if ctl devices >devices.out; then
	gpu=$(awk 'NR == 2 { print $1 }' devices.out)
	check "devices is a table" grep -Eq "^$gpu +0 .* yes\$" devices.out
	check "devices is a document" ctl_json "d['devices'][0]['device'] == '$gpu' and d['devices'][0]['shared'] and d['driver'] >= 12000" \
		devices
	ctl load model.safetensors --prefix gpu/ --device "$gpu" >load.out
	check "a model is loaded to a device" \
		grep -q "gpu/ version 1: 607 tensors" load.out
	check "ls shows where it is" grep -Eq \
		"^gpu/lm_head.weight .* ${gpu:0:12}\$" <(ctl ls gpu/)
	check "stat shows all of it" ctl_json \
		"d['device'] == '$gpu' and not d['tainted']" stat gpu/norm
	ctl get gpu/ -o gpu.safetensors
	check "it comes back as it was" files same_bundle gpu.safetensors
	for name in lm_head.weight step none mask half; do
		ctl get gpu/$name -o $name.npy
		check "numpy reads $name from a device" \
			files same_npy $name.npy $name
	done
	ctl get gpu/norm -o norm.npy --cast f32
	check "and what is cast" files same_npy norm.npy norm
	check "the broker says what it has there" ctl_json \
		"d['devices'][0]['used_bytes'] > 0" devices
	head -c 50000003 /dev/urandom >large.raw
	ctl put large.raw --name t/large --dtype u8 --shape 50000003 \
		--device "$gpu" >/dev/null
	ctl get t/large -o large.out.raw
	check "put and get on a device are the identity" \
		cmp large.raw large.out.raw
	ctl put large.raw --name t/large --dtype u8 --shape 50000003 \
		--device host --replace >/dev/null
	check "host is a device, too" ctl_json 'd["device"] == "host"' \
		stat t/large
	refuse "what is no device is refused" 2 "nvidia-smi -L" \
		put large.raw --name t/x --dtype u8 --shape 50000003 --device 0
	refuse "a device that is not there is refused" 1 "$gpu" \
		load model.safetensors --prefix x/ --device \
		GPU-deadbeef-0000-0000-0000-000000000000
	CUDA_VISIBLE_DEVICES='' refuse "a device that is not seen is said" 1 \
		"CUDA_VISIBLE_DEVICES" get gpu/norm -o x.npy
	CUDA_VISIBLE_DEVICES='' refuse "and counted by verify, which goes on" 1 \
		"cannot read 521 tensors" verify
	check "its cause is said once" test \
		"$(grep -c "cannot verify 'gpu/.*CUDA_VISIBLE" err)" = 1
	check "and the last line has the number" grep -Eq \
		"^[1-9][0-9]* tensors? verified, .*; 521 could not be read$" out
	check "host tensors need none" \
		env FSDP_LIBCUDA=/nowhere "$fsdpctl" get t/large -o large.out.raw
	FSDP_LIBCUDA=/nowhere refuse "without a driver there are no devices" 1 \
		"no CUDA driver" devices
	ctl rm gpu/ t/large
else
	echo "skipped: no devices"
fi

check "status is a document" ctl_json 'len(d["counters"]) > 3 and "note" in d' \
	status
check "status is lines for people, too" \
	grep -q "^host memory .* used of " <(ctl status)
check "status shows the counters that it resets" ctl_json \
	'd["counters"]["loop_longest_ns"] > 0' status --reset
check "ping measures" ctl_json 'd["count"] == 3 and 0 < d["min_ns"] <= d["max_ns"]' \
	ping -c 3

# --- plans, which need no broker --------------------------------------------

graphs=$(dirname "$0")/../../docs/graphs
plan()
{
	FSDP_SOCKET=/nowhere "$fsdpctl" plan "$@" 2>err
}
check "plan is a table" grep -q '^ *0  all_gather .* bucket_ag0$' \
	<(plan "$graphs/two_layers.json")
check "plan is a document" json '(d["buckets"][0]["merged"] == "bucket_ag0" and
	[m["offset"] for m in d["buckets"][1]["members"]] == [0, 2048] and
	d["left"] == [])' <<<"$(plan --json "$graphs/two_layers.json")"
plan --json "$graphs/two_layers.json" |
	"$python" -c 'import json, sys; json.dump(json.load(sys.stdin)["graph"],
		sys.stdout)' >again.json
check "what plan makes, it reads" json 'd["graph"]["nodes"]' \
	<<<"$(plan --json again.json)"
check "a cap of 0 is one" json '([len(b["members"]) for b in d["buckets"]] ==
	[1, 1, 1, 1])' <<<"$(plan --json --cap-mb 0 "$graphs/two_layers.json")"
check "faithful leaves out buckets of one" json '(d["buckets"] == [] and
	len(d["left"]) == 4)' \
	<<<"$(plan --json --faithful --cap-mb 0 "$graphs/two_layers.json")"
check "gathers have a cap and a mode of their own" json '(
	[len(b["members"]) for b in d["buckets"]] == [1, 1, 2] and
	d["gather_mode"] == "custom_ops" and d["reduce_mode"] == "default")' \
	<<<"$(plan --json --gather-cap-mb 0 --gather-mode custom_ops \
		"$graphs/two_layers.json")"
check "reductions have a cap and a mode of their own" json '(
	[len(b["members"]) for b in d["buckets"]] == [2, 1, 1] and
	d["gather_mode"] == "default" and d["reduce_mode"] == "coalesced")' \
	<<<"$(plan --json --reduce-cap-mb 0 --reduce-mode coalesced \
		"$graphs/two_layers.json")"
check "all-reduces have buckets" json '([b["kind"] for b in d["buckets"]] ==
	["all_gather", "reduce_scatter", "all_reduce", "all_reduce"])' \
	<<<"$(plan --json --faithful "$graphs/all_reduce.json")"
for cap in nan -1 inf "1," ",1" x; do
	refuse "a cap of $cap is none" 2 "--cap-mb" \
		plan "$graphs/two_layers.json" --cap-mb=$cap
done
refuse "an unknown mode is none" 2 "there is no mode '0600'" \
	plan "$graphs/two_layers.json" --mode 0600
refuse "faithful and mixed dtypes do not go together" 1 "begins at byte 6" \
	plan "$graphs/mixed_dtypes.json" --faithful --mode custom_ops_multidtype
echo '{"nodes": [{"name": "a", "kind": "op", "call": "f", "inputs": ["a"],
	"dtype": "f32", "shape": []}]}' >cycle.json
refuse "a cycle is refused" 1 "cycle.json: nodes 'a' and 'a' are in a cycle" \
	plan cycle.json
refuse "a missing graph is said" 1 "No such file" plan nix.json
# --- when things go wrong ---------------------------------------------------

ctl put big.raw --name t/big --dtype u8 --shape 1000000 >/dev/null
"$fsdpctl" get t/big -o - >/dev/full 2>err
check "a full standard output fails" test $? = 1
check "and says so" grep -q "No space left" err
# fails_when_full WHAT COMMAND...
fails_when_full()
{
	local what=$1
	shift
	"$@" >/dev/full 2>err
	check "$what fails when standard output is full" test $? = 1
	check "and says so, too" grep -q "cannot write standard output" err
}
fails_when_full "ls" "$fsdpctl" ls
fails_when_full "--help" "$fsdpctl" --help
fails_when_full "--version" "$fsdpctl" --version
fails_when_full "help of a verb" "$fsdpctl" help ls
# A sanitizer may not permit what stdbuf preloads.
if stdbuf -oL "$fsdpctl" --version >/dev/null 2>&1; then
	fails_when_full "line by line, --version" \
		stdbuf -oL "$fsdpctl" --version
fi
if [[ $(id -u) = 0 ]] && mkdir small &&
	mount -t tmpfs -o size=256k tmpfs small 2>/dev/null; then
	mounted=$dir/small
	refuse "a full disk is said" 1 "No space left" \
		get t/big -o small/big.raw
	check "and leaves no half file" test -z "$(ls -A small)"
fi
ln -s gate.raw link.raw
ctl put gate.raw --name t/gate --dtype u8 --shape 256 >/dev/null
: >gate.raw
ctl get t/gate -o link.raw
check "a link is followed, not replaced" cmp gate.raw gate.out
chmod 0600 gate.raw
ctl get t/gate -o link.raw
check "a file keeps its mode" test "$(stat -c %a gate.raw)" = 600
ln -s nothing.raw dangling.raw
refuse "a link to nothing is not replaced" 1 "remove the link" \
	get t/gate -o dangling.raw
check "and is left" test "$(readlink dangling.raw)" = nothing.raw

has_memory()
{
	ctl_json "any(c['pid'] == $pid and c['allocated_bytes'] > 0 for c in d)" \
		clients || ! kill -0 $pid
}

# stop_load COMMAND...: when a load has memory, run the command and stop the
# load. The load may end before its signal comes, so try until it does not.
stop_load()
{
	for ((status = 0; status == 0; )); do
		"$fsdpctl" rm huge/ >/dev/null 2>&1
		"$fsdpctl" load huge.safetensors --prefix huge/ --quiet 2>err &
		pid=$!
		eventually "the load has memory" has_memory
		"$@"
		kill -TERM $pid 2>/dev/null
		timeout 300 tail --pid=$pid -s 0.02 -f /dev/null
		ended=$?
		kill -CONT "$broker"
		check "the load ends" test $ended = 0
		wait $pid
		status=$?
	done
	check "an interrupted load dies of the signal" test $status = 143
	check "and says so" grep -q "stopped by SIGTERM" err
	check "and leaves nothing" ctl_json 'd == []' ls huge/
	eventually "its session is gone" ctl_json \
		"all(c['pid'] != $pid for c in d)" clients
}

files huge huge.safetensors 1000000000
broker=$(pgrep -oP "$daemon")
stop_load true
echo "a broker that does not answer does not keep a load from ending:"
stop_load kill -STOP "$broker"

# --- the examples -----------------------------------------------------------

for example in "$loader" "$trainer"; do
	"$example" --help 2>err
	check "${example##*/} takes no option for a channel" \
		grep -q "^usage: ${example##*/} CHANNEL" err
done

"$trainer" demo/batches 2 100000 >trainer.out &
trainer_pid=$!
eventually "channels lists the trainer" ctl_json \
	"[c['role'] for c in d if c['pid'] == $trainer_pid] == ['consumer', 'producer']" channels
check "channels shows it as a table" grep -qE \
	"^demo/batches .* [0-9]+/[0-9]+ .* consumer .*/s " <(ctl channels)
"$loader" demo/batches 40 100000 >/dev/null &
loaders=$!
"$loader" demo/batches 30 100000 >/dev/null &
loaders="$loaders $!"
for pid in $loaders; do
	check "a loader ends well" wait "$pid"
done
check "the trainer ends well" wait $trainer_pid
check "and got every batch right" \
	grep -q "trainer: 70 batches, 0 wrong" trainer.out
eventually "no batch stays" ctl_json 'd == []' limbo
check "and no channel" ctl_json 'd == []' channels
