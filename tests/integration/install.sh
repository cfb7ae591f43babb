#!/bin/bash
# Tests the result of `cmake --install` in any prefix. The programs start and
# find their library. README's two C programs are built against it by pkg-config
# and by CMake's find_package(), without a warning, and pass a tensor. The
# target `uninstall` removes all files.
#
#   install.sh BUILD_DIRECTORY CC [FLAG]...
set -u

build=$(realpath "$1") cc=$2
shift 2
flags=("$@")
readme=$(dirname "$(realpath "$0")")/../../README.md
dir=$(mktemp -d)
prefix=$dir/prefix
daemon=

finish()
{
	local rc=$?
	[[ -n $daemon ]] && kill "$daemon" 2>/dev/null && wait "$daemon"
	((rc)) && cat "$dir/log"
	rm -rf "$dir"
	exit $rc
}
trap finish EXIT

# All output is in the log, which is shown if something fails.
check()
{
	local what=$1
	shift
	if ! "$@" >>"$dir/log" 2>&1; then
		echo "FAILED: $what"
		exit 1
	fi
	echo "ok: $what"
}

# c_block N: print the Nth C program in README.
c_block()
{
	awk -v n="$1" '/^```c$/ { i++; inside = 1; next } /^```/ { inside = 0 }
		inside && i == n' "$readme"
}

is_answering()
{
	until fsdpctl ping --count 1; do
		kill -0 "$daemon" || return
		sleep 0.01
	done
}

check "it is installed below a prefix" cmake --install "$build" \
	--prefix "$prefix"
unset LD_LIBRARY_PATH XDG_RUNTIME_DIR
export PATH=$prefix/bin:$PATH FSDP_SOCKET=$dir/sock
check "fsdpd starts there" fsdpd --version
check "fsdpctl does" fsdpctl --version
check "fsdp-worker does" fsdp-worker --version
check "fsdpd finds nothing missing" test -x "$prefix/bin/fsdp-worker"
version=$(fsdpd --version | head -n 1)
pages=("$prefix"/share/man/man?/*)
check "there are manual pages" test -s "${pages[0]}"
check "each has the version in its footer" \
	test -z "$(grep -L "^\.TH .* \"$version\" " "${pages[@]}")"
fsdpd --supervised 2>>"$dir/log" &
daemon=$!
check "the broker answers" is_answering

pc=$(find "$prefix" -name fsdp.pc)
export PKG_CONFIG_PATH=${pc%/*}
libdir=$(pkg-config --variable=libdir fsdp)
read -r -a package < <(pkg-config --cflags --libs fsdp)
check "pkg-config names the prefix" test -e "$libdir/libfsdp.so"
for n in 1 2; do
	c_block $n >"$dir/program$n.c"
	check "README's C program $n compiles without a warning" "$cc" \
		-Wall -Wextra -Werror "${flags[@]}" -o "$dir/program$n" \
		"$dir/program$n.c" "${package[@]}" -Wl,-rpath,"$libdir"
done
# The second program waits for what the first one publishes.
"$dir/program2" >"$dir/out" 2>>"$dir/log" &
consumer=$!
check "the first runs" "$dir/program1"
check "the second ends well" wait $consumer
check "and has read what the first wrote" test "$(<"$dir/out")" = 1023

# Build the same programs with find_package().
mkdir "$dir/cmake"
cat >"$dir/cmake/CMakeLists.txt" <<'EOF'
cmake_minimum_required(VERSION 3.25)
project(program LANGUAGES C)
find_package(fsdp 0.1 REQUIRED)
add_executable(program ../program2.c)
target_link_libraries(program PRIVATE fsdp::fsdp)
EOF
check "CMake finds the package" cmake -S "$dir/cmake" -B "$dir/cmake" \
	-DCMAKE_C_COMPILER="$cc" -DCMAKE_C_FLAGS="${flags[*]}" \
	-DCMAKE_PREFIX_PATH="$prefix"
check "README's second program is built by it" cmake --build "$dir/cmake"
check "and runs" test "$("$dir/cmake/program")" = 1023

kill "$daemon" && wait "$daemon"
daemon=
check "it is uninstalled" cmake --build "$build" --target uninstall
check "nothing is left" test -z "$(find "$prefix" -type f -o -type l -o \
	-name '*fsdp*')"
check "there is nothing to uninstall then" \
	eval '! cmake --build "$build" --target uninstall'

export DESTDIR=$dir/stage
check "a package can be staged" cmake --install "$build" --prefix /opt/fsdp
lib=$dir/stage/opt/fsdp/lib
check "its service has the path of the prefix" grep -qx \
	"ExecStart=/opt/fsdp/bin/fsdpd" "$lib/systemd/system/fsdpd.service"
for file in systemd/system/fsdpd.socket sysusers.d/fsdpd.conf \
	tmpfiles.d/fsdpd.conf; do
	check "$file is there" test -s "$lib/$file"
done
