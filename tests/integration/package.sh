#!/bin/bash
# Tests the Debian packages. Two builds have the same bytes, the programs are
# hardened and contain no path of the build, and lintian finds no error. One
# build is build/package, which may be there, as compilers need a minute of CPU
# time. The packages stay in PACKAGES for package_service.sh.
#
#   package.sh SOURCES PACKAGES
set -u
# shellcheck source=../lib/check.sh
. "$(dirname "$(realpath "${BASH_SOURCE[0]}")")/../lib/check.sh"

sources=$1 packages=$2
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT

# check WHAT COMMAND...: the command must succeed. Its output is shown if it
# fails.
check()
{
	local what=$1
	shift
	"$@" >"$dir/log" 2>&1 || {
		tail -n 60 "$dir/log"
		fail "$what"
	}
	echo "ok: $what"
}

# build FOLDER: build the sources there as docs/deploy.md describes. The folder
# may be removed later, so only a subshell enters it.
build()
(
	cd "$1" && rm -rf build/package/packages && cmake --preset package &&
		cmake --build --preset package -j "$(nproc)" &&
		cpack --config build/package/CPackConfig.cmake
)

# Unpack all packages, each into a folder of its own.
unpack()
{
	local package

	mkdir "$dir/unpacked" || return
	for package in "$packages"/*.deb; do
		dpkg-deb -x "$package" "$dir/unpacked/$(basename "$package" .deb)" ||
			return
	done
}

elf_files()
{
	find "$dir/unpacked" -type f -exec sh -c \
		'head -c 4 "$1" | grep -q ELF' sh {} \; -print
}

# Debian 12's start files have no landing pads for indirect jumps, so
# hardening-check does not find them in a program. Ours has them.
is_hardened()
{
	hardening-check --nocfprotection "$1" || return
	[[ $(uname -m) == x86_64 ]] || return 0
	readelf -n "$1" | grep -q SHSTK && objdump -d "$1" | grep -q endbr64
}

# Check that the plug-ins are found in the way in which the engines look for
# them.
plug_ins_are_found()
(
	cd "$dir"/unpacked/python3-fsdp_*/usr/lib/python3/dist-packages &&
		/usr/bin/python3 -S -c '
from importlib.metadata import entry_points
for group in "vllm.general_plugins", "sglang.srt.plugins":
    assert "fsdpd" in entry_points(group=group).names, group
'
)

# Build a copy of the sources with the settings of another user.
build_again()
(
	umask 077
	export TZ=Asia/Kolkata LC_ALL=C.UTF-8
	mkdir -p "$1" &&
		tar -C "$sources" --exclude=./build --exclude=./.git -c . |
		tar -C "$1" --no-same-permissions -x &&
		build "$1"
)

same_bytes()
{
	local package

	for package in "$packages"/*deb; do
		cmp "$package" "$1/$(basename "$package")" || return
	done
}

copy=$dir/two/with/a/longer/path
check "the packages are built" build "$sources"
check "they are built in another folder" build_again "$copy"
rm -rf "$packages"
mkdir -p "$packages"
cp "$copy"/build/package/packages/*deb "$packages"
check "the bytes are the same" same_bytes "$sources/build/package/packages"
rm -rf "$dir/two"

check "they can be unpacked" unpack
mapfile -t programs < <(elf_files)
check "they have programs" test "${#programs[@]}" -ge 5
for program in "${programs[@]}"; do
	check "$(basename "$program") is hardened" is_hardened "$program"
done
for package in fsdpd libfsdp0 fsdp-tools python3-fsdp; do
	check "$package names its libraries" eval "dpkg-deb -f '$packages'/${package}_*.deb \
		Depends | grep 'libc6 (>= '"
done
check "vLLM and SGLang find their plug-ins" plug_ins_are_found
check "no path of the build is in them" \
	eval '! grep -rF "$dir" "$dir/unpacked"'
check "lintian finds no error" lintian --fail-on error --allow-root \
	"$packages"/*.deb
