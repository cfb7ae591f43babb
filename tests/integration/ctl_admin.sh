#!/bin/bash
# Tests that fsdpctl waits for names, watches them, and works for
# administrators: collect, trim, evict, drain, log-level.
#
#   ctl_admin.sh FSDPD FSDPCTL HOARD
fsdpd=$1 fsdpctl=$2 hoard=$3
. "$(dirname "$0")/ctl_lib.sh"

printf '[access]\nadmin_group = root\n[prefixes]\nmine = root\n' >conf
start_broker --config conf
head -c 16 /dev/zero >x.raw
put()
{
	ctl put x.raw --dtype u8 --shape 16 "$@" >/dev/null
}

status_has()
{
	ctl_json "$1" status
}

# --- status ---------------------------------------------------------------

"$python" -c '
import os, socket
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect(os.environ["FSDP_SOCKET"])
s.send(b"no frame")
s.recv(1)'
check "status counts what it warns of" grep -qx \
	"warning: 1 connection was dropped: the broker's log says why" \
	<(ctl status)
check "the log says whose, and why" grep -Eq \
	"the connection of process [0-9]+ of uid $(id -u) was dropped \(1 so far\): [a-z]" \
	log

# --- wait ---------------------------------------------------------------------

"$fsdpctl" wait one --timeout 60s >wait.out &
waiter=$!
eventually "wait waits" status_has "d['counters']['waiters'] == 1"
put --name one
check "and ends when the name is published" wait $waiter
check "and says which version it was" grep -qx "one version 1" wait.out
check "what is there is not waited for" ctl_json \
	"d == {'name': 'one', 'version': 1}" wait one
refuse "a wait for a newer version ends after its time" 1 "one" \
	wait one --newer-than 1 --timeout 20
"$fsdpctl" wait one --newer-than 1 --timeout 60s >wait.out &
waiter=$!
eventually "wait waits for a newer version" status_has \
	"d['counters']['waiters'] == 1"
put --name one --replace
check "and gets it" wait $waiter
check "by its number" grep -qx "one version 2" wait.out
refuse "what is no name is refused" 2 "" wait /x

# --- watch --------------------------------------------------------------------

"$fsdpctl" watch a --count 5 >watch.out 2>watch.err &
watcher=$!
"$fsdpctl" watch a --count 5 --json >watch.json 2>json.err &
watcher_json=$!
eventually "watch begins" grep -q watching watch.err
eventually "twice" grep -q watching json.err
put --name other
put --name a1
put --name a1 --replace
put --name a2 --ttl 50
ctl rm a1
check "watch ends after as many events as it was told" wait $watcher
check "both do" wait $watcher_json
cat >watch.want <<'END'
published a1 1
published a1 2
published a2 1
removed a1 2
expired a2 1
END
check "they are the events below the prefix" \
	diff <(sort watch.want) <(sort watch.out)
check "each is an object" "$python" -c '
import json, sys
rows = [json.loads(line) for line in open("watch.json")]
assert len(rows) == 5, rows
assert all(row["uid"] == int(sys.argv[1]) for row in rows), rows
assert {row["event"] for row in rows} == {"published", "removed", "expired"}
' "$(id -u)"

# A program without standard files must not print into its connection.
"$fsdpctl" watch b --count 1 >watch.out <&- 2>&- &
watcher=$!
eventually "a watcher without standard error waits" status_has \
	"d['counters']['waiters'] == 1"
put --name b
check "and ends" wait $watcher
check "what it says gets to nobody" status_has \
	"d['counters']['dropped_peers'] == 1"
"$fsdpd" --socket own <&- >&- 2>&- &
own=$!
eventually "a broker without standard files answers" ctl ping --socket own
kill $own
check "and ends well" wait $own

# A watcher that is stopped during a flood is only told that events were lost.
"$fsdpctl" watch flood >flood.out 2>flood.err &
watcher=$!
eventually "watch begins again" grep -q watching flood.err
eventually "it waits" status_has "d['counters']['waiters'] == 1"
kill -STOP $watcher
"$hoard" names flood/x 3000
ctl rm --prefix flood/ >/dev/null
"$hoard" names flood/x 3000
kill -CONT $watcher
eventually "lost events are said" grep -qx lost flood.out
eventually "and the last one is there" grep -qx "published flood/x.2999 1" \
	flood.out
check "and 4,096 in all" test "$(wc -l <flood.out)" -gt 4096
ctl rm --prefix flood/ >/dev/null
kill $watcher

