#!/bin/bash
# Tests fsdpctl top in a pseudo terminal and as plain text.
#
#   ctl_top.sh FSDPD FSDPCTL HOARD
fsdpd=$1 fsdpctl=$2 hoard=$3
. "$(dirname "$0")/ctl_lib.sh"

start_broker
mkfifo go ready
"$hoard" memory <go >ready &
hoarder=$!
exec 9>go
read -r _ <ready
head -c 4096 /dev/zero >x.raw
ctl put x.raw --dtype u8 --shape 4096 --name shown/x >/dev/null

# --- plain text ---------------------------------------------------------------

view()
{
	ctl top --batch -n 1 --view "$@"
}

check "processes are listed by their memory" \
	grep -Eq "^ *$hoarder +hoard +[a-z]+ +[0-9.]+ MiB" <(view processes)
check "the largest first" test \
	"$(view processes | awk 'NR == 8 { print $2 }')" = hoard
check "or by another column" test \
	"$(view processes --sort requests | awk 'NR == 8 { print $2 }')" != ""
check "memory is used of its limit" grep -Eq \
	"^memory: 106.[0-9] MiB used of [0-9.]+ [MGT]iB \([0-9.]+ MiB in chunks\); " \
	<(view users)
check "users have what they are charged" \
	grep -Eq "^$(id -un) +106.0 MiB" <(view users)
check "tensors are there" grep -q "^shown/x " <(view tensors)
check "the maker of one has ended" grep -q "^shown/x .* -$" <(view tensors)
check "that of another runs" grep -q " $hoarder$" <(view tensors)
check "limbo is there" grep -Eq "^- +16 B" <(view limbo)
check "pools are there" grep -Eq " 0600 +[0-9.]+ MiB" <(view pools)
check "communicators are there" grep -q "^NAME  STATE" <(view comms)
check "counts have their noun" grep -q "^collectives: 0 communicators; " \
	<(view comms)
check "two pages have rates" test "$(ctl top --batch --pages 2 --delay 100ms |
	grep -c "^rates: ")" = 2
check "of requests, too" grep -Eq "^rates: [1-9][0-9]* requests/s" \
	<(ctl top --batch -n 2 --delay 100ms)
refuse "an unknown column is refused" 2 \
	"no column 'nix': give one of OWNER, HOST, OF, DEVICES, TENSORS" \
	top --batch --view users --sort nix
refuse "an unknown view is refused" 2 "pools or comms" top --view nix
refuse "a file is no screen" 2 "--batch" top
refuse "a screen has no last page" 2 "--pages needs --batch" top --pages 2

# More tensors than a screen has lines; many/007 has 7 bytes.
"$python" - <<'PY'
import json
sizes = [i * 7 % 300 + 1 for i in range(300)]
header, at = {}, 0
for size in sizes:
    header["%03d" % size] = {"dtype": "U8", "shape": [size],
                             "data_offsets": [at, at + size]}
    at += size
text = json.dumps(header).encode()
with open("many.safetensors", "wb") as file:
    file.write(len(text).to_bytes(8, "little") + text + bytes(at))
PY
ctl load many.safetensors --prefix many/ --quiet
check "a page has as many rows as are wanted, the first ones" cmp \
	<(view tensors --rows 9 | tail -n +8 | awk '{ print $1 }') \
	<(view tensors | sed -n 8,16p | awk '{ print $1 }')
check "which are the largest" test \
	"$(view tensors --rows 9 | awk '/many/ { print $1 }' | head -n 1)" = many/300
check "a page may have more rows than there are" cmp \
	<(view tensors --rows 1000 | tail -n +8 | awk '{ print $1 }') \
	<(view tensors | tail -n +8 | awk '{ print $1 }')
refuse "a screen has its own number of rows" 2 "--rows needs --batch" top --rows 2

# --- the screen ---------------------------------------------------------------

cat >screen.py <<'PY'
import fcntl, os, pty, select, signal, struct, sys, termios, time

def resize(fd, rows, columns):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

pid, fd = pty.fork()
if pid == 0:
    resize(0, 24, 100)
    os.environ["TERM"] = "xterm"
    os.execv(sys.argv[1], [sys.argv[1], "top", "--delay", "1h"])
seen = b""

def wait_for(*texts):
    """Each text must come after what was looked for before."""
    global seen
    end = time.monotonic() + 20
    while not all(text in seen for text in texts):
        if not select.select([fd], [], [], end - time.monotonic())[0]:
            sys.exit("not seen: %r in %r" % (texts, seen))
        seen += os.read(fd, 65536)
    shown, seen = seen, b""
    return shown

