#!/bin/bash
# fsdpctl shows all memory, whatever keeps it: du, tickets, stat, clients,
# status; and its tables fit a terminal.
#
#   ctl_memory.sh FSDPD FSDPCTL LIBFSDP
fsdpd=$1 fsdpctl=$2 lib=$3
. "$(dirname "$0")/ctl_lib.sh"

# --- help, which needs no broker ---------------------------------------------

check "help lists the verbs" grep -q "^  tickets " <(ctl help)
check "help of a verb shows what it takes" grep -q -- --sort <(ctl help ls)
refuse "help of an unknown verb gets a suggestion" 2 "did you mean 'stat'" \
	help stta

start_broker

# --- memory that no name shows ------------------------------------------------

# A process with 100 MiB that a view of 16 bytes keeps, a tensor that it never
# published, one that a ticket keeps, and a staged bundle. It ends with its
# standard input.
cat >hoard.py <<'PY'
import ctypes, sys
lib = ctypes.CDLL(sys.argv[1])
class Spec(ctypes.Structure):
    _fields_ = [("dtype", ctypes.c_int), ("n_dims", ctypes.c_uint32), ("shape", ctypes.c_int64 * 8)]
lib.fsdp_error.restype = ctypes.c_char_p
P = ctypes.c_void_p
def do(name, *args):
    if getattr(lib, name)(*args) < 0:
        sys.exit("%s: %s" % (name, lib.fsdp_error().decode()))
def spec(n):
    return ctypes.byref(Spec(2, 1, (ctypes.c_int64 * 8)(n)))
def alloc(n):
    tensor = P()
    do("fsdp_alloc", client, spec(n), ctypes.c_size_t(1), None, 0, ctypes.byref(tensor))
    return tensor
client, view, bundle, member = P(), P(), P(), P()
do("fsdp_connect", None, ctypes.byref(client))
base, sent, unpublished = alloc(100 << 20), alloc(3 << 20), alloc(2 << 20)
do("fsdp_view", base, spec(16), None, ctypes.c_uint64(0), ctypes.byref(view))
lib.fsdp_free(base)
ticket = ctypes.create_string_buffer(16)
do("fsdp_ticket_make", sent, 2, ctypes.c_uint64(600000), ticket)
lib.fsdp_free(sent)
do("fsdp_bundle_begin", client, b"staged/", None, ctypes.byref(bundle))
names = (ctypes.c_char_p * 1)(b"staged/x")
do("fsdp_bundle_alloc", bundle, names, spec(1 << 20), ctypes.c_size_t(1), ctypes.byref(member))
print(ticket.raw.hex(), flush=True)
sys.stdin.read()
PY
mkfifo go
"$python" hoard.py "$lib" <go >ticket &
hoarder=$!
exec 9>go
eventually "there is a ticket" ctl_json 'len(d) == 1' tickets
eventually "and a staged bundle" ctl_json "d['bytes'] == 106 << 20" du

check "du counts what is published, written, and kept otherwise" ctl_json \
	"[(r['key'], r['bytes'], r['writing_bytes'], r['ticket_bytes'], r['limbo_bytes']) for r in d['rows']] == [('$(id -u)', 106 << 20, 3 << 20, 3 << 20, 100 << 20)]" \
	du --by uid
check "du by process names who allocated it" ctl_json \
	"[r['key'] for r in d['rows']] == ['$hoarder']" du --by process
check "du by bundle has staged ones" ctl_json \
	"{r['key']: r['bytes'] for r in d['rows']} == {'': 105 << 20, 'staged/': 1 << 20}" \
	du --by bundle
check "du by prefix is a table, too" grep -Eq "^staged/ +1.0 MiB " \
	<(ctl du --by prefix)
check "du agrees with status" test \
	"$(ctl du --json | "$python" -c 'import json, sys; print(json.load(sys.stdin)["bytes"])')" = \
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

# --- one tensor ---------------------------------------------------------------

head -c 1000 /dev/zero >r.raw
ctl put r.raw --name a/long/name/that/has/some/parts --dtype u8 --shape 1000 \
	>/dev/null
ctl put r.raw --name a/b --dtype u8 --shape 10,100 >/dev/null
head -c 5000 /dev/zero >s.raw
ctl put s.raw --name a/c --dtype u8 --shape 5000 >/dev/null
check "stat shows the block" grep -Eq \
	"^block +1024 \(1.0 KiB\), allocated by a process that has exited" \
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

# in_terminal COLUMNS ARGS...: what fsdpctl prints on a terminal that wide.
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
