#!/bin/bash
# Tests that fsdpctl saves published tensors, restores them, and verifies them
# by digests.
#
#   ctl_save.sh FSDPD FSDPCTL HOARD
fsdpd=$1 fsdpctl=$2 hoard=$3
. "$(dirname "$0")/ctl_lib.sh"

cat >save.py <<'PY'
"""Make files, look into a save, and damage one."""
import json, os, struct, sys
import numpy as np

verb, *args = sys.argv[1:]
if verb == "make":
    rng = np.random.default_rng(3)
    header, data = {"__metadata__": {"step": "7", "note": "ü"}}, b""
    for name, n in (("big", 5 << 20), ("b", 1), ("none", 0), ("odd", (2 << 20) + 13)):
        header[name] = {"dtype": "U8", "shape": [n], "data_offsets": [len(data), len(data) + n]}
        data += rng.integers(0, 256, n, dtype=np.uint8).tobytes()
    text = json.dumps(header).encode()
    open(args[0], "wb").write(struct.pack("<Q", len(text)) + text + data)
    np.save("v.npy", np.arange(1000, dtype="<f4").reshape(10, 100))
    open("c.raw", "wb").write(np.arange(6, dtype="<c16").tobytes())
elif verb == "holds":
    index = json.load(open(args[0] + "/index.json"))
    entries = index["entries"]
    sys.exit(not eval(args[1]))
elif verb == "damage":
    entry = json.load(open(args[0] + "/index.json"))["entries"][args[1]]
    with open(os.path.join(args[0], entry["file"]), "r+b") as f:
        f.seek(-1, 2)
        last = f.read(1)[0]
        f.seek(-1, 2)
        f.write(bytes([last ^ 1]))
PY
"$python" save.py make model.safetensors

export FAKECUDA_DEVICES=3
start_broker
ctl load model.safetensors --prefix m/a/ --mode 0640 >/dev/null
ctl put v.npy --name v --evictable --ttl 1h >/dev/null
ctl put c.raw --dtype c128 --shape 2,3 --name c >/dev/null

# --- verify -------------------------------------------------------------------

check "load and put record digests" ctl_json \
	"(d['verified'], d['without_digest'], d['damaged']) == (7, 0, [])" verify
check "verify takes a prefix" ctl_json "d['verified'] == 5" verify m/
refuse "a prefix of nothing is refused" 1 "no name begins with 'nix'" verify nix
check "and counts in words" grep -q "^1 tensor verified, 3.9 KiB$" \
	<(ctl verify v)
