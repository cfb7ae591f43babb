#!/bin/bash
# Tests fsdpctl with models of one file and of several: load and get, their
# metadata, and bundles by name in stat, who, ls and rm.
#
#   ctl_models.sh FSDPD FSDPCTL HOARD
fsdpd=$1 fsdpctl=$2 hoard=$3
. "$(dirname "$0")/ctl_lib.sh"

cat >model.py <<'PY'
"""write PATH [NAME=N ...] [KEY:VALUE ...]: N floats each; read PATH"""
import json, struct, sys
verb, path, *words = sys.argv[1:]
if verb == "write":
    header, at = {}, 0
    metadata = dict(w.split(":") for w in words if ":" in w)
    if metadata:
        header["__metadata__"] = metadata
    for name, n in (w.split("=") for w in words if "=" in w):
        dtype, n = ("I64", int(n[1:])) if n[0] == "i" else ("F32", int(n))
        size = n * (8 if dtype == "I64" else 4)
        header[name] = {"dtype": dtype, "shape": [n], "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    open(path, "wb").write(struct.pack("<Q", len(text)) + text + bytes(at))
else:
    blob = open(path, "rb").read()
    n, = struct.unpack("<Q", blob[:8])
    header = json.loads(blob[8:8 + n])
    print(json.dumps({"metadata": header.pop("__metadata__", None),
                      "names": sorted(header), "bytes": len(blob) - 8 - n}))
PY

model()
{
	"$python" model.py "$@"
}

file_has()
{
	model read "$1" | json "$2"
}
printf '[access]\nadmin_group = 65532\n' >conf
start_broker --config conf

# --- several files ------------------------------------------------------------

model write m-1.safetensors a=10 b=20 format:pt part:1
model write m-2.safetensors c=30 format:pt part:2
check "several files are one bundle" ctl_json \
	"d['tensors'] == 3 and d['bytes'] == 240" \
	load m-1.safetensors m-2.safetensors --prefix two/
ctl get two/ -o two.safetensors
check "all of them come back" file_has two.safetensors \
	"d['names'] == ['a', 'b', 'c'] and d['bytes'] == 240"
cat >m.safetensors.index.json <<'JSON'
{"metadata": {"total_size": 240},
 "weight_map": {"a": "m-1.safetensors", "b": "m-1.safetensors",
                "c": "m-2.safetensors"}}
JSON
check "an index is a model" ctl_json "d['tensors'] == 3" \
	load "$PWD/m.safetensors.index.json" --prefix sharded/
model write m-3.safetensors c=1
refuse "a tensor in two files is refused" 1 \
	"tensor 'c' is in two files, m-2.safetensors and m-3.safetensors" \
	load m-2.safetensors m-3.safetensors --prefix x/
sed s/m-2/m-1/ m.safetensors.index.json >wrong.safetensors.index.json
refuse "an index that is wrong is refused" 1 \
	"tensor 'c' is in m-1.safetensors, but it is not there" \
	load wrong.safetensors.index.json --prefix x/
sed 's,m-2,../m-2,' m.safetensors.index.json >away.safetensors.index.json
refuse "an index that leads elsewhere is refused" 1 "in the same directory" \
	load away.safetensors.index.json --prefix x/
sed s/m-2/m-9/ m.safetensors.index.json >lost.safetensors.index.json
refuse "a file that is missing is said" 1 "m-9.safetensors" \
	load lost.safetensors.index.json --prefix x/
refuse "an index of nothing is refused" 1 "nix.safetensors.index.json" \
	load nix.safetensors.index.json --prefix x/
mkdir folder.safetensors.index.json
refuse "an index that is a directory is refused" 1 "json: it is a directory" \
	load folder.safetensors.index.json --prefix x/
refuse "a folder of a model is refused, with a hint" 1 \
	"; name a file in it, such as its .safetensors.index.json" \
	load . --prefix x/

# --- once ----------------------------------------------------------------------

check "the first loads it" ctl_json \
	"d['version'] == 1 and d['bytes'] == 120 and d['loaded']" \
	load m-1.safetensors --prefix once/ --once
check "the second finds it there" ctl_json \
	"d['version'] == 1 and d['tensors'] == 2 and d['bytes'] == 120 and d['seconds'] >= 0 and not d['loaded']" \
	load m-1.safetensors --prefix once/ --once
check "and says so" \
	grep -q "^once/ version 1 is there: 2 tensors, 120 B$" \
	<(ctl load m-1.safetensors --prefix once/ --once --timeout forever)
refuse "a name in the way is said" 1 "would overlap" \
	load m-1.safetensors --prefix once/below/ --once
refuse "--once replaces nothing" 2 "give only one of them" \
	load m-1.safetensors --prefix once/ --once --replace
refuse "who may not wait needs no time-out" 2 "needs --once" \
	load m-1.safetensors --prefix once/ --timeout 1s
ctl rm once/ >/dev/null
check "nothing of these is there" ctl_json 'd == []' ls x/

# --- metadata, and files without tensors ---------------------------------------

check "metadata survives a load and a get" file_has two.safetensors \
	"d['metadata'] == {'format': 'pt', 'part': '2'}"
check "stat of a bundle shows it" ctl_json \
	"d['metadata'] == {'format': 'pt', 'part': '2'} and d['tensors'] == 3" \
	stat two/
check "for people, too" grep -q "^metadata   format: pt$" <(ctl stat two/)
model write empty.safetensors
check "a file without tensors is a model" ctl_json "d['tensors'] == 0" \
	load empty.safetensors --prefix empty/
ctl get empty/ -o empty.out.safetensors
check "and comes back" file_has empty.out.safetensors \
	"d['names'] == [] and d['bytes'] == 0 and d['metadata'] is None"
model write bare.safetensors x=1
ctl load bare.safetensors --prefix bare/ >/dev/null
check "a file without metadata gets none" ctl_json 'len(d) == 1' ls bare/

# --- casts --------------------------------------------------------------------

model write mixed.safetensors w=5 steps=i3
ctl load mixed.safetensors --prefix mixed/ >/dev/null
refuse "what cannot be cast is named" 1 "cannot cast 'mixed/steps' to f32" \
	get mixed/ -o x.safetensors --cast f32

# --- bundles by name ----------------------------------------------------------

refuse "stat of a bundle without its / gets a suggestion" 1 \
	"did you mean the bundle 'two/'?" stat two
refuse "so does get" 1 "did you mean the bundle 'two/'?" get two -o x.npy
refuse "and who" 1 "did you mean the bundle 'two/'?" who two
refuse "and rm" 1 "did you mean the bundle 'two/'?" rm two
refuse "an unknown bundle is said" 1 "there is no bundle 'nix/'" stat nix/
check "ls --bundles lists bundles" ctl_json \
	"[b['name'] for b in d] == ['bare/', 'empty/', 'mixed/', 'sharded/', 'two/']" \
	ls --bundles
check "of which only those below a prefix" ctl_json \
	"[(b['name'], b['tensors'], b['bytes'] > 240) for b in d] == [('two/', 3, True)]" \
	ls --bundles two/
check "none begins within its names" ctl_json 'd == []' ls --bundles two/a
long=long/$(printf 'n%.0s' {1..248})/
ctl load bare.safetensors --prefix "$long" >/dev/null
check "the longest name of a bundle is whole in a list" ctl_json \
	"[e['bundle_name'] for e in d] == ['$long'] and len('$long') == 254" \
	ls long/
check "for people, too" grep -q " $long " <(ctl ls --long long/)
ctl rm "$long" >/dev/null

# A get into a FIFO that no process reads holds the whole bundle until the FIFO
# is read.
model write big.safetensors w=1000000 v=1000000
ctl load big.safetensors --prefix big/ >/dev/null
mkfifo held.safetensors
"$fsdpctl" get big/ -o held.safetensors &
holder=$!
exec 7<held.safetensors
eventually "who of a bundle shows its holder once" ctl_json \
	"[(h['pid'], h['holds']) for h in d] == [($holder, 2)]" who big/
if [[ $(id -u) = 0 ]] && command -v setpriv >/dev/null; then
	chmod 711 "$dir" && chmod 777 "$FSDP_SOCKET"
	who_as()
	{
		setpriv --reuid 65533 --regid 65533 "$@" "$fsdpctl" who big/ \
			--json 2>err
	}
	check "an administrator who may not read it sees the holder" json \
		"[(h['pid'], h['holds']) for h in d] == [($holder, 2)]" \
		< <(who_as --groups 65532)
	who_as --clear-groups
	check "no other user does" grep -q "no bundle 'big/' that you may" err
fi
check "stat counts the members that are held" ctl_json "d['held'] == 2" \
	stat big/
cat <&7 >/dev/null &
exec 7<&-
wait $!
check "the holder ends well" wait "$holder"

# --- rm -----------------------------------------------------------------------

names=()
for ((i = 0; i < 300; i++)); do
	names+=("many/x.$i")
done
"$hoard" names many/x 300
check "300 names are there" ctl_json 'len(d) == 300' ls many/
refuse "rm says how far it came" 1 "only 256 of 301 names were removed" \
	rm "${names[@]}" many/nix
check "and a batch goes whole or not at all" ctl_json 'len(d) == 44' ls many/
ctl rm "${names[@]:256}" two/ sharded/ big/
check "they are gone" ctl_json 'd == []' ls many/
"$hoard" names many/x 300
check "rm takes 300 names" ctl rm "${names[@]}"
"$hoard" names many/x 300
for prefix in many/a/ many/b/; do
	ctl load bare.safetensors --prefix "$prefix" >/dev/null
done
refuse "rm wants to know what" 2 "NAME... or --prefix" rm
refuse "rm within a bundle is refused" 1 "within the bundle 'mixed/'" \
	rm --prefix mixed/w
check "rm --prefix takes tensors and bundles" \
	grep -q "^302 names removed$" <(ctl rm --prefix many/)
check "all that begins so is gone" ctl_json 'd == []' ls many/
refuse "rm of a prefix without names says so" 1 "no name begins with 'many/'" \
	rm --prefix many/
check "the others are there" ctl_json 'len(d) == 3' ls --bundles
