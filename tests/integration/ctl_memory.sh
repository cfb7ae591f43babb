#!/bin/bash
# Tests that fsdpctl shows all memory, whatever keeps it (du, tickets, stat,
# clients, status), and that its tables fit into a terminal.
#
#   ctl_memory.sh FSDPD FSDPCTL HOARD
fsdpd=$1 fsdpctl=$2 hoard=$3
. "$(dirname "$0")/ctl_lib.sh"

# --- help, which needs no broker ---------------------------------------------

check "help lists the verbs" grep -q "^  tickets " <(ctl help)
check "help of a verb shows what it takes" grep -q -- --sort <(ctl help ls)
refuse "help of an unknown verb gets a suggestion" 2 "did you mean 'stat'" \
	help stta

start_broker

# --- memory that no name shows ------------------------------------------------

mkfifo go
"$hoard" memory <go >ticket &
hoarder=$!
exec 9>go
man=$(dirname "$0")/../../docs/man/fsdpctl.1
eventually "there is a ticket" ctl_json 'len(d) == 1' tickets
eventually "which is printed" test -s ticket
eventually "and a staged bundle" ctl_json "d['bytes'] == 106 << 20" du

# Check that the manual has every title of a table, every key of a document in
# parentheses, and every counter.
cat >manual.py <<'PY'
import json, re, subprocess, sys
text = re.sub(r"\n\.[A-Z]+ |[\n\"]|\\-", lambda m: "-" if m[0] == "\\-" else " ", open(sys.argv[1]).read())
keys = {k.strip() for group in re.findall(r"\(([a-z0-9_, ]+)\)", text) for k in group.split(",")}
words = set(re.findall(r"[\w.-]+", text))
graph = sys.argv[3]
missing = set()
def ask(*args):
    return subprocess.run([sys.argv[2], *args], check=True, capture_output=True, text=True).stdout
def check(document):
    if isinstance(document, list):
        for item in document:
            check(item)
    elif isinstance(document, dict):
        missing.update(document.keys() - keys)
        missing.update({re.sub("^GPU-[0-9a-f-]*", "GPU-...", k) for k in document.get("counters", ())} - words)
        for key in document.keys() - {"counters", "metadata", "graph"}:
            check(document[key])
group = json.loads(ask("groups", "--json"))[0]
for args in (["ls", "--long"], ["ls", "--bundles", "--long"], ["clients"], ["tickets"], ["du"], ["limbo"], ["who", "shown"],
             ["comms"], ["groups"], ["groups", group["comm"], group["name"]], ["channels"], ["prefixes"], ["config"], ["devices"],
             ["plan", graph], ["plan", graph, "--faithful", "--cap-mb", "0"]):
    check(json.loads(ask(*args, "--json")))
    titles = [title for line in ask(*args).split("\n") if line.isupper() for title in re.split(r"  +", line.strip())]
    missing.update(title for title in titles if title not in text)
    assert titles, args
for args in (["stat", "shown"], ["stat", "set/"], ["status"], ["ping"], ["collect"], ["trim"], ["evict", "1"],
             ["save", "saved", "shown"], ["restore", "saved"], ["verify", "shown"], ["wait", "shown"],
             ["put", "shown.raw", "--name", "shown", "--replace", "--dtype", "u8", "--shape", "10"],
             ["load", "set.safetensors", "--prefix", "set/", "--replace"]):
    check(json.loads(ask(*args, "--json")))