wait_for(b"memory: ", b"ALLOCATED", b"hoard", b"q quit")
os.write(fd, b"2")
wait_for(b"SESSIONS", b"106.1 MiB", b"users by HOST", b"3 tensors  4 limbo")
os.write(fd, b"s\x0c")
wait_for(b"users by OF")
os.write(fd, b"3")
wait_for(b"shown/x", b"tensors by BYTES")
os.write(fd, b"\x1b[6~\x0c")
wait_for(b"many/280")
os.write(fd, b"\x1b[6~" * 20 + b"\x0c")
wait_for(b"many/001")
os.write(fd, b"\x1b[5~" * 20 + b"\x0c")
wait_for(b"many/300")
os.write(fd, b"r" + b"\x0c")
wait_for(b"many/001")
os.write(fd, b"1")
wait_for(b"hoard", b"REQUESTS", b"processes by ALLOCATED")
resize(fd, 12, 44)
shown = wait_for(b"hoard", b"ALLOCATED")
assert b"REQUESTS" not in shown, shown
resize(fd, 24, 120)
wait_for(b"REQUESTS", b"hoard")
os.write(fd, b"sr ")
os.write(fd, b"q")
wait_for(b"\x1b[?1049l")
_, status = os.waitpid(pid, 0)
sys.exit(os.waitstatus_to_exitcode(status))
PY
check "the screen has views, can be resized, and ends with q" \
	"$python" screen.py "$fsdpctl"
# A name of 61 characters has 113 bytes.
ctl put x.raw --dtype u8 --shape 4096 --name \
	"модель/слой/внимание/ключ/вес_матрицы_проекции_номер_один_два" >/dev/null
cat >characters.py <<'PY'
import fcntl, os, pty, struct, sys, termios

pid, fd = pty.fork()
if pid == 0:
    fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    os.environ["TERM"], os.environ["LC_ALL"] = "xterm", "C.UTF-8"
    os.execv(sys.argv[1], [sys.argv[1], "top", "--view", "tensors"])
seen = b""
while b"q quit" not in seen:
    seen += os.read(fd, 65536)
os.write(fd, b"q")
try:
    while True:  # until the end, which is an error of a terminal
        seen += os.read(fd, 65536)
except OSError:
    os.waitpid(pid, 0)
row = seen.decode(errors="replace").split("внимание")[1].split("\r")[0]
sys.exit("4.0 KiB" not in row and row)
PY
check "a row of characters with several bytes is not cut" \
	"$python" characters.py "$fsdpctl"
cat >gone.py <<'PY'
import os, pty, signal, sys

pid, fd = pty.fork()
if pid == 0:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    os.environ["TERM"] = "xterm"
    if sys.argv[2:]:
        os.dup2(os.open(sys.argv[2], os.O_RDONLY), 0)
    os.execv(sys.argv[1], [sys.argv[1], "top", "--delay", "1h"])
seen = b""
while b"q quit" not in seen and b"--batch" not in seen:
    seen += os.read(fd, 65536)
if not sys.argv[2:]:
    os.close(fd)
signal.signal(signal.SIGALRM, lambda *_: os.kill(pid, signal.SIGKILL))
signal.alarm(300)
_, status = os.waitpid(pid, 0)
print(seen.decode())
sys.exit(os.waitstatus_to_exitcode(status))
PY
check "top ends when its terminal hangs up" \
	"$python" gone.py "$fsdpctl"
"$python" gone.py "$fsdpctl" /dev/null >out
check "keys need a terminal, too" grep -q \
	"standard input is not a terminal: give --batch" out

# --- a restart ------------------------------------------------------------------

# top stands still while the broker is started again, and then shows its second
# page.
"$fsdpctl" top --batch -n 2 --delay 1s >pages &
top=$!
eventually "top shows a page" grep -q " hoard " pages
kill -STOP $top
kill -KILL "$(ctl status --json |
	"$python" -c 'import json, sys; print(json.load(sys.stdin)["counters"]["pid"])')"
eventually "the broker is there again" ctl ping
kill -CONT $top
check "top shows another page" wait $top
check "counts of requests that began again are no rate" \
	awk '/ hoard / && $7 > 1e9 { bad = 1 } END { exit bad }' pages
exec 9>&-
wait $hoarder