# --- collect, trim, evict -----------------------------------------------------

check "collect says what it freed" grep -qx "0 tensors freed, 0 B" \
	<(ctl collect)
head -c 64M /dev/zero >big.raw
ctl put big.raw --dtype u8 --shape 67108864 --name big >/dev/null
ctl rm big
check "free memory stays for a while" status_has \
	"d['counters']['free_warm'] >= 64 << 20"
check "trim says so" ctl_json "d['bytes'] >= 64 << 20" trim
eventually "and it goes back to the kernel" status_has \
	"d['counters']['free_warm'] < 64 << 20"
ctl put big.raw --dtype u8 --shape 67108864 --name kept >/dev/null
ctl put big.raw --dtype u8 --shape 67108864 --name e1 --evictable >/dev/null
ctl put big.raw --dtype u8 --shape 67108864 --name e2 --evictable >/dev/null
check "evict drops what it must" ctl_json \
	"d == {'count': 1, 'bytes': 64 << 20}" evict 1M
check "and all that it can" grep -qx "1 tensor evicted, 64.0 MiB" \
	<(ctl evict 10G)
check "but nothing else" ctl_json "[e['name'] for e in d] == ['kept']" ls kept
check "then there is nothing to evict" ctl_json "d['count'] == 0" evict 1
refuse "a size is a number with a unit" 2 "is not a size" evict lots
refuse "0 bytes are not evicted" 2 "greater than 0" evict 0

# --- log-level ----------------------------------------------------------------

check "log-level takes a level" ctl log-level error
refuse "and no other word" 2 "error, warning and info" log-level loud
check "log-level goes back" ctl log-level info

# --- configuration ------------------------------------------------------------

check "config says where each value is from" ctl_json \
	"{'section': 'memory', 'key': 'chunk_min', 'value': '64M',
	'origin': 'default'} in d" config
check "a group has its name and number" grep -Eq \
	"^access +admin_group +root \(0\) +.*conf:2\$" <(ctl config)
check "and a user" grep -Eq "^prefixes +mine +root \(0\) " <(ctl config)
check "JSON has the number" ctl_json \
	"[e['value'] for e in d if e['key'] in ('admin_group', 'mine')] == ['0', '0']" config
check "reload says what has changed" grep -qx "nothing has changed" \
	<(ctl reload)

# --- drain --------------------------------------------------------------------

mkfifo go
"$hoard" memory <go >/dev/null &
hoarder=$!
exec 9>go
eventually "a process holds memory" ctl_json \
	"any(c['command'] == 'hoard' for c in d)" clients
refuse "drain names who is still there" 1 "process $hoarder (hoard)" \
	drain --timeout 50
check "status says so" grep -q "^warning: the broker is being drained" \
	<(ctl status)
if [[ $(id -u) = 0 ]] && command -v setpriv >/dev/null; then
	as_other() { setpriv --reuid 65533 --regid 65533 --clear-groups "$@"; }
	as_other "$fsdpctl" ping -c 1 2>drain.err
	check "who may not reach the socket is told so" grep -q \
		"Permission denied; only its owner and group may" drain.err
	chmod 711 "$dir" && chmod 777 "$FSDP_SOCKET"
	as_other "$fsdpctl" ping -c 1 2>drain.err
	check "others get no session meanwhile" grep -q "is being drained" \
		drain.err
	kill -9 "$(ctl status --json |
		"$python" -c 'import json, sys; print(json.load(sys.stdin)["counters"]["pid"])')"
	eventually "the broker was restarted" ctl ping -c 1
	as_other "$fsdpctl" ping -c 1 2>drain.err
	check "nor after a restart" grep -q "is being drained" drain.err
	ctl drain --cancel
	check "until drain is cancelled" as_other "$fsdpctl" ping -c 1
	for verb in collect trim "evict 1" drain "drain --cancel" \
		"log-level info" "status --reset" reload; do
		as_other "$fsdpctl" $verb 2>other.err
		check "$verb is for administrators" grep -Eq \
			"cannot .*: only root.*admin_group" other.err
	done
fi
"$fsdpctl" drain 9>&- &
drainer=$!
eventually "drain waits" status_has "d['counters']['draining'] == 1"
exec 9>&-
check "until the last session has ended" wait $drainer
wait $hoarder
check "drain ends when it is cancelled" ctl drain --cancel
: >conf
ctl reload >/dev/null
check "a group that is not set is shown as none" grep -Eq \
	"^access +admin_group +none +default\$" <(ctl config)