sys.exit("not in the manual: %s" % sorted(missing) if missing else 0)
PY
head -c 10 /dev/zero >shown.raw
ctl put shown.raw --name shown --dtype u8 --shape 10 >/dev/null
"$python" - >set.safetensors <<'PY'
import json, sys
header = json.dumps({"__metadata__": {"format": "pt"}, "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}).encode()
sys.stdout.buffer.write(len(header).to_bytes(8, "little") + header + bytes(1))
PY
ctl load set.safetensors --prefix set/ >/dev/null
mkfifo gate
"$hoard" run <gate &
runner=$!
exec 8>gate
eventually "there is a channel and a group" ctl_json 'len(d) == 1' channels
check "the manual has all columns and keys" "$python" manual.py "$man" "$fsdpctl" \
	"${man%/*/*}/graphs/two_layers.json"
exec 8>&-
wait "$runner"
eventually "a group that is over can be removed" ctl end team/run
ctl rm shown set/
eventually "and its memory is free" ctl_json "d['bytes'] == 106 << 20" du

check "du counts what is published, written, and kept otherwise" ctl_json \
	"[(r['key'], r['bytes'], r['writing_bytes'], r['ticket_bytes'], r['limbo_bytes']) for r in d['rows']] == [('$(id -u)', 106 << 20, 3 << 20, 3 << 20, 100 << 20)]" \
	du --by uid
check "du by process names who allocated it" ctl_json \
	"[r['key'] for r in d['rows']] == ['$hoarder']" du --by process
check "and its command" grep -q "^$hoarder (hoard) " <(ctl du --by process)
check "du by bundle has staged ones" ctl_json \
	"{r['key']: r['bytes'] for r in d['rows']} == {'': 105 << 20, 'staged/': 1 << 20}" \
	du --by bundle
check "du by prefix is a table, too" grep -Eq "^staged/ +1.0 MiB " \
	<(ctl du --by prefix)
check "du agrees with status" test \
	"$(ctl du --json | "$python" -c 'import json, sys; d = json.load(sys.stdin); print(d["bytes"] + d["board_bytes"])')" = \
	"$(ctl status --json | "$python" -c 'import json, sys; c = json.load(sys.stdin)["counters"]; print(c["bytes_live"] + c["device_bytes_live"])')"
check "du says the total" grep -q "^total: 106.0 MiB in 4 blocks$" <(ctl du)
refuse "du by anything else is refused" 2 "not uid, process, bundle or prefix" \
	du --by user

secret=$(cat ticket)
check "tickets shows what a ticket keeps, and whose it is" ctl_json \
	"[(t['ticket'], t['block_bytes'], t['pid'], t['uid'], t['uses_left']) for t in d] == [('${secret:0:16}', 3 << 20, $hoarder, $(id -u), 2)]" \
	tickets
check "tickets is a table without the secret" \
	test -z "$(ctl tickets | grep "$secret")"
refuse "a made-up ticket cannot be revoked" 1 "unknown, used up, or expired" \
	revoke 0123456789abcdef
refuse "what is no ticket is refused" 2 "16 hexadecimal digits" revoke "$secret"
check "a ticket is revoked" ctl revoke "${secret:0:16}"
check "and its memory is free" ctl_json "d['bytes'] == 103 << 20" du

check "clients counts what is held and what is allocated" ctl_json \
	"[(c['held'], c['allocated_bytes']) for c in d if c['pid'] == $hoarder] == [(3, 103 << 20)]" \
	clients
exec 9>&-
wait "$hoarder"
eventually "all is free when the process ends" ctl_json "d['bytes'] == 0" du

check "du says nothing of boards where there are none" \
	test -z "$(ctl du | grep boards)"
"$hoard" board <go &
hoarder=$!
exec 9>go
eventually "du has the board of a communicator" ctl_json \
	"(d['bytes'], d['board_bytes']) == (0, 4 << 20)" du
check "and says it" grep -q "^4.0 MiB more are charged for boards, " <(ctl du)
check "so does status" ctl_json \
	"[d['counters'][k] for k in ('board_bytes', 'own_bytes', 'bytes_live')] == [4 << 20, 4 << 20, 0]" \
	status
exec 9>&-
wait "$hoarder"
eventually "it is free when the rank has left" ctl_json \
	"d['board_bytes'] == 0" du

# --- one tensor ---------------------------------------------------------------

head -c 1000 /dev/zero >r.raw
ctl put r.raw --name a/long/name/that/has/some/parts --dtype u8 --shape 1000 \
	>/dev/null
ctl put r.raw --name a/b --dtype u8 --shape 10,100 >/dev/null
head -c 5000 /dev/zero >s.raw
ctl put s.raw --name a/c --dtype u8 --shape 5000 >/dev/null
check "stat shows the block" grep -Eq \
	"^block +1024 \(1.0 KiB\), allocated by a process that has exited or is another user's" \
	<(ctl stat a/b)
check "stat --json has it, too" ctl_json \
	"d['block_bytes'] == 1024 and d['block_tensors'] == 1 and d['tickets'] == 0" \
	stat a/b

# --- lists --------------------------------------------------------------------

check "ls sorts by bytes" ctl_json "d[0]['name'] == 'a/c'" ls --sort bytes
check "ls sorts by age" ctl_json "d[-1]['name'] == 'a/c'" ls --sort age
refuse "ls sorts by nothing else" 2 "not name, bytes, age or holders" \
	ls --sort size
check "ls --long has more columns" grep -q "MODE .* BLOCK .* TICKETS" \
	<(ctl ls --long)
check "ls without it has not" test -z "$(ctl ls | grep MODE)"

# in_terminal COLUMNS ARGS...: print what fsdpctl prints on a terminal of that
# width.
in_terminal()
{
	"$python" - "$fsdpctl" "$@" <<'PY'
import fcntl, os, pty, struct, sys, termios
master, slave = pty.openpty()
fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, int(sys.argv[2]), 0, 0))
if os.fork() == 0:
    os.dup2(slave, 1)
    os.execv(sys.argv[1], ["fsdpctl"] + sys.argv[3:])
os.close(slave)
text = b""
try:
    while piece := os.read(master, 65536):
        text += piece
except OSError: # it has ended
    pass
print(text.decode().replace("\r\n", "\n"), end="")
PY
}
in_terminal 60 ls --long >narrow
check "a table fits the terminal" test "$(wc -L <narrow)" -le 60
check "names are cut in the middle" grep -q '^a/lon.*\.\..*parts ' narrow
check "a wide terminal shows all" grep -q '^a/long/name/that/has/some/parts ' \
	<(in_terminal 200 ls)
check "so does a pipe" grep -q '^a/long/name/that/has/some/parts ' <(ctl ls)

# --- status -------------------------------------------------------------------

ctl status >status
check "status says used of total" \
	grep -Eq '^host memory +[0-9.]+ KiB used of [0-9.]+ [GMT]iB ' status
check "status warns of no missing supervisor where there is one" \
	test -z "$(grep "^warning: .* supervised" status)"
ctl rm a/b
kill "$daemon" && wait "$daemon"
"$fsdpd" --socket "$FSDP_SOCKET" >"$dir/log" 2>&1 &
daemon=$!
eventually "the broker answers without a supervisor" ctl ping
check "status warns of that" \
	grep -q '^warning: the broker is not supervised' <(ctl status)