mapfile -t gpus < <(ctl devices | awk '/^GPU-/ { print $1 }')
if ((${#gpus[@]} > 2)); then
	for name in d/11 d/12 d/21 d/22; do
		ctl put v.npy --name $name --device "${gpus[${name:2:1}]}" \
			>/dev/null
	done
	CUDA_VISIBLE_DEVICES=0 refuse "what cannot be read is counted" 1 \
		"cannot read 4 tensors" verify
	check "and each cause is said once" test "$(grep -Eo \
		"verify 'd/..': .*no device [^;]*" err | cut -d "'" -f 2,3)" = \
		"d/11': this process sees no device ${gpus[1]}
d/21': this process sees no device ${gpus[2]}"
	ctl rm d/11 d/12 d/21 d/22
fi
# The digest is XXH3 of the elements.
if "$python" -c 'import xxhash' 2>/dev/null; then
	check "it is what others call XXH3" "$python" -c '
import json, subprocess, sys, xxhash
rows = json.loads(subprocess.check_output([sys.argv[1], "ls", "c", "--json"]))
assert rows[0]["xxh3"] == xxhash.xxh3_64_hexdigest(open("c.raw", "rb").read())
' "$fsdpctl"
fi

# --- save ---------------------------------------------------------------------

check "save writes all names" ctl_json \
	"(d['written'], d['kept']) == (3, 0)" save backup
check "an index says what they are" "$python" save.py holds backup \
	"sorted(entries) == ['c', 'm/a/', 'v'] and entries['m/a/']['mode'] == 0o640 and entries['m/a/']['metadata'] == {'step': '7', 'note': 'ü'} and entries['v']['evictable'] and 0 < entries['v']['ttl_left_ms'] <= 3600000"
check "there is nothing else" test "$(find backup -type f | wc -l)" = 4
check "others cannot read it" test "$(find backup -perm /077 | wc -l)" = 0
check "a file of it is a model" ctl load backup/00001.safetensors \
	--prefix again/ --quiet
ctl rm again/
check "what is there is not written again" ctl_json \
	"(d['written'], d['kept']) == (0, 3)" save backup
ctl put v.npy --name v --replace >/dev/null
check "attributes are saved all the same" ctl_json \
	"(d['written'], d['kept']) == (0, 3)" save backup
check "they are those of now" "$python" save.py holds backup \
	"not entries['v']['evictable'] and entries['v']['ttl_left_ms'] == 0"
head -c 100 /dev/urandom >w.raw
ctl put w.raw --dtype u8 --shape 100 --name w/1 >/dev/null
check "a prefix is saved alone" ctl_json \
	"(d['written'], d['kept']) == (1, 0)" save backup w/
check "and the others stay" "$python" save.py holds backup \
	"sorted(entries) == ['c', 'm/a/', 'v', 'w/1']"
ctl rm w/1
ctl put w.raw --dtype u8 --shape 100 --name w/2 >/dev/null
ctl save backup w/ >/dev/null
check "what is gone goes from the save" "$python" save.py holds backup \
	"sorted(entries) == ['c', 'm/a/', 'v', 'w/2']"
check "with its file" test "$(find backup -name '*.safetensors' | wc -l)" = 4
touch backup/00077.safetensors backup/mine.safetensors
ctl save backup w/ >/dev/null
check "a file that a killed save left is removed" \
	test ! -e backup/00077.safetensors
check "but not one of another name" rm backup/mine.safetensors
refuse "a prefix of nothing is not saved" 1 "begins with 'nix/'" \
	save backup nix/
check "and makes no directory" eval \
	'! ctl save none nix/ && test ! -e none'

# --- a save that is interrupted ------------------------------------------------

head -c 200M /dev/zero | tr '\0' 'x' >large.raw
for name in l/1 l/2; do
	ctl put large.raw --dtype u8 --shape 209715200 --name $name --quiet \
		>/dev/null
done
# The save may be complete before it is killed, so try until it is not.
status=0
until ((status == 137)); do
	rm -rf partial
	ctl save partial m/ --quiet >/dev/null
	"$fsdpctl" save partial --quiet >/dev/null 2>&1 &
	saver=$!
	eventually "the save is at it" bash -c \
		"compgen -G 'partial/.fsdpctl.*' || ! kill -0 $saver"
	kill -KILL $saver 2>/dev/null
	wait $saver 2>/dev/null
	status=$?
done
check "the save before it is whole" "$python" save.py holds partial \
	"sorted(entries) == ['m/a/']"
check "the next one completes it" ctl_json "d['kept'] >= 1" save partial
check "and removes what was left of the other" bash -c \
	'! compgen -G "partial/.fsdpctl.*"'
# One that is stopped between two names notes those that are complete.
status=0
until ((status == 143)); do
	rm -rf stopped
	"$fsdpctl" save stopped --quiet >/dev/null 2>err &
	saver=$!
	eventually "one name is saved" bash -c \
		"test -e stopped/00003.safetensors || ! kill -0 $saver"
	kill -TERM $saver 2>/dev/null
	wait $saver
	status=$?
done
check "a save that is stopped notes what is complete" json \
	"sorted(d['entries']) == ['c', 'l/1', 'm/a/']" <stopped/index.partial.json
check "and says what it left" grep -q "nothing incomplete was left" err
# A get into the directory may be done before it is stopped, so try until it is
# not.
is_stopped=
until [[ $is_stopped ]]; do
	"$fsdpctl" get l/1 -o stopped/l.raw &
	getter=$!
	eventually "a get is at it" bash -c \
		"compgen -G 'stopped/.fsdpctl.*' || ! kill -0 $getter"
	kill -STOP $getter 2>/dev/null
	compgen -G 'stopped/.fsdpctl.*' && is_stopped=1
	[[ $is_stopped ]] || wait $getter
done
ctl save stopped m/ --quiet >/dev/null
kill -CONT $getter
check "a save leaves the temporary file of another program" wait $getter
check "so that it is complete" cmp large.raw stopped/l.raw
exec 8<partial
flock 8
refuse "two saves at a time are refused" 1 "lock partial" save partial
exec 8<&-
check "with all names" "$python" save.py holds partial \
	"sorted(entries) == ['c', 'l/1', 'l/2', 'm/a/', 'v', 'w/2']"
ctl rm l/1 l/2

# Once a save has written its index, no later save brings back what was before.
for name in k/1 k/2; do
	ctl put v.npy --name $name >/dev/null
done
ctl save killed k/ >/dev/null
ctl put c.raw --dtype c128 --shape 2,3 --name k/1 --replace >/dev/null
ctl put c.raw --dtype c128 --shape 2,3 --name k/2 --replace >/dev/null
# (A release has no failpoints.)
FSDP_KILL_AT=save.committed ctl save killed k/ >/dev/null
check "a save is killed when its index is there" test $? = \
	"$(if grep -q FSDP_KILL_AT "$fsdpctl"; then echo 137; else echo 0; fi)"
ctl save killed m/ >/dev/null
ctl rm k/1 k/2
check "what it saved stays saved" ctl_json "d['restored'] == 2" \
	restore killed
check "as it was then" ctl_json "(d['dtype'], d['shape']) == ('c128', [2, 3])" \
	stat k/2

# A save of an earlier version could be killed between the two indexes.
sed "s/c128/f32/" killed/index.json >killed/index.partial.json
touch -d "1 hour ago" killed/index.partial.json
ctl save killed m/ >/dev/null
check "a partial index that is older than the index is not used" \
	grep -q c128 killed/index.json
ctl rm k/1 k/2

# Another user may have made the directory.
mkdir linked
echo precious >precious
ln -s ../precious linked/00001.safetensors
ctl save linked m/ >/dev/null
check "a link is replaced" test ! -L linked/00001.safetensors -a \
	-s linked/00001.safetensors
check "and the file that it leads to stays" grep -qx precious precious

# --- restore ------------------------------------------------------------------

refuse "what was never saved cannot be restored" 1 "no index.json" \
	restore /tmp/nowhere-$$
mkdir -p folder/index.json
refuse "an index that is a directory cannot be restored" 1 \
	"folder/index.json: it is a directory" restore folder
refuse "nor does a save replace it" 1 \
	"folder/index.json: it is a directory" save folder
check "what is there stays" ctl_json \
	"(d['restored'], d['kept']) == (0, 4)" restore backup
kill "$daemon" && wait "$daemon"
start_broker
check "another broker has nothing" ctl_json 'd == []' ls
refuse "with nothing published a save changes nothing" 1 \
	"is published: backup was not changed" save backup
# hoard ends with its standard input.
mkfifo in out
"$hoard" tied scratch <in >out &
tied_pid=$!
exec {tied}>in
read -r _ <out
refuse "nor does one with only a tied name" 1 \
	"is published: backup was not changed" save backup
exec {tied}>&-
wait "$tied_pid"
# The list of names is made before the indexes are read, and a read of a FIFO
# waits until this test writes it.
begin_save()
{
	local fifo=$1/index.partial.json
	mkdir -p "$1"
	mkfifo "$fifo"
	"$fsdpctl" save "$@" --quiet >out 2>err &
	saver=$!
	exec 7>"$fifo"
	rm "$fifo"
}
end_save()
{
	echo '{"format": "fsdp-save-1", "entries": {}}' >&7
	exec 7>&-
	wait $saver
}
ctl put w.raw --dtype u8 --shape 100 --name w/1 >/dev/null
begin_save backup
ctl rm w/1
end_save
check "nor does one whose names are all removed meanwhile" \
	grep -q "is published: backup was not changed" err
ctl put w.raw --dtype u8 --shape 100 --name w/3 --mode 0644 >/dev/null
begin_save replaced
ctl put w.raw --dtype u8 --shape 100 --name w/3 --mode 0600 --replace >/dev/null
end_save
check "a name that becomes private meanwhile is saved as private" \
	"$python" save.py holds replaced "entries['w/3']['mode'] == 0o600"
ctl save replaced >/dev/null
ctl rm w/3
ctl put w.raw --dtype u8 --shape 100 --name w/4 >/dev/null
begin_save replaced
ctl put w.raw --dtype u8 --shape 100 --name w/3 >/dev/null
end_save
check "a name that the list misses stays in the save" \
	"$python" save.py holds replaced "sorted(entries) == ['w/3', 'w/4']"
"$hoard" bundle a/ nonsense
ctl put w.raw --dtype u8 --shape 100 --name __metadata__ >/dev/null
refuse "what cannot be saved does not prevent the rest" 1 \
	"cannot save 2 names" save rest
check "which is saved" "$python" save.py holds rest \
	"sorted(entries) == ['w/3', 'w/4']"
check "and each other name is told" grep -q "'a/'.*not valid JSON" err
check "with the cause" grep -q "'__metadata__'.*cannot hold a tensor" err
ctl rm a/ __metadata__ w/3 w/4
check "the backup is as it was" "$python" save.py holds backup \
	"sorted(entries) == ['c', 'm/a/', 'v', 'w/2']"
check "restore publishes all of it" ctl_json \
	"(d['restored'], d['kept']) == (4, 0)" restore backup
check "with its digests" ctl_json \
	"(d['verified'], d['damaged']) == (8, [])" verify
ctl get m/a/ -o m.safetensors
check "byte by byte" "$python" -c '
import json, struct
def read(path):
    blob = open(path, "rb").read()
    n, = struct.unpack("<Q", blob[:8])
    header = json.loads(blob[8:8 + n])
    return header.pop("__metadata__"), {k: blob[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]] for k, v in header.items()}
assert read("m.safetensors") == read("model.safetensors")'
ctl get c -o c2.raw
check "also what safetensors cannot hold" cmp c.raw c2.raw
check "which has its dtype and shape" ctl_json \
	"(d['dtype'], d['shape']) == ('c128', [2, 3])" stat c
check "modes are back" ctl_json "d['mode'] == '0640'" stat m/a/
ctl rm v
check "a restore that was interrupted goes on" ctl_json \
	"(d['restored'], d['kept']) == (1, 3)" restore backup
head -c 100 /dev/zero >w.raw
ctl put w.raw --dtype u8 --shape 100 --name w/2 --replace >/dev/null
refuse "other contents are not replaced" 1 "with different contents" restore backup
check "unless that is wanted" ctl_json "d['restored'] == 1" \
	restore backup --replace
# other_kind WHAT: no name of the save "kinds" is taken for what was saved.
other_kind()
{
	refuse "$1 is not what was saved" 1 "with different contents" \
		restore kinds
	check "and can be replaced" ctl_json \
		"(d['restored'], d['kept']) == (1, 0)" restore kinds --replace
	check "by what is then kept" ctl_json \
		"(d['restored'], d['kept']) == (0, 1)" restore kinds
}
ctl put w.raw --dtype u8 --shape 100 --name k/1 >/dev/null
ctl save kinds k/ >/dev/null
ctl put w.raw --dtype i8 --shape 100 --name k/1 --replace >/dev/null
other_kind "another dtype"
ctl put w.raw --dtype u8 --shape 10,10 --name k/1 --replace >/dev/null
other_kind "another shape"
ctl rm k/1
rm -r kinds
"$hoard" bundle k/ '{"a": "b"}'
ctl save kinds k/ >/dev/null
check "a bundle of metadata alone is kept" ctl_json \
	"(d['restored'], d['kept']) == (0, 1)" restore kinds
ctl rm k/
"$hoard" bundle k/ '{"a": "c"}'
other_kind "other metadata"
ctl rm k/
"$hoard" bundle k/ '{"a": "b"}' x
other_kind "a bundle with another member"
ctl rm k/
ctl put w.raw --dtype u8 --shape 100 --name k/__metadata__ >/dev/null
refuse "a tensor is not the bundle that was saved" 1 \
	"with different contents" restore kinds
ctl rm k/__metadata__
"$hoard" names k/x 2
"$hoard" bundle k/b/ '{"a": "b"}' y
ctl save plain k/ >/dev/null
check "what was published without digests is kept" ctl_json \
	"(d['restored'], d['kept']) == (0, 3)" restore plain
# A restore stops when it has listed the names. restored_when_gone WHAT NAME...:
# it restores the names that end then. (A release has no failpoints.)
restored_when_gone()
{
	local what=$1 restorer
	shift
	echo client.list.received 1 >plan
	FSDP_STOP_PLAN=plan "$fsdpctl" restore plain --json >out 2>err &
	restorer=$!
	eventually "a restore has listed the names" \
		grep -q "^State:.T" "/proc/$restorer/status"
	ctl rm "$@"
	kill -CONT "$restorer"
	check "it goes on" wait "$restorer"
	check "$what" json "d['restored'] == $# and d['kept'] == 3 - $#" <out
}
if grep -q FSDP_STOP_PLAN "$fsdpctl"; then
	restored_when_gone "names that end before they are read are restored" \
		k/x.0 k/b/
	restored_when_gone "so is a bundle with digests" k/b/
	ctl rm k/x.0
	"$hoard" names k/x 1
fi
# An address space as large as a chunk cannot map one. A sanitizer needs more.
if ! grep -q __asan_init "$fsdpctl"; then
	(ulimit -v 65536 && "$fsdpctl" restore plain 2>err)
	check "what cannot be read is not restored" test $? = 1
	check "nor is it said to be different" grep -q \
		"'k/x.0': it exists, and its contents cannot be read: .*memory" err
fi
ctl rm k/x.0
printf abcd >x.raw
ctl put x.raw --dtype u8 --shape 4 --name k/x.0 >/dev/null
ctl save plain k/ >/dev/null
ctl rm k/x.0 k/x.1
"$hoard" names k/x 2
refuse "unless its contents differ" 1 "'k/x.0' exists with different contents" \
	restore plain
check "which is said of it alone" grep -q "cannot restore 1 name;" err
check "and can be mended" ctl_json "(d['restored'], d['kept']) == (1, 2)" \
	restore plain --replace
ctl rm k/x.0 k/x.1 k/b/
ctl rm m/a/ v
"$python" save.py damage backup m/a/
refuse "a damaged tensor is named" 1 "tensor 'odd'" restore backup
check "with its fault" grep -q "damaged: its XXH3" err
check "and counted" grep -q "cannot restore 1 name;" err
check "and nothing of its bundle is there" ctl_json "d == []" ls m/
check "but the other names are" ctl_json "d['name'] == 'v'" stat v
sed -i 's/fsdp-save-1/fsdp-save-9/' backup/index.json
refuse "an index of a later version is refused" 1 "later version" restore backup

# --- other users --------------------------------------------------------------

[[ $(id -u) = 0 ]] && command -v setpriv >/dev/null || exit 0
as_other()
{
	setpriv --reuid 65533 --regid 65534 --groups 65532 "$@"
}
chmod 711 "$dir" && chmod 777 "$FSDP_SOCKET"
ctl rm c v w/2
ctl put w.raw --dtype u8 --shape 100 --name mine >/dev/null
as_other "$fsdpctl" put w.raw --dtype u8 --shape 100 --name o/1 --mode 0600 \
	>/dev/null
as_other "$fsdpctl" load model.safetensors --prefix o/m/ --group 65532 --mode 0640 --quiet \
	>/dev/null
check "root saves the names of all" ctl_json "d['written'] == 3" save all
kill "$daemon" && wait "$daemon"
start_broker
chmod 777 "$FSDP_SOCKET"
chown 65533 all/index.json
refuse "an index of another user is refused" 1 "chown it to root" \
	restore all
check "and nothing was restored from it" ctl_json "d == []" ls
chown 0 all/index.json
chmod g+w all/index.json
refuse "also one that a group could write" 1 "with mode 0600" restore all
chmod g-w all/index.json
check "root restores them for their owners" ctl_json "d['restored'] == 3" \
	restore all
check "who own them" ctl_json \
	"{r['name'].split('/')[0]: r['uid'] for r in d} == {'mine': 0, 'o': 65533}" ls
check "with their groups and modes" ctl_json \
	"(d['gid'], d['mode']) == (65532, '0640')" stat o/m/
check "and can remove them" as_other "$fsdpctl" rm o/1 o/m/
check "only what is gone is restored again" ctl_json \
	"(d['restored'], d['kept']) == (2, 1)" restore all

# Root's own broker is used also where the other user has one. A mount namespace
# has the default paths of both; $dir is in its /run.
[[ $fsdpctl != /tmp/* && $dir == /tmp/* ]] && unshare -m true 2>/dev/null || exit 0
ctl rm o/1 o/m/
ln -s sock fsdpd.sock
check "root speaks to its own broker as another user" unshare -m bash -c '
	set -e
	mount -t tmpfs none /run
	mkdir /run/fsdpd
	mount --bind "$0" /run/fsdpd
	mount -t tmpfs none /tmp
	mkdir /tmp/fsdpd-65533
	touch /tmp/fsdpd-65533/fsdpd.sock
	chown -R 65533 /tmp/fsdpd-65533
	unset FSDP_SOCKET
	"$1" restore /run/fsdpd/all' "$dir" "$fsdpctl"
check "and restores there" ctl_json "d['uid'] == 65533" stat o/1
